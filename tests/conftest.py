"""What holds for every test; each folder adds its own fixtures."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent

# Python processes that tests start need the ``tests`` package as well, whatever folder they are started in.
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
).rstrip(os.pathsep)
