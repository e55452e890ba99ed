"""``zkconsumer timeline --follow`` on a real ZooKeeper: it ends with the program that reads its output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from tests.timing import scaled
from zkconsumer.devcluster import DevCluster


def test_a_closed_pipe_ends_the_follower(cluster: DevCluster, new_group: Callable[[], str]) -> None:
    """Nothing happens in the group, so the command writes nothing, and must notice all the same."""
    group = new_group()
    command = [sys.executable, "-m", "zkconsumer", "timeline", group, "--zookeeper", cluster.zookeeper_connect]
    reading, writing = os.pipe()
    process = subprocess.Popen([*command, "--follow"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    try:
        assert process.wait(scaled(30)) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
