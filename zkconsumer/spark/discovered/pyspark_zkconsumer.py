"""How Spark finds the data source "zkconsumer": it imports every top-level module named ``pyspark_*`` and registers its
``DefaultSource``.

An error here would hide all other data sources of the environment too, so where something is missing there is none.
"""

from zkconsumer.errors import MissingExtraError
from zkconsumer.spark import _data_source

__all__: list[str] = []

try:
    DefaultSource = _data_source()
except MissingExtraError:
    pass
else:
    __all__ += ["DefaultSource"]
