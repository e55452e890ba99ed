"""The jars of the embedded cluster: fetched from Maven Central once, into the cache.

``checksums.txt`` lists the jars of the sets of coordinates that this package and its tests use. Such jars are fetched
by their paths. Apache Ivy, itself such a jar, resolves other coordinates. So a machine needs neither Maven nor sbt.
Each set of coordinates has a directory in the cache. A rename puts a complete directory there, so an interrupted
download leaves no half directory. A lock file prevents two processes from resolving at once. Each use compares the jars
with their checksums. Functions only, callable from any thread. They block until they are done or the deadline is over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from xml.sax.saxutils import quoteattr

from zkconsumer.devcluster import maven_repository
from zkconsumer.devcluster.cluster_errors import JarResolutionError
from zkconsumer.devcluster.download_cache import cache_directory, locked
from zkconsumer.devcluster.java_home import is_bundled, java
from zkconsumer.devcluster.maven_repository import (
    Checksum,
    file_name,
    pinned_sets,
    proxy_options,
    repository_settings,
    trust_options,
)
from zkconsumer.runtime.deadline import Deadline

RESOLVE_TIMEOUT_S = 900.0
_LAYOUT = "1"  # part of every directory's name: raise it when the content of the directories changes
_FILE_NAME = "[artifact]-[revision](-[classifier]).[ext]"
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+\Z")
Progress = Callable[[str], None]
"""Called with a short text. A text that ends with a newline is the last about this work."""
_Fill = Callable[[Path, Progress, Deadline], Mapping[str, Checksum]]
_IVY = "org.apache.ivy:ivy:2.5.3"
_QUIET_S = 10.0


def resolve(
    *coordinates: str,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    deadline: Deadline | float = RESOLVE_TIMEOUT_S,
) -> list[Path]:
    """Return the jars of Maven modules and of all their runtime dependencies, sorted by name.

    Arguments: ``coordinates`` as "group:artifact:version". ``exclude`` as "group:artifact": these and their own
    dependencies are left out. ``progress`` is called with short texts (default: lines on stderr). ``deadline`` is in
    seconds. With a full cache, this only reads the jars, once in a process.

    Raises: JarResolutionError, also for a jar with a wrong checksum; JavaNotFoundError for a set that is not pinned;
    ValueError for a malformed coordinate.
    """
    if not coordinates:
        return []
    for coordinate in coordinates:
        if not _COORDINATE.match(coordinate):
            raise ValueError(f"not of the form group:artifact:version: {coordinate!r}")
    excluded = sorted(exclude)
    deadline = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
    root = cache_directory() / "jars"
    target = root / directory_name(coordinates, excluded)
    known = _known(target)
    if known is None:
        report, pins = progress or on_stderr(), pinned_sets().get(target.name)
        if pins is not None:
            fill = partial(_fetch, pins, target)
        else:
            (ivy,) = resolve(_IVY, progress=report, deadline=deadline)  # before the lock, which each set takes
            fill = partial(_ask_ivy, ivy, coordinates, excluded)
        report(f"fetching {' '.join(coordinates)} from Maven (once)")
        try:
            with locked(root / ".lock", deadline):
                # another process may have resolved it while we waited
                known = _known(target) or _make(target, fill, report, deadline)
        except TimeoutError as late:
            raise JarResolutionError(f"{' '.join(coordinates)}: {late}") from late
        except OSError as error:
            raise JarResolutionError(
                f"{' '.join(coordinates)} cannot be kept in the cache: {error}. ZKCONSUMER_CACHE names another folder."
            ) from error
    maven_repository.verify(target, known)
    return [target / name for name in sorted(known)]


def _known(target: Path) -> Mapping[str, Checksum] | None:
    """Return the jars of a cached directory with their checksums. None if something is missing."""
    known = maven_repository.expected(target) if target.is_dir() else None
    wanted = set(map(file_name, pinned_sets().get(target.name, ())))
    return known if known is not None and known.keys() >= wanted else None


def directory_name(coordinates: Sequence[str], excluded: Sequence[str]) -> str:
    """Return a readable name, unique for its contents. The order of coordinates does not matter."""
    key = "|".join([_LAYOUT, *sorted(coordinates), *(f"-{name}" for name in excluded)])
    _, artifact, version = coordinates[0].split(":")
    return f"{artifact}-{version}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def _ivy_file(coordinates: Sequence[str], excluded: Sequence[str]) -> str:
    wanted = []
    for coordinate in coordinates:
        group, artifact, version = map(quoteattr, coordinate.split(":"))
        wanted.append(f'<dependency org={group} name={artifact} rev={version} conf="default->default"/>')
    left_out = []
    for name in excluded:
        group, artifact = map(quoteattr, name.split(":"))
        left_out.append(f"<exclude org={group} module={artifact}/>")
    return (
        '<ivy-module version="2.0"><info organisation="zkconsumer" module="resolve"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(wanted)}{''.join(left_out)}</dependencies></ivy-module>"
    )


def _ivy_command(ivy: Path, work: Path, settings: Path | None) -> list[str]:
    executable = java()
    return [
        str(executable),
        "-Xmx256m",
        *proxy_options(),
        *(trust_options(work) if is_bundled(executable) else ()),
        "-jar",
        str(ivy),
        *(["-settings", str(settings)] if settings else []),
        *("-cache", str(cache_directory() / "ivy")),
        *("-ivy", str(work / "ivy.xml")),
        *("-confs", "default"),
        *("-retrieve", str(work / "maven" / "[organisation]/[module]/[revision]" / _FILE_NAME)),
        *("-types", "jar", "bundle"),
    ]


def _make(target: Path, fill: _Fill, report: Progress, deadline: Deadline) -> Mapping[str, Checksum]:
    """Make a directory of the cache from the jars that ``fill`` brings. Return their checksums."""
    for abandoned in target.parent.glob(".resolving-*"):  # we hold the lock, so a killed process left these
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".resolving-") as name:
        work = Path(name)
        known = fill(work, report, deadline)
        maven_repository.verify(work / "jars", known)
        _share_disk(work / "jars", cache_directory() / "ivy")
        if target.is_dir():  # an older release made the directory without checksums, or someone changed it
            target.rename(work / "replaced")
        (work / "jars").rename(target)
        size = sum(jar.stat().st_size for jar in target.glob("*.jar"))
        report(f"fetched {len(known)} jars, {size / 1e6:.0f} MB, into {target}\n")
    return known


def _fetch(
    pins: Mapping[str, Checksum], target: Path, work: Path, report: Progress, deadline: Deadline
) -> Mapping[str, Checksum]:
    """Fetch the files of a pinned set into ``work/jars``. Files in the cache are taken from there."""
    jars = work / "jars"
    jars.mkdir()
    missing = {path: sum_ for path, sum_ in pins.items() if not _found(path, sum_, target.parent, jars)}
    for number, _ in enumerate(maven_repository.download(missing, jars, deadline, by_hand=target), 1):
        report(f"downloading: {number} of {len(missing)} jars")
    return {file_name(path): sum_ for path, sum_ in pins.items()}


def _found(path: str, wanted: Checksum, root: Path, jars: Path) -> bool:
    """Copy a file from a directory of the cache, where a user may have put it. Return whether one has this digest."""
    name = file_name(path)
    for there in root.glob(f"*/{name}"):
        if maven_repository.has(there, wanted):
            shutil.copyfile(there, jars / name)
            return True
    return False


def _ask_ivy(
    ivy: Path, coordinates: Sequence[str], excluded: Sequence[str], work: Path, report: Progress, deadline: Deadline
) -> Mapping[str, Checksum]:
    """Let Ivy resolve coordinates and fetch their jars into ``work/jars``."""
    (work / "ivy.xml").write_text(_ivy_file(coordinates, excluded))
    settings = repository_settings()
    if settings is not None:
        (work / "settings.xml").write_text(settings)
    command = _ivy_command(ivy, work, work / "settings.xml" if settings is not None else None)
    tail = _run(command, _IvyLines(report), deadline)
    if tail is not None or not any((work / "maven").glob("*/*/*/*.jar")):
        said = "\n".join(tail or ["it brought no jars"])
        raise JarResolutionError(f"cannot fetch {' '.join(coordinates)}. The resolver said:\n{said}")
    return _gather(work / "maven", work / "jars", deadline)


def _gather(maven: Path, jars: Path, deadline: Deadline) -> Mapping[str, Checksum]:
    """Move the jars from Ivy's folders into one, and record the published checksums of jars that are not pinned."""
    jars.mkdir()
    places: dict[str, str] = {}
    for jar in sorted(maven.glob("*/*/*/*.jar")):
        group, artifact, version, name = jar.relative_to(maven).parts
        path = "/".join([*group.split("."), artifact, version, name])
        if name in places:
            raise JarResolutionError(f"{places[name]} and {path} have the same file name")
        places[name] = path
        jar.rename(jars / name)
    report = {path: jars / name for name, path in places.items() if name not in maven_repository.pinned()}
    if report:
        told = maven_repository.published(report, deadline)
        (jars / maven_repository.RECORD).write_text(maven_repository.render(told))
    return maven_repository.expected(jars) or {}


class _IvyLines:
    """The output of Ivy: reports progress, and keeps the last lines to explain a failure."""

    def __init__(self, report: Progress) -> None:
        self.report = report
        self.found = 0
        self.loaded = 0
        self.tail: list[str] = []

    def __call__(self, line: str) -> None:
        if line.startswith("found "):
            self.found += 1
            self.report(f"resolving: {self.found} modules")
        elif "[SUCCESSFUL ]" in line:
            self.loaded += 1
            self.report(f"downloading: {self.loaded} of {self.found} jars")
        elif line and not line.startswith((".", "downloading ", "--", "|")):
            self.tail = [*self.tail[-19:], line]


def _run(command: Sequence[str], each_line: _IvyLines, deadline: Deadline) -> list[str] | None:
    """Run Ivy. Return None, or its last lines after a failure."""
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        assert ivy.stdout is not None
        reader = threading.Thread(target=_read_lines, args=(ivy.stdout, lines.put), name="zkconsumer-ivy", daemon=True)
        reader.start()
        try:
            while (line := lines.get(timeout=deadline.remaining())) is not None:
                each_line(line)
            code = ivy.wait(deadline.remaining())
        except (queue.Empty, subprocess.TimeoutExpired):
            each_line.tail.append("(it was ended because it took too long)")
            code = -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                ivy.kill()
            reader.join()
    return each_line.tail if code != 0 else None


def _read_lines(stream: Iterable[str], put: Callable[[str | None], None]) -> None:
    for line in stream:
        put(line.strip())
    put(None)


def _share_disk(jars: Path, cache: Path) -> None:
    """Replace the copies by hard links to Ivy's own files. The copies would take another 46 MB."""
    for jar in jars.glob("*.jar"):
        originals = [o for o in cache.glob(f"*/*/*/{jar.name}") if o.stat().st_size == jar.stat().st_size]
        if len(originals) == 1:
            link = jar.with_suffix(".link")
            with contextlib.suppress(OSError):
                os.link(originals[0], link)
                link.replace(jar)


def forget(*coordinates: str, exclude: Iterable[str] = ()) -> None:
    """Remove a set of jars from the cache. The next ``resolve`` fetches it again."""
    shutil.rmtree(cache_directory() / "jars" / directory_name(coordinates, sorted(exclude)), ignore_errors=True)


def on_stderr() -> Progress:
    """Return a reporter for one piece of work, to be used by one thread.

    In a terminal it rewrites one line. Elsewhere it writes a line now and then.
    """
    last = -_QUIET_S
    rewrite = sys.stderr is not None and sys.stderr.isatty()

    def report(text: str) -> None:
        nonlocal last
        if sys.stderr is None:
            return
        done = text.endswith("\n")
        if rewrite:
            sys.stderr.write(f"\r\x1b[K{text}")
        elif done or monotonic() - last >= _QUIET_S:
            last = monotonic()
            sys.stderr.write(f"{text.rstrip()}\n")
        sys.stderr.flush()

    return report
