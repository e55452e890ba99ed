"""``scripts/compile``: compiles the modules of zkconsumer/data_plane beside their sources, for this checkout."""

from __future__ import annotations

import argparse
import sys
import sysconfig

from data_plane_build import ROOT, compile_in_place, digest, missing_tool, products, say

_STAMP = ROOT / ".cache" / f"data_plane{sysconfig.get_config_var('EXT_SUFFIX')}.digest"


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/compile", description=__doc__)
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="do nothing without a C compiler and Python's headers, or if the sources are those of the last time",
    )
    arguments = parser.parse_args()
    if arguments.if_possible and (missing := missing_tool()):
        say(f"{missing}: records are read by plain Python, several times slower")
        return 0
    compiled = all(product.exists() for product in products())
    if arguments.if_possible and compiled and _STAMP.exists() and _STAMP.read_text() == digest():
        return 0
    say("compiling zkconsumer/data_plane ...")
    compile_in_place()
    _STAMP.parent.mkdir(exist_ok=True)
    _STAMP.write_text(digest())
    return 0


if __name__ == "__main__":
    sys.exit(main())
