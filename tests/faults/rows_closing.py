"""Rows about ``close()``: in every state a shutdown returns within five seconds and leaves nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tests.faults.group import Group, sleep
from tests.faults.lab import Lab, Report, row
from tests.timing import eventually

NAMES = ("a", "b", "c", "d")
HOW = ("main", "thread", "twice", "callback", "handler")


@row("close", "close() at random moments of everything else")
def everywhere(lab: Lab, report: Report) -> None:
    conditions: dict[str, Callable[[Lab, Group], contextlib.AbstractContextManager[None]]] = {
        "nothing": _nothing,
        "a rebalance": _rebalance,
        "a black hole": _black_hole,
        "a reset link": _reset,
        "a slow link": _slow,
        "a silent broker link": _silent_broker,
        "zookeeper stopped": _no_zookeeper,
        "zookeeper silent": _silent_zookeeper,
        "brokers killed": _no_brokers,
        "a broker silent": _suspended_broker,
        "a blocked handler": _blocked,
        "an expiry": _expiry,
    }
    closes = 0
    with lab.group("close", properties={"rebalance.max.retries": 20}) as group:
        for number in range(lab.timing.times(len(conditions), 4 * len(conditions))):
            name = list(conditions)[number % len(conditions)]
            for absent in [name for name in NAMES if name not in group.members]:
                group.join(absent, linked=True, ready=False, main_reads=absent == "d")
            for member in list(group.members.values()):
                member.wait_for("ready", 60)
            group.settle(60)
            fault = group.fault(name)
            with conditions[name](lab, group):
                sleep(group.random.uniform(0.0, 1.5 * lab.timing.session if number % 2 else 0.3))
                closes += _close_all(group)
            fault.healed()
        for member in list(group.members.values()):
            group.leave(member)
        group.drain(1)
        group.watcher.kill()
        # who commits what where nothing can be written is not this row's matter, nor what comes again by it
        verdict, _ = group.judge(lab.rules(ordered=False, bound=float("inf"), anew=frozenset(conditions)))
        verdict.violations = [text for text in verdict.violations if not text.startswith(("I2", "I4"))]
        verdict.lost.clear()
        report.verdict = verdict
    report.tell(f"{closes} closes, the slowest {max(verdict.closes):.2f} s")


def _close_all(group: Group) -> int:
    """End all members except ``a``, each in another way and at another moment."""
    leaving = [group.members[name] for name in NAMES[1:]]
    for member in leaving:
        how = "handler" if member.name == "d" else group.random.choice(HOW[:4])
        if how == "handler":
            member.terminate()
        else:
            member.tell("close", where=how)
            if how == "callback":
                sleep(0.1)
                member.terminate()  # which releases, and so calls the listener
        sleep(group.random.uniform(0.0, 0.3))
    for member in leaving:
        group.gone(member)
    return len(leaving)


@contextlib.contextmanager
def _nothing(lab: Lab, group: Group) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _rebalance(lab: Lab, group: Group) -> Iterator[None]:
    group.gone(group.members["a"], tell=True)
    yield


@contextlib.contextmanager
def _links(group: Group, **how: object) -> Iterator[None]:
    for links in group.links.values():
        getattr(links.zookeeper, str(how["do"]))(*how.get("arguments", ()))  # type: ignore[misc]
    yield
    for links in group.links.values():
        links.zookeeper.carry()


def _black_hole(lab: Lab, group: Group) -> contextlib.AbstractContextManager[None]:
    return _links(group, do="swallow")


def _reset(lab: Lab, group: Group) -> contextlib.AbstractContextManager[None]:
    return _links(group, do="drop")


def _slow(lab: Lab, group: Group) -> contextlib.AbstractContextManager[None]:
    return _links(group, do="carry", arguments=(lab.timing.session / 4,))


@contextlib.contextmanager
def _silent_broker(lab: Lab, group: Group) -> Iterator[None]:
    for links in group.links.values():
        for proxy in links.brokers.values():
            proxy.swallow()
    yield
    for links in group.links.values():
        for proxy in links.brokers.values():
            proxy.carry()


@contextlib.contextmanager
def _no_zookeeper(lab: Lab, group: Group) -> Iterator[None]:
    lab.cluster.zookeeper.kill()
    yield
    lab.cluster.zookeeper.start()


@contextlib.contextmanager
def _silent_zookeeper(lab: Lab, group: Group) -> Iterator[None]:
    lab.cluster.zookeeper.suspend()
    yield
    lab.cluster.zookeeper.resume()


@contextlib.contextmanager
def _no_brokers(lab: Lab, group: Group) -> Iterator[None]:
    for broker in lab.cluster.brokers:
        broker.kill()
    yield
    for broker in lab.cluster.brokers:
        broker.start()


@contextlib.contextmanager
def _suspended_broker(lab: Lab, group: Group) -> Iterator[None]:
    lab.cluster.brokers[0].suspend()
    yield
    lab.cluster.brokers[0].resume()


@contextlib.contextmanager
def _blocked(lab: Lab, group: Group) -> Iterator[None]:
    blocked = [group.members[name] for name in ("b", "c")]
    for member in blocked:
        member.tell("befall", what="block", seconds=2.0)
    for member in blocked:
        eventually(lambda m=member: m.tail.last("befallen"), 10, "a blocked handler")  # type: ignore[misc]
    yield


@contextlib.contextmanager
def _expiry(lab: Lab, group: Group) -> Iterator[None]:
    for name in ("b", "c"):
        group.expire(group.members[name])
    yield
