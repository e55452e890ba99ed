"""The manual clock and the sequencer of the test kit."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from tests.timing import eventually, scaled
from zkconsumer.testing import FakeZooKeeperServer, ManualClock, Sequencer


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock, seen = ManualClock(wall=1000.0), []
    clock.listen(lambda: seen.append(clock.now()))
    assert (clock.now(), clock.wall()) == (0.0, 1000.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall(), seen) == (2.5, 1002.5, [2.5])
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_threads_pass_the_points_in_the_given_order() -> None:
    order: list[str] = []
    with Sequencer("a", "b", "c", timeout=scaled(10)) as sequencer:

        def late() -> None:
            sequencer.reach("b")
            order.append("b")
            sequencer.reach("c")

        thread = threading.Thread(target=late, name="late")
        thread.start()
        order.append("a")
        sequencer.reach("a")
        sequencer.wait_for("c")
        thread.join(scaled(10))
    assert order == ["a", "b"]
    assert sequencer.reached == ("a", "b", "c")


def test_a_point_that_nobody_reaches_is_named() -> None:
    sequencer = Sequencer("a", "b", timeout=0.01)
    with pytest.raises(TimeoutError, match="'b' waits, but 'a' was not reached"):
        sequencer.reach("b")
    with pytest.raises(AssertionError, match="never reached: a, b"), sequencer:
        pass
    sequencer.reach("a")
    with pytest.raises(ValueError, match="reached before"):
        sequencer.reach("a")
    with pytest.raises(ValueError, match="none of"):
        sequencer.reach("z")
    with pytest.raises(ValueError, match="twice"):
        Sequencer("a", "a")


def test_an_ended_session_makes_no_ephemeral_node() -> None:
    text = lambda value: struct.pack(">i", len(value)) + value  # noqa: E731
    with FakeZooKeeperServer() as server:
        with socket.create_connection(("127.0.0.1", server.port), scaled(10)) as client:
            client.sendall(text(struct.pack(">iqiq", 0, 0, 60_000, 0) + text(bytes(16))))
            assert client.recv(1000)
            (session,) = server._sessions.values()
            heard = session.heard
            acl = struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone")
            with server.order:  # the request is taken in, and its turn comes after the session's end
                client.sendall(text(struct.pack(">ii", 1, 1) + text(b"/ours") + text(b"") + acl + struct.pack(">i", 1)))
                eventually(lambda: session.heard > heard, 10, "the request")
                assert server.expire() == 1
            assert client.recv(1000) == b"", "nobody is answered any more"
        assert server.zookeeper.node("/ours") is None
