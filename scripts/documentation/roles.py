"""Shows roles in docstrings as code, as in :class:`~zkconsumer.errors.ZkConsumerError`, and ``::`` as one colon."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc|obj):`~?(?:[\w.]+\.)?(\w+)`")


class Roles(griffe.Extension):
    """The extension that griffe calls for each object that it has read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"``\1``", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
