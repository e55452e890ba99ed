from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.streams.bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.queue.close()
