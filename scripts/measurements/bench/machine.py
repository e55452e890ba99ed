"""The machine and versions of a measurement, and the cost of a process, read from /proc (Linux)."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from zkconsumer.devcluster import java
from zkconsumer.version import DATA_PLANE

_TICKS = os.sysconf("SC_CLK_TCK")
_ROOT = Path(__file__).resolve().parents[3]


def describe() -> dict[str, Any]:
    """Machine, versions and time, for the head of a report."""
    import confluent_kafka

    names = ("zkconsumer", "kazoo", "confluent-kafka", "pyspark", "pyarrow")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no", "zkconsumer")),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int((_first("/proc/meminfo", "MemTotal") or "0").split()[0]) // 1024,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "librdkafka": confluent_kafka.libversion()[0],
        **{name: _version(name) for name in names},
        "data_plane": DATA_PLANE,
    }


def load() -> float:
    """The load average of the last minute: how busy the machine is besides us."""
    return round(os.getloadavg()[0], 2)


def cpu_seconds(pid: int) -> float | None:
    """CPU time that all threads of a process have used, None where the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mib(pid: int, *, peak: bool = False) -> float | None:
    """Resident memory of a process in MiB, now or at its peak; None where the process is gone."""
    text = _first(f"/proc/{pid}/status", "VmHWM" if peak else "VmRSS")
    return None if text is None else round(int(text.split()[0]) / 1024, 1)


class Tree(NamedTuple):
    """A process and all that it started: CPU time that they and their ended children used, how much of it was that of
    JVMs, and resident memory together.
    """

    cpu_seconds: float
    java_seconds: float
    resident_mib: float


def tree(pid: int) -> Tree:
    """Return the cost so far of a process and its descendants. Pages that they share count for each of them."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    java: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields, number = rest.split(), int(folder.name)
        children.setdefault(int(fields[1]), []).append(number)
        own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        seconds[number] = (own + ended) / _TICKS
        if head.endswith("(java"):
            java[number] = own / _TICKS
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, ()))
    resident = sum(resident_mib(one) or 0.0 for one in found)
    used, of_java = (sum(of.get(one, 0.0) for one in found) for of in (seconds, java))
    return Tree(used, of_java, resident)


def _first(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, cwd=_ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> str:
    return subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=30).stderr.splitlines()[0]
