"""The mark for fault tests that start servers, and the background run of the rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.faults.group import Timing
from tests.faults.lab import Lab, Report
from tests.faults.matrix import ROWS
from zkconsumer.devcluster import JavaNotFoundError, java

_SIDE_BY_SIDE = 3
_NEED_PEACE = ("12", "17")
"""Rows that do something to the servers that others share: they come last, one at a time."""
_OWN_SERVERS = ("ensemble",)


class Rows:
    """A run of the selected rows in the background, several at a time."""

    def __init__(self, lab: Lab, names: list[str]) -> None:
        self.lab = lab
        self.reports: dict[str, Future[Report]] = {name: Future() for name in names}
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="rows")
        peaceful = [name for name in names if name not in _NEED_PEACE]
        done = [self._pool.submit(self._perform, name, name in _OWN_SERVERS) for name in peaceful]
        self._last = self._pool.submit(self._when_quiet, done, [name for name in names if name in _NEED_PEACE])

    def _perform(self, name: str, own_servers: bool = False) -> None:
        try:
            self.reports[name].set_result(ROWS[name].perform(self.lab, alone=False))
        except BaseException as failure:
            self.reports[name].set_exception(failure)

    def _when_quiet(self, before: list[Future[None]], names: list[str]) -> None:
        for future in before:
            future.result()
        for name in names:
            self._perform(name)

    def close(self) -> None:
        """Wait for the running rows."""
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """The run of the selected rows."""
    try:
        java()
    except JavaNotFoundError as missing:
        pytest.skip(f"these tests start ZooKeeper and Kafka, which need Java: {missing}")
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # broken connections are expected
    wanted = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path.name == "test_rows.py" and "rows" in item.fixturenames
    ]
    with Lab(Timing()) as lab:
        _ = lab.cluster
        running = Rows(lab, wanted)
        try:
            yield running
        finally:
            running.close()
