"""The version of this package, in a module that imports nothing."""

import sysconfig

VERSION = "0.1.0"


def refuse_free_threaded_builds() -> None:
    """Raise ImportError in a free-threaded build of Python.

    The hand-out path (``streams/kafka_stream.py``) takes no lock for a message. It relies on the GIL, which shows its
    stores to other threads in order. Without the GIL a commit could pass a message that the application has not seen.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError(
            "zkconsumer does not support free-threaded builds of Python: it relies on the global interpreter lock "
            "(GIL), and without that lock it could lose messages; use the ordinary build of this Python version"
        )
