"""Times as ``kafka-consumer-groups.sh`` takes them: ``--to-datetime`` and ``--by-duration``. Pure; any thread.

Mirrors Java's ``Utils.getDateTime`` (Kafka 3.9) and ``Duration.parse``. Differs on purpose: the seconds and their
fraction may be missing, and a fraction has exactly three digits. Java reads ``.5`` as 5 ms.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction

# Hours end at 23: Python 3.14 reads 24:00 as the next day, and older ones refuse it.
_DATETIME = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})T(?P<time>(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{3})?)?)"
    r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    re.ASCII,
)
_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<days>[+-]?[0-9]{1,18})D)?"
    r"(?:T(?=.)(?:(?P<hours>[+-]?[0-9]{1,18})H)?(?:(?P<minutes>[+-]?[0-9]{1,18})M)?"
    r"(?:(?P<seconds>[+-]?[0-9]{1,18})(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_LARGEST = (1 << 63) - 1


def parse_datetime(text: str) -> int:
    """Return a ``YYYY-MM-DDTHH:mm:SS.sss`` with or without a zone as milliseconds since 1970; without one it is UTC.

    Raises ValueError that quotes the text.
    """
    found = _DATETIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = datetime.fromisoformat(f"{found['day']}T{found['time']}{found['zone'] or 'Z'}")
        since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; the format is 'YYYY-MM-DDTHH:mm:SS.sss', in UTC or with a zone"
        ) from None
    milliseconds = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if milliseconds < 0:
        raise ValueError(f"{text!r} is before 1970")
    return milliseconds


def parse_duration(text: str) -> int:
    """Return a ``PnDTnHnMnS`` in milliseconds, rounded down. It may be negative. Raises ValueError that quotes it."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[name] for name in ("days", "hours", "minutes", "seconds")):
        raise ValueError(f"{text!r} is no duration; the format is 'PnDTnHnMnS', as in P1D or PT1H30M")
    whole = sum(
        int(found[name] or 0) * length
        for name, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
    )
    digits = found["fraction"] or "0"
    fraction = Fraction(int(digits), 10 ** len(digits)) * (-1 if (found["seconds"] or "").startswith("-") else 1)
    milliseconds = (whole + fraction) * 1000 * (-1 if found["sign"] == "-" else 1)
    if abs(milliseconds) > _LARGEST:
        raise ValueError(f"{text!r} is too long")
    return int(milliseconds // 1)
