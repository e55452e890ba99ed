"""The former place of ``zkconsumer.assignors``, kept so that imports of applications go on working."""

from zkconsumer.assignors import *  # noqa: F403
from zkconsumer.assignors import __all__ as __all__
