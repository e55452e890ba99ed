"""The engine as a fixture; without one, the tests of this folder are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from tests.docker.engine import UnavailableError, engine


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker.DockerClient]:
    try:
        with engine() as client:
            yield client
    except UnavailableError as reason:
        pytest.skip(str(reason))
