"""The watcher: a process with a direct ZooKeeper connection that logs the owner, id and offset nodes.

``python -m tests.faults.watcher CONFIG``. It looks after each watch event and every few milliseconds. ``since`` of an
owner node is ZooKeeper's time of its creation on the common monotonic clock, so it does not depend on our delay.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from tests.faults.events import EventLog

POLL_S = 0.02
PER_NODE_S = 0.001
CROWD = 100
ANSWER_S = 1.0
SESSION_S = 2.0
"""It owns nothing that a session would keep, and kazoo waits for a server that is starting as long as for this."""
REPLACE_AFTER_S = 0.5
REPLACE_AFTER_MOST_S = 4.0
TROUBLE = (KazooException, KazooTimeoutError)


class Watcher:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.log = EventLog(Path(config["log"]), "watcher", role="watcher")
        self.group = f"/consumers/{config['group']}"
        self.wake = threading.Event()
        self.nodes: dict[str, tuple[int, ...]] = {}
        self.members: dict[str, tuple[int, ...]] = {}
        self.client = self._connect()

    def _connect(self) -> KazooClient:
        # back as soon as the servers are, or it would see what happens then too late
        soon = KazooRetry(max_tries=-1, delay=0.02, backoff=1, max_jitter=0.0, max_delay=0.05)
        client = KazooClient(self.config["connect"], timeout=SESSION_S, read_only=True, connection_retry=soon)
        client.start_async()
        return client

    def run(self) -> None:
        answered, patience = time.monotonic(), REPLACE_AFTER_S
        self.log("watching", group=self.config["group"])
        while True:
            try:
                self._look()
                answered, patience = time.monotonic(), REPLACE_AFTER_S
            except TROUBLE:
                # an ensemble that was set back refuses sessions of its future for ever, and one that starts may never
                # answer who came too early
                if time.monotonic() - answered > patience:
                    self._replace()
                    answered, patience = time.monotonic(), min(2 * patience, REPLACE_AFTER_MOST_S)
            self.wake.wait(max(POLL_S, PER_NODE_S * len(self.nodes)))
            self.wake.clear()

    def _replace(self) -> None:
        """Continue with another client at once. The old one may take long to end."""
        self.log("watcher_reconnects")
        threading.Thread(target=self._end, args=(self.client,), name="ending", daemon=True).start()
        self.client = self._connect()

    @staticmethod
    def _end(client: KazooClient) -> None:
        for end in (client.stop, client.close):
            with suppress(Exception):
                end()

    def _look(self) -> None:
        paths = []
        for kind in ("owners", "offsets"):
            for topic in self._children(f"{self.group}/{kind}"):
                where = f"{self.group}/{kind}/{topic}"
                paths += [f"{where}/{name}" for name in self._children(where)]
        found = self._read(paths)
        self._compare(self.nodes, found, found)
        # with many members, reading their nodes would delay the owners: a known id node is not read again
        there = [f"{self.group}/ids/{name}" for name in self._children(f"{self.group}/ids")]
        crowd = len(there) > CROWD
        found = self._read([path for path in there if not crowd or path not in self.members])
        self._compare(self.members, found, there if crowd else found)

    def _read(self, paths: list[str]) -> dict[str, tuple[bytes, Any]]:
        pending = [(path, self.client.get_async(path, self._fired)) for path in paths]
        found = {}
        for path, result in pending:
            with suppress(NoNodeError):
                found[path] = result.get(timeout=ANSWER_S)
        return found

    def _compare(
        self, known: dict[str, tuple[int, ...]], found: dict[str, tuple[bytes, Any]], there: Iterable[str]
    ) -> None:
        """Log the new nodes and those that are gone."""
        for path, (data, stat) in found.items():
            mark = (stat.czxid, stat.version)
            if known.get(path) != mark:
                known[path] = mark
                self._tell(path, data or b"", stat)
        for path in known.keys() - set(there):
            czxid = known.pop(path)[0]
            kind, name = self._kind(path)
            self.log(f"{kind}_gone", name=name, czxid=czxid)

    def _children(self, path: str) -> Iterator[str]:
        try:
            return iter(sorted(self.client.get_children_async(path, self._fired).get(timeout=ANSWER_S)))
        except NoNodeError:
            return iter(())

    def _fired(self, _: object) -> None:
        self.wake.set()

    def _kind(self, path: str) -> tuple[str, str]:
        kind, *rest = path.removeprefix(f"{self.group}/").split("/")
        return kind.removesuffix("s"), "-".join(rest)  # id, owner, offset

    def _tell(self, path: str, data: bytes, stat: Any) -> None:
        kind, name = self._kind(path)
        owner = stat.ephemeralOwner
        self.log(
            kind, name=name, data=data[:200].decode(errors="replace"), czxid=stat.czxid, mzxid=stat.mzxid,
            version=stat.version, session=owner - (1 << 64) if owner >= 1 << 63 else owner,
            since=stat.ctime * 1_000_000 - time.time_ns() + time.monotonic_ns(),
        )  # fmt: skip


def main() -> None:
    Watcher(json.loads(Path(sys.argv[1]).read_text())).run()


if __name__ == "__main__":
    main()
