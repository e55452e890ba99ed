"""A PostgreSQL server of our own, from the server programs that the machine has. Ours is never the system's server."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.timing import scaled
from zkconsumer.devcluster.server_process import free_port

DEBIAN = Path("/usr/lib/postgresql")
UNPRIVILEGED = ("postgres", "nobody")
"""Users to run the server as in place of root, as whom it refuses to run."""


def programs() -> Path | None:
    """Return the folder with ``initdb`` and ``pg_ctl``; None if there is none."""
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    name = shutil.which("initdb")
    return None if name is None else Path(name).parent


def why_none() -> str:
    """Return why no server can run here, in words; empty if it can."""
    if programs() is None:
        return "no programs of a PostgreSQL server (Debian: apt-get install postgresql)"
    if os.getuid() == 0 and _user() is None:
        return f"PostgreSQL does not run as root, and there is none of the users {UNPRIVILEGED}"
    return ""


def _user() -> pwd.struct_passwd | None:
    for name in UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class Server:
    """One server in a folder of its own, which trusts every local connection."""

    def __init__(self, folder: Path, bin_folder: Path, user: pwd.struct_passwd | None) -> None:
        self._data = folder / "data"
        self._log = folder / "log"
        self._bin = bin_folder
        self._user = user
        self.port = free_port()  # one that no outgoing connection takes while the database is made
        self._options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self.address = f"host=127.0.0.1 port={self.port} user=tests dbname=postgres connect_timeout={scaled(10):.0f}"

    def _run(self, program: str, *arguments: str) -> None:
        with self._log.open("ab") as out:
            done = subprocess.run(
                [str(self._bin / program), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=scaled(60),
                check=False,
                cwd=self._data.parent,
                user=None if self._user is None else self._user.pw_uid,
                group=None if self._user is None else self._user.pw_gid,
                extra_groups=None if self._user is None else [],
            )
        assert done.returncode == 0, self._log.read_text(errors="replace")

    def make(self) -> None:
        """Make the database."""
        self._run("initdb", "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._run("pg_ctl", "-w", "-o", self._options, "-l", str(self._data / "server.log"), "start")

    def stop(self) -> None:
        """Stop the server, and break all connections."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Run a server. :func:`why_none` must be empty."""
    bin_folder, user = programs(), _user() if os.getuid() == 0 else None
    assert bin_folder is not None
    folder = Path(tempfile.mkdtemp(prefix="zkconsumer-postgres-"))
    try:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        made = Server(folder, bin_folder, user)
        made.make()
        made.start()
        try:
            yield made
        finally:
            with contextlib.suppress(AssertionError):  # a test may have stopped it
                made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
