"""What holds for every test; each folder adds its own fixtures."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

# How long an example takes says nothing on a busy machine. CI tries the same examples each time: what it says is
# about the change, and new examples are found where somebody looks at them.
settings.register_profile("zkconsumer", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("zkconsumer")

_ROOT = Path(__file__).resolve().parent.parent

# Python processes that tests start need the ``tests`` package as well, whatever folder they are started in.
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
).rstrip(os.pathsep)
