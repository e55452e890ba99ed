"""Runs one server and ends it when its owner is gone, however the owner went.

Responsible for exactly one child: it is started, its process id reported, signals passed on, and its whole process
group killed once the owner's end of our standard input closes. A pipe closes by itself when its owner exits, crashes
or is killed with SIGKILL, so no handler in the owner has to run. Started as a plain file
(``python -I -S launcher.py``), standard library only: it costs a few MB and milliseconds for each server.

Why not ``PR_SET_PDEATHSIG`` from the owner alone: it is Linux only, and it fires when the *thread* that forked ends,
which for an owner that starts servers from a worker thread is far too early. This process has one thread, so here
the same call is sound and is used, where it exists, for the case that the launcher itself is killed.

Protocol: each request is one byte on standard input (``T`` SIGTERM, ``K`` SIGKILL, ``S`` SIGSTOP, ``C`` SIGCONT) and
is answered with one line once the signal was sent. The first line written is the child's process id.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
from pathlib import Path

SIGNALS = {b"T": signal.SIGTERM, b"K": signal.SIGKILL, b"S": signal.SIGSTOP, b"C": signal.SIGCONT}
_PR_SET_PDEATHSIG = 1
_OWNER_CHECK_S = 0.5


def _die_with_launcher() -> None:
    """Between fork and exec of the child, on Linux: be killed when the launcher is."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _start(command: list[str], log: str, output: int | None) -> subprocess.Popen[bytes]:
    with Path(log).open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file if output is None else output,
            stderr=file,
            start_new_session=True,  # so that a Ctrl-C meant for the owner does not reach the server first
            preexec_fn=_die_with_launcher if sys.platform == "linux" else None,
        )


def _say(line: str) -> None:
    """Answer the owner; an owner that is gone has no use for answers and is noticed by its closed pipe."""
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:
        pass


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    if child.returncode is None:  # not reaped yet, so the id cannot have been given to another process
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass


def _serve(child: subprocess.Popen[bytes], owner: int) -> bool:
    """Pass signals on until the child ends (True) or the owner does (False)."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while child.poll() is None:
            ready = [key.fd for key, _ in selector.select(_OWNER_CHECK_S)]
            # What the owner forked may hold the pipe open after the owner's death: being orphaned says it too.
            if os.getppid() != owner:
                return False
            if woken in ready:
                os.read(woken, 4096)
            if 0 in ready:
                requests = os.read(0, 64)
                if not requests:
                    return False
                for request in requests:
                    _signal_group(child, SIGNALS[bytes([request])])
                    _say("sent")
    return True


def main() -> int:
    """Run the command given after the options. Returns its exit code, or 143 when the owner was gone."""
    parser = argparse.ArgumentParser(description="run a server that ends with its owner")
    parser.add_argument("--owner", type=int, required=True, help="process id of the owner")
    parser.add_argument("--log", required=True, help="file that gets the server's output")
    parser.add_argument("--output", type=int, help="descriptor for its standard output, in place of the log")
    parser.add_argument("--remove", action="append", default=[], help="directory to remove when the owner is gone")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    child = _start(arguments.command, arguments.log, arguments.output)
    if arguments.output is not None:
        os.close(arguments.output)  # so that its reader sees the end when the child ends
    owned = True
    try:
        _say(str(child.pid))
        owned = _serve(child, arguments.owner)
    except KeyboardInterrupt:  # SIGTERM, see above: somebody ends the server, the owner may still want its data
        pass
    finally:
        _signal_group(child, signal.SIGKILL)
        child.wait()
        if not owned:
            for directory in arguments.remove:
                shutil.rmtree(
                    directory, ignore_errors=True
                )  # of a cluster's directory each server's launcher does this
    return child.returncode if owned else 143


if __name__ == "__main__":
    sys.exit(main())
