"""The page "A morning on call" is run as written, with a Scala member, one of ours, and an owner node that nobody has.

A line ``...`` in an output of the page stands for lines that are left out. Times, addresses and widths do not count.
"""

from __future__ import annotations

import io
import re
import shlex
import socket
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import owners_of, produce_to
from tests.cluster.in_process import offsets_of
from tests.cluster.kafka_tools import zookeeper_shell
from tests.documents import DOCS
from tests.timing import eventually
from zkconsumer.cli import main
from zkconsumer.devcluster import DevCluster

PAGE = DOCS / "on-call.md"
GROUP, TOPIC, PARTITIONS = "payments", "orders", 6
DEAD = f"{GROUP}_reports-old-0"
SCALA, OURS = "legacy-jvm", "billing-py"
BEFORE, END = 15, 20
"""Offsets of each partition before the members come, and the log ends."""

_VARIABLE = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)", "TIME"),
    (r"\d{8}T\d{6}\.\d+", "STAMP"),
    (r"0x[0-9a-f]+", "ZXID"),
    (r"; unchanged for at least \d+ (min \d+ )?(s|min)", ""),
    (r"\d+(\.\d+)? (ms|s|min|h)\b", "N s"),
    (r"Rebalancing|Stuck", "STATE"),
    (r"is (rebalancing|stuck)", "is STATE"),
    (r"\(\d errors\)", "(N errors)"),  # it is stuck only after a while
    (r"[ -]{2,}|\t", " "),
)


def comparable(text: str, cluster: DevCluster) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    text = text.replace(cluster.zookeeper_connect, "127.0.0.1:2181").replace(
        cluster.bootstrap_servers, "127.0.0.1:9092"
    )
    text = re.sub(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w.-])", "app-1", text)
    for pattern, word in _VARIABLE:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def sessions() -> list[tuple[str, str]]:
    """Return the commands of the page in order, with their outputs."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def matches(shown: Sequence[str], printed: Sequence[str]) -> bool:
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


class Morning:
    """The group of the page, and what is done between its commands."""

    def __init__(self, cluster: DevCluster, zookeeper: KazooClient) -> None:
        self._cluster = cluster
        self._zookeeper = zookeeper

    def owners(self) -> dict[int, str]:
        return {n: one.rpartition("-")[0] for n, one in owners_of(self._zookeeper, GROUP, TOPIC).items()}

    def offsets(self) -> dict[int, int]:
        return offsets_of(self._zookeeper, GROUP, TOPIC)

    def run(self, command: str) -> str:
        """Run a command of the page. Return what it printed."""
        words = shlex.split(command.replace("127.0.0.1:2181", self._cluster.zookeeper_connect))
        if words[0] == "zookeeper-shell.sh":
            return self._shell(words[1:])
        assert words[0] == "zkconsumer", command
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            main([*words[1:], "--timeout", "60000"])
        if "--execute" in words:
            eventually(lambda: self.offsets()[1] == END, 20, "what was reset is consumed again")
        return out.getvalue()

    def _shell(self, words: Sequence[str]) -> str:
        """Run Kafka's script, and wait until the group has settled after it."""
        zookeeper_shell(*words)
        eventually(lambda: self.owners().get(1) == f"{GROUP}_{OURS}", 20, "our member takes the partition over")
        eventually(lambda: self.offsets()[1] == END, 20, "it is consumed")
        return ""


@pytest.fixture
def morning(
    cluster: DevCluster,
    zookeeper: KazooClient,
    legacy_member: Callable[..., Any],
    our_member: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Morning:
    monkeypatch.chdir(tmp_path)  # a reset leaves a file there
    cluster.create_topic(TOPIC, PARTITIONS)
    produce_to(cluster.bootstrap_servers, TOPIC, [b"%d" % n for n in range(END * PARTITIONS)], partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        path = f"/consumers/{GROUP}/offsets/{TOPIC}/{partition}"
        zookeeper.create(path, b"%d" % BEFORE, makepath=True)
    zookeeper.create(f"/consumers/{GROUP}/owners/{TOPIC}/1", DEAD.encode(), makepath=True)
    staged = Morning(cluster, zookeeper)
    adopts = {"consumer.id": OURS, "offset.conflict": "adopt"}
    our_member(GROUP, {TOPIC: 1}, properties=adopts).wait_ready()
    eventually(lambda: set(staged.owners()) == set(range(PARTITIONS)), 30, "our member has the others")
    legacy_member("1.1.1", GROUP, {TOPIC: 1}, properties={"consumer.id": SCALA}).wait_ready()
    mine, its = f"{GROUP}_{OURS}", f"{GROUP}_{SCALA}"
    wanted = {0: mine, 1: DEAD.rpartition("-")[0], 2: mine, 3: its, 4: its, 5: its}
    eventually(lambda: staged.owners() == wanted, 30, "the two have shared the rest")
    eventually(lambda: sum(staged.offsets().values()) == BEFORE + 5 * END, 30, "all else is consumed")
    return staged


def test_a_morning_on_call_goes_as_its_page_says(cluster: DevCluster, morning: Morning) -> None:
    wrong = []
    for command, output in sessions():
        printed = morning.run(command)
        shown, told = comparable(output, cluster), comparable(printed, cluster)
        if not matches(shown, told):
            wrong.append(f"$ {command}\n{printed}")
    assert not wrong, "the page is out of date:\n\n" + "\n\n".join(wrong)
    assert len(sessions()) > 5
