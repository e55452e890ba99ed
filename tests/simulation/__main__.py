"""The command ``scripts/simulate``.

The process fixes the hash seed, chooses plain Python modules and exchanges the threads before it imports the package.
Each seed runs in a fork of the process, so that no run sees another one's objects.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback

_FIXED_ADDRESSES = 0x0040000  # ADDR_NO_RANDOMIZE of Linux: sets of objects have the order of their addresses

if os.environ.get("PYTHONHASHSEED") != "0" or os.environ.get("ZKCONSUMER_PURE") != "1":
    os.environ.update(PYTHONHASHSEED="0", ZKCONSUMER_PURE="1")
    if sys.platform == "linux":
        ctypes.CDLL(None).personality(_FIXED_ADDRESSES)
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

from tests.simulation.command import main  # noqa: E402 - after the hash seed is fixed

code = 1
try:
    code = main(sys.argv[1:])
except SystemExit as e:
    code = e.code if isinstance(e.code, int) else 2
    print("" if isinstance(e.code, int) else e.code, file=sys.stderr)
except BaseException:
    traceback.print_exc()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # an exit of the interpreter waits for the main thread's lock, which was exchanged
