"""The version of this package, and which code it uses for each record.

The build reads ``VERSION`` from this text, without importing it.
"""

import sys
from typing import Final

from zkconsumer import data_plane

VERSION = "0.2.0"

COMPILED: Final = data_plane.COMPILED
"""Whether the compiled modules are in use. Without them everything works, several times slower."""

DATA_PLANE: Final = data_plane.CHOICE
"""``compiled``, or ``pure Python`` with the reason."""


def refuse_free_threaded_builds() -> None:
    """Raise ImportError in a free-threaded build of Python.

    The hand-out path (``streams/kafka_stream.py``) takes no lock for a message. It relies on the GIL, which shows its
    stores to other threads in order. Without the GIL a commit could pass a message that the application has not seen.
    """
    if "free-threading" in sys.version:  # sysconfig would know it too, and loads 0.7 MB
        raise ImportError(
            "zkconsumer does not support free-threaded builds of Python: it relies on the global interpreter lock "
            "(GIL), and without that lock it could lose messages; use the ordinary build of this Python version"
        )
