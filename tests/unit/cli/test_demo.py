"""The account of the demo, and its conditions of success."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from scripts.demonstration import __main__ as demo
from scripts.demonstration.__main__ import main
from scripts.demonstration.balanced_member import BalancedMember
from scripts.demonstration.flight_producer import ALL_FLIGHTS, Delays, FlightTotals, airlines, flights
from scripts.demonstration.group_owners import GroupOwners
from scripts.demonstration.member_process import MemberProcess
from scripts.demonstration.message_account import AccountTotals, MessageAccount, Repeat
from scripts.demonstration.report import cause, is_good
from scripts.demonstration.scenario import DemoSettings
from scripts.demonstration.spark_process import CarrierReport, compare
from tests.timing import eventually
from zkconsumer.devcluster import server_process
from zkconsumer.errors import ZkConsumerError

PERFECT = AccountTotals(produced=3, consumed=3, lost=0, altered=0, unknown=0, duplicates={}, by_member={})


def test_the_account_counts_each_kind_of_message() -> None:
    account = MessageAccount()
    for offset in range(4):
        account.produced((0, offset), 100 + offset)
    account.consumed("ann", [((0, 0), 100), ((0, 1), 999)])
    account.begin(4)
    account.consumed("ben", [((0, 0), 100), ((0, 2), 102), ((7, 7), 1)])

    totals = account.totals()

    assert (totals.produced, totals.consumed, totals.lost) == (4, 4, 1)
    assert (totals.altered, totals.unknown) == (1, 1)
    assert totals.duplicates == {Repeat("ann", "ben", 4): 1}
    assert totals.by_member == {"ann": 2, "ben": 3}
    assert account.ends() == {0: 4}
    assert account.consumed_of(0) == 3


def test_a_message_may_be_consumed_before_its_acknowledgement() -> None:
    account = MessageAccount()
    account.consumed("ann", [((0, 0), 5)])
    account.produced((0, 0), 5)

    totals = account.totals()

    assert (totals.lost, totals.altered, totals.unknown) == (0, 0, 0)


def test_duplicates_are_no_failure_but_everything_else_is() -> None:
    assert is_good(PERFECT, {0: 3}, 3)
    assert is_good(replace(PERFECT, duplicates={Repeat("ben", "cid", 4): 9}), {0: 3}, 3)
    assert not is_good(replace(PERFECT, consumed=2, lost=1), {0: 3}, 3)
    assert not is_good(replace(PERFECT, altered=1), {0: 3}, 3)
    assert not is_good(replace(PERFECT, unknown=1), {0: 3}, 3)
    assert not is_good(PERFECT, {0: 2}, 3), "not everything is committed"
    assert not is_good(PERFECT, {0: 3}, 4), "not everything was produced"


def test_duplicates_are_put_down_to_a_step() -> None:
    assert cause(Repeat("ben", "cid", 5)).startswith("step 4: ben was killed")
    assert cause(Repeat("ann", "cid", 5)).startswith("step 5: read by ann")
    assert cause(Repeat("ann", "ann", 3)) == "step 3: read twice by ann"


def test_a_group_is_settled_when_every_stream_has_its_share() -> None:
    both = {0: ("ann", 0), 1: ("ann", 1), 2: ("ben", 0), 3: ("ben", 1)}
    members = frozenset({"ann", "ben"})
    assert GroupOwners(members, both).settled({"ann", "ben"}, 4, 2)
    assert not GroupOwners(members, {**both, 3: ("ben", 0)}).settled({"ann", "ben"}, 4, 2), "a stream has nothing"
    assert not GroupOwners(members, both).settled({"ann"}, 4, 2), "another one is there"
    assert not GroupOwners(members, {n: both[n] for n in range(3)}).settled({"ann", "ben"}, 4, 2), "one has no owner"
    assert str(GroupOwners(members, both)) == "ann/0: 0  ann/1: 1  ben/0: 2  ben/1: 3"


def test_the_file_is_read_as_it_is() -> None:
    totals = FlightTotals()
    rows = list(flights(1000))
    for row in rows:
        totals.add(row)

    assert rows[0].carrier == "UA"
    assert b'"dep_delay":2,' in rows[0].json
    assert b'"tailnum":"N14228"' in rows[0].json
    assert any(b'"dep_delay":null' in row.json for row in rows), "a cancelled flight"
    assert sum(delays.flights for delays in totals.by_carrier.values()) == 1000
    assert totals.by_carrier.keys() <= airlines().keys()


@pytest.mark.tier("standard")
@pytest.mark.timeout(60)
def test_the_file_has_as_many_flights_as_we_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.dumps", lambda *_, **__: "")  # takes most of the time
    assert sum(1 for _ in flights()) == ALL_FLIGHTS


def test_spark_agrees_only_with_the_same_numbers() -> None:
    wanted = {"UA": Delays(3, 2, 5), "OO": Delays(1, 0, 0)}
    same = {"UA": CarrierReport(Delays(3, 2, 5), 2.5), "OO": CarrierReport(Delays(1, 0, 0), None)}

    assert compare(same, wanted)[1]
    assert not compare({"UA": same["UA"]}, wanted)[1], "a carrier is missing"
    assert not compare({**same, "AA": same["UA"]}, wanted)[1], "a carrier too many"
    assert not compare({**same, "UA": CarrierReport(Delays(3, 2, 5), 2.6)}, wanted)[1]
    assert not compare({**same, "OO": CarrierReport(Delays(1, 0, 0), 0.0)}, wanted)[1]


@pytest.mark.parametrize("arguments", [["--flights", "3"], ["--flights", "many"], ["--keep=yes"]])
def test_wrong_usage_of_the_demo(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: scripts/demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "total", "spark"),
    [
        ([], ALL_FLIGHTS, True),
        (["--quick"], 100_000, False),
        (["--quick", "--flights", "500"], 500, False),
        (["--no-spark"], ALL_FLIGHTS, False),
    ],
)
def test_quick_is_fewer_flights_without_spark(
    arguments: list[str], total: int, spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[DemoSettings] = []
    monkeypatch.setattr(demo, "play", lambda settings: played.append(settings) or 0)
    assert main(arguments) == 0
    assert [(settings.total, settings.spark) for settings in played] == [(total, spark)]


def _reader(folder: Path) -> tuple[MemberProcess, Callable[[], None]]:
    member = MemberProcess("ann", "no-port:x", "g", "t", 4000, folder)
    return member, lambda: member.start(MessageAccount())


def _handler(folder: Path) -> tuple[BalancedMember, Callable[[], None]]:
    member = BalancedMember("ann", "no-port:x", "g", "t", 2, 4000, folder)
    return member, member.start


MEMBERS = pytest.mark.parametrize("make", [_reader, _handler], ids=["reader", "handler"])


@MEMBERS
def test_a_member_that_fails_at_its_start_says_why(make: Any, tmp_path: Path) -> None:
    member, start = make(tmp_path)
    start()

    def told() -> str:
        try:
            member.check()
        except ZkConsumerError as error:
            return str(error)
        return ""

    said = eventually(told, 20, "the end of the member")
    assert said.startswith("the member ann ended by itself:")
    assert "ConfigException" in said
    member.close()


@MEMBERS
def test_a_member_whose_start_was_interrupted_is_ended(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knew it yet: it outlived the cluster, and ended with the demo's own process."""
    member, start = make(tmp_path)
    member.close()  # not started: nothing is to do
    launched: list[int] = []

    class Interrupted(server_process.Launched):
        def __init__(self, *_: Any, **options: Any) -> None:
            super().__init__(["sleep", "300"], tmp_path / "log", **options)
            launched.append(self.pid)

    def interrupted(thread: Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"{type(member).__module__}.Launched", Interrupted)
        if isinstance(member, MemberProcess):
            patched.setattr(Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                start()
        else:
            start()
    member.close()
    with pytest.raises(ProcessLookupError):
        os.kill(launched[0], 0)
