"""A process that joins a group as a balanced member: it calls ``run`` with ``concurrency``, and records its handlers.

Its arguments are ``name=value``. Those that begin with ``member.`` are its own: ``directory``, ``name``, ``topics``,
``concurrency``, ``order``, ``executor``, ``batch``, ``retry`` in JSON, and ``whitelist``, a filter in place of topics.
All others are properties of the connector. SIGTERM is a clean end.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[3])
PAUSE_S = 0.02


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    pairs = dict(argument.split("=", 1) for argument in arguments)
    own = {name.removeprefix("member."): value for name, value in pairs.items() if name.startswith("member.")}
    properties = {name: value for name, value in pairs.items() if not name.startswith("member.")}
    # process workers inherit these
    os.environ["ZKCONSUMER_TEST_DIRECTORY"] = own["directory"]
    os.environ["ZKCONSUMER_TEST_MEMBER"] = own["name"]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, ROOT)
    run(own, properties)


def run(own: dict[str, str], properties: dict[str, str]) -> None:
    from tests.cluster import balanced_handler
    from zkconsumer import Whitelist, ZookeeperConsumerConnector
    from zkconsumer.balance.retry_policy import Retry

    connector: Any = ZookeeperConsumerConnector(properties)
    balanced_handler.prepare(lambda: session_of(connector)[0])
    threading.Thread(target=watch, args=(connector, own), name="watch", daemon=True).start()
    more: dict[str, Any] = {"batch": int(own["batch"])} if "batch" in own else {}
    if "retry" in own:
        more["retry"] = Retry(**json.loads(own["retry"]))
    executor = own.get("executor", "threads")
    handler: Any = balanced_handler.handle_soon if executor == "asyncio" else balanced_handler.handle
    topics: Any = own["topics"].split(",")
    if "whitelist" in own:
        topics = Whitelist(own["whitelist"])
    connector.run(
        handler,
        topics,
        concurrency=int(own.get("concurrency", "8")),
        order=own.get("order", "key"),
        executor=executor,
        stop_on=(signal.SIGTERM,),
        **more,
    )
    print("end 0 0 0", flush=True)


def session_of(connector: Any) -> tuple[int, bytes]:
    """Return the id and password of the connector's session in ZooKeeper; the id is 0 if it has none."""
    from tests.internals import find_kazoo_client, find_member

    member = find_member(connector)
    client = None if member is None else find_kazoo_client(member.coordination.session)
    return (0, b"") if client is None or client.client_id is None else client.client_id


def watch(connector: Any, own: dict[str, str]) -> None:
    """Say when the member has joined, and tell workers of its session and the test of its state."""
    directory, name = Path(own["directory"]), own["name"]
    ready, told, state = False, -1, ""
    pause = threading.Event()
    while not pause.wait(PAUSE_S):
        (now, password), text = session_of(connector), str(connector.state)
        if now != told:
            replace(directory / f"{name}.session", f"{now} {password.hex()}")
            told = now
        if text != state:
            replace(directory / f"{name}.state", text)
            state = text
        if now and not ready:
            ready = True
            print("ready", flush=True)


def replace(path: Path, text: str) -> None:
    """Write a file that others read at any time."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
