"""The engine as a fixture; without one, the tests of this folder are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.docker.engine import UnavailableError, engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker.DockerClient]:
    try:
        with engine() as client:
            yield client
    except UnavailableError as reason:
        pytest.skip(str(reason))
