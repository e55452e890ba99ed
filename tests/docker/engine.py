"""The Docker engine, the images and the compose program of this machine, or why there are none."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors

from tests.timing import eventually, scaled

COMPOSE_FILE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
PULL_SECONDS = 300.0
START_SECONDS = 180.0


class UnavailableError(Exception):
    """Docker, or an image, is not to be had here; the message is the reason to skip."""


@contextmanager
def engine() -> Iterator[docker.DockerClient]:
    """A client of the engine, closed at the end. Raises UnavailableError where no engine answers."""
    client, refusal = None, ""
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        refusal = f"no Docker engine answers: {error}"
    try:
        if client is not None and not refusal:
            yield client
            return
    finally:
        if client is not None:
            client.close()
    # A client that cannot be made leaves its socket to the garbage collector, whose warning would fail another test.
    # UnavailableError therefore does not keep the client's error as its cause.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise UnavailableError(refusal)


def need_image(client: docker.DockerClient, image: str) -> None:
    """See that ``image`` is here, pulling it where that is possible. Raises UnavailableError."""
    try:
        client.images.get(image)
        return
    except docker.errors.ImageNotFound:
        pass
    program = shutil.which("docker")
    if program is None:
        raise UnavailableError(f"the image {image} is not here, and neither is the docker program to pull it")
    try:
        done = subprocess.run(
            [program, "pull", "--quiet", image], capture_output=True, text=True, timeout=scaled(PULL_SECONDS)
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"the image {image} could not be pulled within {scaled(PULL_SECONDS):g} s") from None
    if done.returncode:
        raise UnavailableError(f"the image {image} is not here and cannot be pulled: {done.stderr.strip()}")


def compose_command() -> list[str]:
    """``docker compose`` or ``docker-compose``, whichever there is. Raises UnavailableError."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        if subprocess.run([*command, "version"], capture_output=True, timeout=scaled(60)).returncode == 0:
            return command
    raise UnavailableError("neither 'docker compose' nor 'docker-compose' is here")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free just now, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


@dataclass(frozen=True)
class Compose:
    """The containers of docker-compose.yml."""

    project: str
    zookeeper_connect: str
    bootstrap_servers: str


@contextmanager
def compose_up(client: docker.DockerClient, environment: Mapping[str, str] | None = None) -> Iterator[Compose]:
    """The project's docker-compose.yml, started under a name and on ports of its own, healthy; torn down at the end."""
    command = [*compose_command(), "--file", str(COMPOSE_FILE)]
    project = f"zkconsumer-test-{uuid.uuid4().hex[:8]}"
    zookeeper_port, kafka_port = free_ports(2)
    ports = {"ZOOKEEPER_PORT": str(zookeeper_port), "KAFKA_PORT": str(kafka_port)}
    variables = {**os.environ, **ports, **(environment or {}), "COMPOSE_PROJECT_NAME": project}

    def run(*arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [*command, *arguments], env=variables, capture_output=True, text=True, timeout=scaled(START_SECONDS)
        )
        if check and done.returncode:
            raise AssertionError(f"compose {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    try:
        run("up", "-d")
        try:
            eventually(lambda: _healthy(client, project), START_SECONDS, "healthy ZooKeeper and Kafka containers")
        except AssertionError as error:
            error.add_note(run("logs", "--no-color", "--tail", "40", check=False))
            raise
        yield Compose(project, f"127.0.0.1:{zookeeper_port}", f"127.0.0.1:{kafka_port}")
    finally:
        run("down", "--volumes", "--remove-orphans", "--timeout", "10", check=False)
        left = [container.name for container in _containers(client, project)]
        assert not left, f"still there after compose down: {left}"


def _containers(client: docker.DockerClient, project: str) -> list[docker.models.containers.Container]:
    label = f"com.docker.compose.project={project}"
    found: list[docker.models.containers.Container] = client.containers.list(all=True, filters={"label": label})
    return found


def _healthy(client: docker.DockerClient, project: str) -> bool:
    states = {c.name: c.attrs["State"] for c in _containers(client, project)}
    assert len(states) == 2, f"containers: {list(states)}"
    health = {name: state.get("Health", {}).get("Status", state["Status"]) for name, state in states.items()}
    assert set(health.values()) == {"healthy"}, f"health: {health}"
    return True
