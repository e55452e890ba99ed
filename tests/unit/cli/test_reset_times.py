"""Times and durations as Kafka's tool takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.cli.offsets.reset_arguments import parse_datetime, parse_duration

DAY = 86_400_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-02T00:00:00.000", DAY),
        ("1970-01-02T00:00:00.001Z", DAY + 1),
        ("1970-01-02T02:00:00.000+02:00", DAY),
        ("1970-01-02T02:00:00.000+02", DAY),
        ("1970-01-01T23:00:00.000-0100", DAY),
        ("1970-01-02T00:00:01", DAY + 1000),
        ("1970-01-02T00:01", DAY + 60_000),
    ],
)
def test_a_time_is_utc_unless_it_has_a_zone(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


NO_TIMES = """
|now|1970-01-02|1970-01-02 00:00:00.000|1970-01-02T00:00:00.5|1970-02-30T00:00:00.000|1970-01-02T24:00:00.000
|1970-01-02T00:00:00.000+25:00|1969-12-31T00:00:00.000|\u0661970-01-02T00:00:00.000|0001-01-01T00:00:00.000+14:00
""".replace("\n", "").split("|")


@pytest.mark.parametrize("text", NO_TIMES)
def test_another_time_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_datetime(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P1D", DAY),
        ("PT1H30M", 5_400_000),
        ("pt0.5s", 500),
        ("PT1,25S", 1250),
        ("P1DT-1H", DAY - 3_600_000),
        ("-PT1M", -60_000),
        ("PT-1.5S", -1500),
        ("PT1.S", 1000),
        ("PT-0.001S", -1),
        ("PT0.0001S", 0),
    ],
)
def test_a_duration_is_read_as_java_reads_it(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1D", "P1H", "PT1D", "P1DT", "P1.5D", "PT1X", "P1W", "P" + "9" * 40 + "D"]
)
def test_another_duration_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_duration(text)
    assert repr(text) in str(refused.value)


@given(st.text(alphabet="PTDHMS+-.,:Z0123456789", max_size=30))
def test_any_text_is_a_time_or_an_error(text: str) -> None:
    for parse in (parse_datetime, parse_duration):
        try:
            found: object = parse(text)
        except ValueError as error:
            found = str(error)
        assert isinstance(found, int) or repr(text) in str(found)
