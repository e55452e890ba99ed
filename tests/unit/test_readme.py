"""README says what the code says."""

from __future__ import annotations

from pathlib import Path

from zkconsumer.config import markdown_table

README = Path(__file__).parents[2] / "README.md"


def test_the_table_of_properties_is_the_codes() -> None:
    text = README.read_text(encoding="utf-8")
    table = text.split("<!-- properties -->")[1].split("<!-- /properties -->")[0]
    assert table.strip() == markdown_table().strip(), "write zkconsumer.config.markdown_table() between the markers"
