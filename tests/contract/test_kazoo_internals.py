"""The private names of kazoo on which the ZooKeeper session relies.

The tests fail if another version of kazoo lacks one, has another signature or calls one elsewhere.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from threading import Event
from types import CodeType

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler

from tests.timing import scaled
from zkconsumer.errors import UnsupportedVersionError
from zkconsumer.zookeeper import KAZOO_BEFORE, KAZOO_FROM, check_kazoo
from zkconsumer.zookeeper import zookeeper_security as security
from zkconsumer.zookeeper.server_connection import NamedHandler, ServerConnection, WatchingClient

ROOT = Path(__file__).resolve().parents[2]
OLDEST = "2.11.0"
CONNECT = "_connect"

OVERRIDDEN = {
    (ConnectionHandler, CONNECT): "(self, host, hostip, port)",
    (ConnectionHandler, "_expand_client_hosts"): "(self)",
    (ConnectionHandler, "_invoke"): "(self, timeout, request, xid=None)",
    (ConnectionHandler, "_read"): "(self, length, timeout)",
    (ConnectionHandler, "_read_socket"): "(self, read_timeout)",
    (ConnectionHandler, "_send_request"): "(self, read_timeout, connect_timeout)",
    (ConnectionHandler, "_write"): "(self, msg, timeout)",
    (KazooClient, "_reset_watchers"): "(self)",
    (SequentialThreadingHandler, "create_connection"): "(self, *args, **kwargs)",
    (SequentialThreadingHandler, "select"): "(self, *args, **kwargs)",
    (SequentialThreadingHandler, "spawn"): "(self, func, *args, **kwargs)",
    (SequentialThreadingHandler, "start"): "(self)",
}
"""Each method of kazoo's that the package overrides, and its signature there."""

USED: dict[type, dict[str, set[str]]] = {
    ConnectionHandler: {
        # who calls the overridden methods: an override that nobody calls does nothing
        "_connect_loop": {"_expand_client_hosts", "_connect_attempt"},
        "_connect_attempt": {"_connect", "_read_socket", "_send_request", "select", "ping_outstanding"},
        "_connect": {"create_connection", "_invoke", "_session_timeout", "hosts", "_authenticate_with_sasl", "Connect"},
        "_invoke": {"_submit", "_read"},
        "_submit": {"_write"},
        "_read_header": {"_read"},
        # each byte in the pair of sockets stands for a request, and the request counts as sent before the write
        "_send_request": {"_queue", "_submit", "popleft", "_read_sock", "recv", "_pending", "append"},
        # one answer for each call, and what ends the main loop
        "_read_socket": {"_read_header", "_read_response", "_pending"},
        "_read_response": {"CLOSE_RESPONSE", "_pending", "popleft", "_child_watchers", "_data_watchers", "add"},
        "_read_watch_event": {"_child_watchers", "_data_watchers", "pop", "extend"},
        "_read": {"_socket_error_handling", "select", "_socket", "recv", "timeout_exception", "ConnectionDropped"},
        "_write": {"_socket_error_handling", "select", "_socket", "send"},
        "start": {"create_socket_pair", "_read_sock", "_write_sock", "spawn", "zk_loop"},
        "zk_loop": {"_connect_loop", "_stopped", "retry_sleeper"},
    },
    # the session replaces the connection of a client before its start
    # requests that are queued together are queued as one request is
    KazooClient: {
        "start_async": {"_connection"},
        "_reset_watchers": {"_child_watchers", "_data_watchers"},
        "_session_callback": {"_reset_watchers"},
        "_call": {"_state", "_queue", "append", "_connection", "_write_sock"},
    },
    # a handler that cannot start its second thread stops the first
    SequentialThreadingHandler: {
        "_create_thread_worker": {"spawn"},
        "start": {"_create_thread_worker"},
        "stop": {"_running"},
    },
}
"""Methods of kazoo's, and names that their code must use for our overrides to work."""

OURS: list[type] = [
    ServerConnection,
    NamedHandler,
    WatchingClient,
    *(kind for kind in vars(security).values() if inspect.isclass(kind)),
]


def _names(owner: type, method: str) -> set[str]:
    """Return the names that a method's code uses, with those of functions inside it."""
    codes: list[CodeType] = [getattr(owner, method).__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {name for code in codes for name in code.co_names}


def _overrides() -> Iterator[tuple[type, str]]:
    """Yield kazoo's class and the name of each method that a class of ours overrides."""
    for kind in OURS:
        for base in kind.__mro__:
            if not base.__module__.startswith("zkconsumer."):
                continue
            for name, value in vars(base).items():
                if callable(value) and not (name.startswith("__") and name.endswith("__")):
                    for theirs in (ConnectionHandler, SequentialThreadingHandler, KazooClient):
                        if issubclass(base, theirs) and hasattr(theirs, name):
                            yield theirs, name


def test_the_range_of_kazoo_is_that_of_the_requirements() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    (wanted,) = re.findall(r"^kazoo(.*)$", settings["options"]["install_requires"], re.MULTILINE)
    first, behind = (".".join(map(str, end)) for end in (KAZOO_FROM, KAZOO_BEFORE))
    assert wanted == f">={first},<{behind}"
    assert f"{first}.0" == OLDEST


@pytest.mark.parametrize("other", ["2.10.0", "2.9.0", "2.12.0", "3.0.0b1", "unknown"])
def test_another_kazoo_is_refused_by_its_version(other: str) -> None:
    """Bug: with another version an import failed somewhere, with a name of kazoo's that nobody knows."""
    with pytest.raises(
        UnsupportedVersionError, match=rf"kazoo {other} is installed, .*pip install 'kazoo>=2.11,<2.12'"
    ):
        check_kazoo(other)
    check_kazoo(version("kazoo"))


def test_another_kazoo_is_told_by_the_constructor(tmp_path: Path) -> None:
    room = tmp_path / "kazoo"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "version.py").write_text('__version__ = "2.10.0"\n')
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from zkconsumer import ZookeeperConsumerConnector as C; C(group_id='g', zookeeper_connect='z')",
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert "UnsupportedVersionError: kazoo 2.10.0 is installed" in done.stderr.splitlines()[-1]


@pytest.mark.tier("all")
@pytest.mark.timeout(scaled(420))
def test_the_session_keeps_its_contract_with_the_oldest_kazoo(tmp_path: Path) -> None:
    """The suite itself runs with the installed one, which pip makes the newest."""
    if version("kazoo") == OLDEST:
        return  # the suite runs with that version
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, "--target", str(tmp_path), f"kazoo=={OLDEST}"], timeout=scaled(120), check=False)
    if done.returncode:
        pytest.skip(f"pip cannot get kazoo {OLDEST}")
    suites = ["tests/contract/test_kazoo_internals.py", "tests/contract/test_session.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        timeout=scaled(240),
        check=False,
    )
    assert done.returncode == 0


def test_each_override_has_its_row_here() -> None:
    """A new override needs a look at kazoo's method, and a row above."""
    assert set(_overrides()) == set(OVERRIDDEN)


@pytest.mark.parametrize(("owner", "name"), OVERRIDDEN, ids=lambda value: getattr(value, "__name__", value))
def test_an_overridden_method_keeps_its_signature(owner: type, name: str) -> None:
    assert str(inspect.signature(getattr(owner, name))) == OVERRIDDEN[owner, name]


@pytest.mark.parametrize("owner", USED, ids=lambda owner: owner.__name__)
def test_kazoo_still_uses_the_names(owner: type) -> None:
    missing = {method: names - _names(owner, method) for method, names in USED[owner].items()}
    assert not any(missing.values()), missing


def test_the_connection_has_the_attributes() -> None:
    """``cut``, ``local_address`` and pipelining read the sockets. An ordinary answer returns None."""
    connection = ConnectionHandler(KazooClient(), None)

    assert vars(connection).keys() >= {"_socket", "_read_sock", "client", "handler"}
    assert CLOSE_RESPONSE is not None
    assert list(inspect.signature(ConnectionHandler).parameters) == [
        *("client", "retry_sleeper", "logger", "sasl_options")
    ]


def test_what_is_replaced_has_the_attributes() -> None:
    """A refused login waits on ``_stopped``. The handler tells by a name which thread is the connection's."""
    attributes = vars(KazooClient())

    assert isinstance(attributes["_connection"], ConnectionHandler)
    assert isinstance(attributes["_stopped"], Event)
    assert vars(SequentialThreadingHandler())["_running"] is False
    assert ConnectionHandler.zk_loop.__name__ == "zk_loop"


def test_a_connection_returns_two_times_in_milliseconds() -> None:
    """The negotiated timeout is worked out from the first of them, which is two thirds of it."""
    source = inspect.getsource(getattr(ConnectionHandler, CONNECT))

    assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in source
    assert source.rstrip().endswith("return read_timeout, connect_timeout")
