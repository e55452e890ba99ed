"""Compiles the data plane in place: ``scripts/compile``."""

from __future__ import annotations

import sys

from data_plane_build import compile_in_place

if __name__ == "__main__":
    compile_in_place()
    sys.exit()
