"""The documentation of the properties, rendered from the table that the code reads. Pure; any thread."""

from __future__ import annotations

from zkconsumer.config.consumer_config import ConsumerConfig, OriginalConfig
from zkconsumer.config.coordination_properties import CoordinationConfig
from zkconsumer.config.property_keys import Key, keys_of
from zkconsumer.config.security_properties import SecurityConfig


def markdown_tables() -> dict[str, str]:
    """Return the properties as Markdown tables, one for each part: original, own, coordination and security."""
    rows = keys_of(ConsumerConfig)
    parts = {
        "original": keys_of(OriginalConfig),
        "coordination": keys_of(CoordinationConfig),
        "security": keys_of(SecurityConfig),
    }
    parts["own"] = {name: key for name, key in rows.items() if not any(name in part for part in parts.values())}
    head = "| key | type | default | note |\n|---|---|---|---|\n"
    return {part: head + "".join(_row(name, rows[name]) for name in names) for part, names in parts.items()}


def _row(name: str, key: Key) -> str:
    return f"| `{name}` | {key.kind} | {_default(key)} | {key.note.replace('|', '&#124;')} |\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default_text:
        return key.default_text
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
