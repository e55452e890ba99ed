"""Former name of :mod:`zkconsumer.assignors`. It stays for the imports of applications."""

from zkconsumer.assignors import *  # noqa: F403
from zkconsumer.assignors import __all__ as __all__
