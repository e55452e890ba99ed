"""Runs seeds of a scenario in forks, prints what broke, and the line that runs it again."""

from __future__ import annotations

import argparse
import asyncio  # noqa: F401 - imported before the exchange of threads, whose classes ssl and asyncio derive from
import concurrent.futures.thread  # noqa: F401
import gc
import importlib
import itertools
import json
import logging
import os
import pkgutil
import re
import secrets
import shlex
import signal
import ssl  # noqa: F401
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.simulation import known_bugs
from tests.simulation.settings import SCENARIOS, load

STEPS = 60
ONCE_FAILED = Path(__file__).with_name("once_failed.txt")  # the lines of runs that broke a promise once
_SHOWN = 100
_ENOUGH = 30  # broken promises after which a campaign ends
_LONGEST = 15.0  # seconds of computing that a run may take, and a quarter of one for each step: ten times what it takes
_clock = time.monotonic


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns its exit code: 1 if a promise was broken."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.known_bugs is not None:
        return known_bugs.main(options.known_bugs, options.most)
    _prepare()
    if options.seconds is not None:
        results = _campaign(options)
    elif options.shrink is not None:
        results = [_shortest(_options(options.shrink))]
    elif options.once_failed or options.replay is not None:
        lines = ONCE_FAILED.read_text().splitlines() if options.once_failed else [options.replay]
        lined = [_options(line) for line in lines if not line.startswith("#")]
        results = [_forked(one.seed, one) for one in lined]
    else:
        results = []
        for seed in range(options.seed, options.seed + options.seeds):
            results.append(_forked(seed, options))
            if options.stop and results[-1]["broken"]:
                break
    return _report(results, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description="Runs whole members in virtual time.")
    parser.add_argument("--seed", type=int, default=1, help="run this seed (default 1)")
    parser.add_argument("--scenario", choices=SCENARIOS, help="default: group; with --seconds, all in turn")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"virtual seconds with faults (default {STEPS})")
    parser.add_argument("--seeds", type=int, default=1, help="run so many seeds, from --seed on")
    parser.add_argument("--seconds", type=float, help="run fresh seeds for so many seconds on all cores")
    parser.add_argument("--without", type=int, nargs="*", default=[], metavar="N", help="leave these faults out")
    parser.add_argument("--replay", metavar="LINE", help="run the line that a failure printed")
    parser.add_argument("--shrink", metavar="LINE", help="look for a shorter run that breaks the same promise")
    parser.add_argument("--once-failed", action="store_true", help=f"run the lines of {ONCE_FAILED.name}")
    parser.add_argument("--twice", action="store_true", help="run each seed twice, and compare the traces")
    parser.add_argument("--trace", action="store_true", help="print the last events of a run that broke nothing, too")
    parser.add_argument("--stop", action="store_true", help="run no more seeds after a promise was broken")
    parser.add_argument("--known-bugs", nargs="*", metavar="NAME", help="look for these known bugs, or for all")
    parser.add_argument("--most", type=int, default=known_bugs.MOST, metavar="SEEDS", help="seeds for a known bug")
    return parser


def _options(line: str) -> argparse.Namespace:
    return _parser().parse_args([word for word in shlex.split(line) if word != "scripts/simulate"])


def _prepare() -> None:
    from tests.simulation import lines, sockets, threads

    lines.install()
    threads.install(sockets=sockets.Socket, create_server=sockets.Listener)
    logging.disable(logging.CRITICAL)
    for setting in SCENARIOS.values():
        for place in (setting.run_by, setting.application):
            load(place)
    importlib.import_module("pyarrow")
    # before the forks, and because two tasks must not import one module at a time
    rooms = (
        "balance",
        "cli",
        "connector",
        "core",
        "fetch",
        "kafka",
        "member",
        "offsets",
        "operations",
        "streams",
        "wiring",
    )
    for part in rooms:
        package = importlib.import_module(f"zkconsumer.{part}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)


def _start(seed: int, options: argparse.Namespace) -> tuple[int, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump(_run(seed, options), out)
        os._exit(0)
    os.close(writer)
    return child, reader


def _finish(started: tuple[int, Any], seed: int) -> dict[str, Any]:
    with os.fdopen(started[1]) as answer:
        text = answer.read()
    os.waitpid(started[0], 0)
    if not text:
        text = json.dumps({"seed": seed, "broken": "the process of the run died", "virtual": 0, "trace": []})
    found: dict[str, Any] = json.loads(text)
    return found


def _forked(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    found = _finish(_start(seed, options), seed)
    if options.twice:
        # What lies in memory differs from run to run. A trace that depends on it shows when it is made to differ.
        kept = [bytearray(secrets.randbelow(200)) for _ in range(secrets.randbelow(20_000))]
        del kept[::3]
        again = _finish(_start(seed, options), seed)
        if found["digest"] != again["digest"]:
            found["broken"] = found["broken"] or f"two runs differ: {again['digest']} is the other digest"
    return found


def _campaign(options: argparse.Namespace) -> list[dict[str, Any]]:
    end = _clock() + options.seconds
    results: list[dict[str, Any]] = []
    running: list[tuple[int, tuple[int, Any]]] = []
    turns = itertools.cycle([options.scenario] if options.scenario else SCENARIOS)

    def goes_on() -> bool:
        return _clock() < end and sum(bool(one["broken"]) for one in results) < _ENOUGH

    while goes_on() or running:
        while goes_on() and len(running) < (os.cpu_count() or 1):
            seed, options.scenario = secrets.randbits(32), next(turns)
            running.append((seed, _start(seed, options)))
        seed, started = running.pop(0)
        results.append(_finish(started, seed))
    return results


def _shortest(options: argparse.Namespace) -> dict[str, Any]:
    """Return the shortest run found that breaks the same promise: with fewer steps, then with fewer faults."""
    best = _forked(options.seed, options)
    wanted = _kind(best)
    if not wanted:
        return best
    for steps in (10, 20, 30, 40, 50):
        shorter = argparse.Namespace(**{**vars(options), "steps": steps})
        found = _forked(options.seed, shorter) if steps < options.steps else best
        if _kind(found) == wanted:
            best, options = found, shorter
            break
    for number in range(1, best["faults"] + 1):
        shorter = argparse.Namespace(**{**vars(options), "without": [*options.without, number]})
        found = _forked(options.seed, shorter)
        if _kind(found) == wanted:
            best, options = found, shorter
    return best


def _kind(found: dict[str, Any]) -> str:
    """Return the broken promise without its numbers and names."""
    return re.sub(r"\d+", "#", str(found["broken"])).partition("\n")[0][:60]


def _too_long(*_: object) -> None:
    """End a run whose tasks go on and on, also if its command is gone. The error shows the loop."""
    raise TimeoutError("the run does not end")


def _run(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    gc.disable()
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST + options.steps / 4)
    began = time.process_time()
    name = options.scenario or "group"
    scenario = load(SCENARIOS[name].run_by)(seed, options.steps, SCENARIOS[name], options.without)
    broken = ""
    try:
        scenario.run()
    except BaseException as e:
        broken = f"{type(e).__name__}: {e}"
        if not isinstance(e, AssertionError) or "-v" in sys.argv:
            broken += "\n" + "".join(traceback.format_tb(e.__traceback__)[-8:])
    world = scenario.world
    return {
        "seed": seed,
        "broken": broken,
        "line": f"scripts/simulate --seed {seed} --scenario {name} --steps {options.steps}"
        + ("" if not options.without else " --without " + " ".join(map(str, options.without))),
        "virtual": world.now - 1000,
        "cpu": time.process_time() - began,
        "faults": scenario.faults.count,
        "settled": scenario.settled,
        "commits": scenario.observer.commits,
        "messages": sum(one.handed for one in scenario.observer.partitions.values()),
        "turns": world.turns,
        "digest": f"{world.digest:08x}",
        "trace": list(world.trace)[-_SHOWN:] if broken or options.trace else [],
    }


def _report(results: list[dict[str, Any]], options: argparse.Namespace) -> int:
    broken = [one for one in results if one["broken"]]
    for one in broken if options.seconds is not None or options.once_failed else results:
        if one["trace"]:
            print("\n".join(one["trace"]))
        print(f"seed {one['seed']}: {one['broken'] or 'nothing broken'}; digest {one.get('digest', '-')}")
        if one["broken"]:
            print(one.get("line", "no line"))
    total = {
        key: sum(one.get(key, 0) for one in results) for key in ("virtual", "cpu", "faults", "commits", "messages")
    }
    settled = max((one.get("settled", 0) for one in results), default=0)
    speed = total["virtual"] / max(total["cpu"], 1e-9)
    print(
        f"{len(results)} runs, {total['virtual'] / 3600:.2f} virtual hours, {speed:.0f} virtual seconds a second,"
        f" {total['messages']} messages, {total['commits']} commits, {total['faults']} faults,"
        f" settled after {settled:.0f} s at most, {len(broken)} broken promises"
    )
    return 1 if broken else 0
