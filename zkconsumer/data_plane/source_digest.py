"""The digest that ties compiled modules to the sources beside them. It imports nothing of the package: the build loads
this file alone, when nothing is installed yet.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

MODULES: Final = ("records", "columns", "hand_out", "fetch_response", "batch_extent")
"""The modules that are compiled, each after those that it imports."""

DECLARATIONS: Final = (
    "big_endian.pxd",
    "checked_slice.pxd",
    "checksum.pxd",
    "clock.pxd",
    "columns.pxd",
    "fetch_response.pxd",
    "hand_out.pxd",
    "records.pxd",
)
"""Files of C types beside the modules, which only the compiler reads."""


def source_digest(read: Callable[[str], bytes]) -> str:
    """Return a digest of all that the compiler reads. One for all, since a module has the types of others built in.

    Arguments: ``read`` returns the content of a file of this folder.
    """
    digest = sha256()
    for name in (*(f"{module}.py" for module in MODULES), *DECLARATIONS):
        text = read(name)
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()
