"""``zkconsumer doctor`` from files of snapshots: texts, forms and exit codes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.group_snapshots import stat
from tests.timing import scaled
from tests.unit.cli.command_line import Printed, printed
from tests.unit.clusters import cluster_with
from tests.unit.operations.doctor.cases import CONFIG, healthy, later, with_owner
from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.errors import RegistryError
from zkconsumer.operations.doctor import CHECKS
from zkconsumer.operations.doctor import cluster as doctor_cluster
from zkconsumer.operations.doctor.cluster import with_rights
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_file import write_snapshots
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper.node_values import Reading, Wanted

STATIC = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
ILL = with_owner(healthy(), "t:1", ephemeral_owner=0, version=3)


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(snapshots: list[GroupSnapshot], *arguments: str, **more: Any) -> str:
        file = tmp_path / "group.jsonl"
        write_snapshots(str(file), snapshots)
        return printed(capsys, "doctor", *arguments, "--from", str(file), **more)

    return run


def test_an_error_is_told_with_its_command(doctor: Printed) -> None:
    lines = doctor([ILL], "g", code=1).splitlines()
    assert lines[0] == "group g: error (1 error)"
    assert lines[1].split()[:2] == ["error", "persistent-owner"]
    assert "        node:     /consumers/g/owners/t/1" in lines
    assert any(line.endswith("delete -v 3 /consumers/g/owners/t/1") for line in lines)
    assert "        link:     docs/doctor.md#persistent-owner" in lines


def test_a_healthy_group_is_ok(doctor: Printed) -> None:
    said = doctor([healthy(), later(healthy(), 60)])
    least = f"{len(CHECKS) - 3} of {len(CHECKS)} checks found nothing; 3 need an option or a right, see --verbose"
    assert said == f"group g: ok\n  {least}\n"


def test_verbose_names_every_check(doctor: Printed) -> None:
    said = doctor([healthy()], "--verbose")
    assert "not looked at: the other chroots of these servers were not looked at" not in said
    assert "not looked at: one look cannot tell whether members come and go" in said
    assert [check.name for check in CHECKS if f" {check.name} " not in said] == []


def test_json_has_every_finding_of_every_group(doctor: Printed) -> None:
    said = json.loads(doctor([ILL, replace(healthy(), group="other")], "--format", "json", code=1))
    assert [(one["group"], one["level"]) for one in said] == [("g", "error"), ("other", "ok")]
    assert {one["check"] for one in said[0]["findings"]} == {check.name for check in CHECKS}
    worst = said[0]["findings"][0]
    assert worst["level"] == "error"
    assert worst["node"] == "/consumers/g/owners/t/1"
    assert worst["unknown"] is False


def test_csv_has_a_line_for_each_finding(doctor: Printed) -> None:
    rows = list(csv.DictReader(io.StringIO(doctor([ILL], "--format", "csv", code=1))))
    assert rows[0]["CHECK"] == "persistent-owner"
    assert "delete -v 3" in rows[0]["REMEDY"]


def test_a_members_properties_are_judged(doctor: Printed, tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("".join(f"{key} : {value}\n" for key, value in {**CONFIG, "rebalance.max.retries": "1"}.items()))
    assert "a Scala member gives up after 2 s" in doctor([healthy()], "g", "--member-config", str(file), code=1)


def test_flapping_is_seen_in_two_files(doctor: Printed) -> None:
    calm = replace(healthy(), ids_node=stat(age=7200, cversion=10))
    assert "warn  flapping" in doctor([calm, later(calm, 600, ids_node=stat(age=7200, cversion=30))])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["G"], 1, "'G' does not exist. Did you mean 'g'?"),
        (["g", "--write-probe"], 1, "--from: goes without --write-probe and --twice"),
        (["g", "--twice", "9"], 1, "--from: goes without --write-probe and --twice"),
        (["g", "--member-config", "/no/such/file"], 1, "/no/such/file"),
        *((["g", "--twice", seconds], 2, "--twice") for seconds in ("0", "-1", "soon", "inf", "nan")),
    ],
)
def test_bad_input_is_named(doctor: Printed, arguments: list[str], code: int, said: str) -> None:
    assert said in doctor([healthy()], *arguments, code=code, err=True)


def test_hostile_text_does_not_reach_the_terminal(doctor: Printed) -> None:
    evil = with_owner(healthy(), "t:1", "\x1b[2J\x07evil\n-0", ephemeral_owner=0)
    for form in ("table", "csv", "json"):
        said = doctor([evil], "--format", form, code=1)
        assert not any(ord(one) < 32 and one != "\n" for one in said)
        assert "evil" in said


def test_a_watch_forgets_groups_that_are_gone(doctor: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of console consumers come and go by the thousand."""

    def twice(look: Any, *_: object) -> int:
        look()
        assert set(look.args[2]) == {"g", "console"}
        (tmp_path / "group.jsonl").unlink()
        write_snapshots(str(tmp_path / "group.jsonl"), [later(healthy(), 60)])
        look()
        assert set(look.args[2]) == {"g"}
        return 0

    monkeypatch.setattr("zkconsumer.cli.doctor.watched", twice)
    doctor([healthy(), replace(healthy(), group="console")], "--watch", "1")


cluster = cluster_with({"t": [[b"a", b"b"], []]})


def test_groups_of_a_cluster_read_together_are_as_each_alone(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what one look at ZooKeeper does not read: the rights on single nodes, and a second look."""
    for name in ("a", "b", "c"):
        cluster.zookeeper.put(f"/consumers/{name}/ids/{name}_h-1", STATIC, ephemeral_owner=700)  # no session of ours
        cluster.zookeeper.put(f"/consumers/{name}/owners/t/0", b"x-0" if name == "b" else f"{name}_h-1-0".encode())
        cluster.zookeeper.put(f"/consumers/{name}/offsets/t/0", b"1")
    where = ("--zookeeper", cluster.zookeeper_connect, "--format", "json")

    def told(*arguments: str) -> dict[str, list[tuple[str, ...]]]:
        found = json.loads(printed(capsys, "doctor", *arguments, *where, code=1))
        keys = ("level", "check", "node", "remedy")
        return {one["group"]: [tuple(said[key] for key in keys) for said in one["findings"]] for one in found}

    together = told()
    assert together == {**told("a"), **told("b"), **told("c")}
    assert "unknown-owner" in {check for level, check, *_ in together["b"] if level == "error"}
    assert told("c", "a", "--twice", "0.1").keys() == {"a", "c"}
    assert "'nobody' does not exist" in printed(capsys, "doctor", "a", "nobody", *where, code=1, err=True)


def test_rights_that_cannot_be_read_are_a_problem_of_each_group(cluster: FakeCluster) -> None:
    """They are asked for together, so that ZooKeeper is waited for once."""
    for name in ("a", "b", "c"):
        cluster.zookeeper.put(f"/consumers/{name}/offsets/t/0", b"1")
    with ClusterClient(command_config(cluster.zookeeper_connect, None)[0], scaled(10.0)) as client:
        source = LiveSource(client)
        snapshots = [source.snapshot(name) for name in ("a", "b", "c")]
        rights = {one.group: one.acls for one in with_rights(client, snapshots)}
        assert all(f"/consumers/{name}/offsets/t/0" in rights[name] for name in ("a", "b", "c"))

        class Away:
            calls = 0
            zookeeper, timeout = client.zookeeper, client.timeout

            def open_session(self, _: object) -> None:
                self.calls += 1
                raise RegistryError("away")

        away = Away()
        found = with_rights(cast("ClusterClient", away), snapshots)
        assert {one.problems[-1].why for one in found} == {"away"}
        assert away.calls == 1


def test_large_groups_have_the_same_time_together_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the rights of a hundred groups had the time of one, and no group had rights when that was over."""
    monkeypatch.setattr(doctor_cluster, "MOST_RIGHTS", 2)
    deadlines = []

    class Slow:
        zookeeper, timeout = "zookeeper:2181", 5.0

        def open_session(self, _: object) -> Slow:
            return self

        def read_each(self, wanted: list[Wanted], deadline: object) -> Iterator[Reading]:
            assert len(wanted) <= 2 * doctor_cluster.MOST_RIGHTS
            deadlines.append(deadline)
            return (Reading(one, rights=f"rights of {one.path}") for one in wanted)

    groups = [replace(healthy(), group=name) for name in ("a", "b", "c")]
    found = with_rights(cast("ClusterClient", Slow()), groups)
    assert len(set(map(id, deadlines))) == len(deadlines) == len(groups)
    for one in groups:
        alone = with_rights(cast("ClusterClient", Slow()), [one])
        assert alone == [taken for taken in found if taken.group == one.group]
        owners = [f"/consumers/{one.group}/owners/t/{number}" for number in range(3)]
        assert [path in alone[0].acls for path in owners] == [True, False, True], "one for each session"
