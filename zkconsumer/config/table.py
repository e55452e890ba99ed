"""The documentation of the properties, rendered from the table that the code reads. Pure; any thread."""

from __future__ import annotations

from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.config.keys import Key, keys_of


def markdown_table() -> str:
    """All properties as a Markdown table, the original's first and then our own; ends with a newline."""
    rows = keys_of(ConsumerConfig)
    original = [_row(name, key) for name, key in rows.items() if not key.ours]
    ours = [_row(name, key) for name, key in rows.items() if key.ours]
    head = "| key | type | default | note |\n|---|---|---|---|\n"
    return f"The original's:\n\n{head}{''.join(original)}\nOurs:\n\n{head}{''.join(ours)}"


def _row(name: str, key: Key) -> str:
    return f"| `{name}` | {key.kind} | {_default(key)} | {key.note.replace('|', '&#124;')} |\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default_text:
        return key.default_text
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
