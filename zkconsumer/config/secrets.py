"""Secrets: the names and values of properties that logs and errors must not show. Pure; any thread."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

HIDDEN = "***"

OWN_PROPERTIES = "credentials have properties of their own, such as zookeeper.digest.username or sasl.username"
"""Advice for credentials in the wrong place."""
NOT_SHOWN = (
    "has a value of the wrong form, not shown because it may hold a password; an address is host:port, and "
    + OWN_PROPERTIES
)
"""The reason for refusing a value that must not be quoted."""

_SECRET = re.compile(r"password|passwd|secret|token|credential|jaas|\.key$|private", re.IGNORECASE)
_SUSPECT = re.compile(
    r"pass|pas+w|pwd|pw$|secret|token|cred|jaas|auth|(^|[._-])(api|access)|key$|private|\bpin$|signature", re.I
)
_CREDENTIALS = re.compile(r":[^@]*@|(pass|pwd|secret|token|cred)\w*\s*=|-----BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE)
_ENCODED = re.compile(r"-----BEGIN|\b(Basic|Bearer)\s|\b(AKIA|ASIA|ghp_|eyJ)\w{8}")
_RANDOM = re.compile(r"(?=\S*[0-9])(?=\S*[a-z])(?=\S*[A-Z])[A-Za-z0-9+/=_-]{20,}")
_MEASURE = re.compile(r"[._-](ms|seconds|bytes|records)$")
_ALIKE = 0.75


def is_secret(name: str) -> bool:
    """Return whether a property of this name holds a secret."""
    return _SECRET.search(name) is not None


def holds_credentials(value: object) -> bool:
    """Return whether a value may hold credentials: ``user:password@``, an assignment such as ``password=``, a key."""
    text = value if isinstance(value, str) else str(value)
    return _CREDENTIALS.search(text) is not None


def address_may_hold_credentials(text: str) -> bool:
    """Return whether a text that should be addresses may hold credentials; addresses have no ``@``."""
    return "@" in text or holds_credentials(text)


def looks_secret(name: str, value: object, known: Iterable[str]) -> bool:
    """Return whether a property that is not in the table looks like a secret, by its name or its value.

    ``known`` names the properties of the table: a misspelt name of a secret one is a secret too.
    """
    if isinstance(value, bool) or value is None:
        return False
    if _MEASURE.search(name) and str(value).strip().isdecimal() and not is_secret(name):
        return False  # default.api.timeout.ms is no key of an API
    if _SUSPECT.search(name) or holds_credentials(value):
        return True
    if isinstance(value, str) and (_ENCODED.search(value) or _RANDOM.fullmatch(value)):
        return True
    secret = [one for one in known if is_secret(one)]
    return bool(difflib.get_close_matches(name.lower().replace("_", "."), secret, n=1, cutoff=_ALIKE))
