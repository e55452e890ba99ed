"""``scripts/compile``: compiles the modules of zkconsumer/data_plane beside their sources, for this checkout."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from data_plane_build import ROOT, compile_in_place, missing_tool, say

_ASK = "from zkconsumer.version import COMPILED; raise SystemExit(not COMPILED)"


def _in_use() -> bool:
    """Return whether a new process uses compiled modules. Only such a process can tell. A note of the last build would
    not know of modules that were replaced since, or of modules for another system.
    """
    environment = {**os.environ, "ZKCONSUMER_PURE": ""}
    return subprocess.run([sys.executable, "-c", _ASK], cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/compile", description=__doc__)
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="do nothing without a C compiler and Python's headers, with ZKCONSUMER_PURE, or if the modules of these"
        " sources are there",
    )
    arguments = parser.parse_args()
    if arguments.if_possible and os.environ.get("ZKCONSUMER_PURE", "") not in {"", "0"}:
        return 0  # they would not be used, and the C compiler may be broken
    if arguments.if_possible and (missing := missing_tool()):
        say(f"{missing}: records are read by plain Python, several times slower")
        return 0
    if arguments.if_possible and _in_use():
        return 0
    say("compiling zkconsumer/data_plane ...")
    compile_in_place()
    return 0


if __name__ == "__main__":
    sys.exit(main())
