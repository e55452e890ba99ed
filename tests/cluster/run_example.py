"""Runs a Python example of the documentation in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.documents import ROOT
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark


def run_example(code: str, cluster: DevCluster, topic: str, folder: Path | None = None) -> str:
    """Run the example on this cluster and topic instead of the example's own. Return the output."""
    assert "127.0.0.1:2181" in code or "127.0.0.1:9092" in code
    for written, there in (
        ("127.0.0.1:2181", cluster.zookeeper_connect),
        ("127.0.0.1:9092", cluster.bootstrap_servers),
        ('"events"', repr(topic)),
    ):
        code = code.replace(written, there)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(Path.home()),
            "JAVA_HOME": str(java_home_for_spark()),
            "JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"],
            # Spark lists the modules of the path, and those of an editable installation are not to be listed; that it
            # finds the installed one is tested with a wheel
            "PYTHONPATH": str(ROOT / "zkconsumer" / "spark" / "discovered"),
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
