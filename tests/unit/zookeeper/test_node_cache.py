"""Nodes are decoded once for each content."""

from __future__ import annotations

from dataclasses import replace

from zkconsumer.errors import MalformedNodeError
from zkconsumer.zookeeper.node_cache import DecodedNodes
from zkconsumer.zookeeper.node_values import FORBIDDEN, Node

NODE = Node(b"7", 0, 1, 1, 5)


class Numbers:
    """Decodes numbers, and counts how often."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, data: bytes, path: str) -> int:
        self.asked.append(path)
        if not data.isdigit():
            raise MalformedNodeError(path, "no number")
        return int(data)


def test_what_did_not_change_is_not_decoded_again() -> None:
    numbers = Numbers()
    decoded = DecodedNodes(numbers)
    nodes = {"/a": NODE, "/b": replace(NODE, data=b"x"), "/c": None, "/d": FORBIDDEN}
    for _ in range(2):
        values, reasons = decoded.of(nodes)
        assert values == {"/a": 7}
        assert reasons == {"/b": "no number", "/d": "no number"}
        nodes = {path: None if node is None else replace(node) for path, node in nodes.items()}  # as if read anew
    assert numbers.asked == ["/a", "/b", "/d"]
    assert decoded.of({"/a": replace(NODE, data=b"8", version=1, mzxid=2)}) == ({"/a": 8}, {})


def test_other_content_under_the_same_numbers_is_decoded() -> None:
    """A ZooKeeper whose data was lost counts its transactions from the start again."""
    decoded = DecodedNodes(Numbers())
    decoded.of({"/a": NODE})
    assert decoded.of({"/a": replace(NODE, data=b"8")}) == ({"/a": 8}, {})


def test_what_is_not_asked_for_any_more_is_forgotten() -> None:
    numbers = Numbers()
    decoded = DecodedNodes(numbers)
    decoded.of({"/a": NODE, "/b": NODE})
    decoded.of({"/b": NODE})
    decoded.of({"/a": NODE, "/b": NODE})
    assert numbers.asked == ["/a", "/b", "/a"]
