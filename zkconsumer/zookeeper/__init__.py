"""Sessions, nodes and fenced writes in ZooKeeper; the only importer of its client library (kazoo)."""

from __future__ import annotations

import re

from kazoo.version import __version__ as _kazoo

from zkconsumer.errors import UnsupportedVersionError

KAZOO_FROM = (2, 11)
KAZOO_BEFORE = (2, 12)
"""The range of kazoo whose connection the package is known to fit; setup.cfg has the same one."""


def check_kazoo(version: str) -> None:
    """Raise UnsupportedVersionError if this version of kazoo is not in the range.

    Another version would fail somewhere inside of a connection, or not be noticed.
    """
    numbers = tuple(int(one) for one in re.findall(r"\d+", version)[:2])
    if not KAZOO_FROM <= numbers < KAZOO_BEFORE:
        wanted = f">={'.'.join(map(str, KAZOO_FROM))},<{'.'.join(map(str, KAZOO_BEFORE))}"
        raise UnsupportedVersionError(
            f"kazoo {version} is installed, and zkconsumer works with kazoo{wanted}: pip install 'kazoo{wanted}'"
        )


check_kazoo(_kazoo)
