"""A chroot of a real ZooKeeper where a test may change the cluster's nodes."""

from __future__ import annotations

from kazoo.client import KazooClient

from tests.cluster.conftest import unique


class Chroot:
    """A chroot with copies of the real cluster's nodes."""

    def __init__(self, client: KazooClient, connect: str) -> None:
        self._client = client
        self._root = f"/{unique('hostile')}"
        self.connect = connect + self._root
        self.copy("/brokers/ids/0")

    def copy(self, path: str) -> None:
        """Copy one node of the real cluster, over the present one."""
        self.put(path, self._client.get(path)[0])

    def put(self, path: str, data: bytes) -> None:
        """Write a node, whether it exists or not."""
        if self._client.exists(self._root + path):
            self._client.set(self._root + path, data)
        else:
            self._client.create(self._root + path, data, makepath=True)

    def get(self, path: str) -> bytes | None:
        """Return the content of a node, or None."""
        return self._client.get(self._root + path)[0] if self._client.exists(self._root + path) else None

    def delete(self, path: str) -> None:
        """Delete a node."""
        self._client.delete(self._root + path)

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets by partition."""
        base = f"/consumers/{group}/offsets/{topic}"
        return {
            int(name): int(self.get(f"{base}/{name}") or b"") for name in self._client.get_children(self._root + base)
        }
