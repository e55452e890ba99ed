"""The launcher of one server process: runs the server, and ends it when the owner exits, crashes or is killed.

It starts one child, reports its process id and passes signals on. It kills the child's process group once the owner's
end of standard input closes. The kernel closes that pipe when the owner exits, crashes or is killed with SIGKILL, so no
handler in the owner has to run. The launcher runs as a plain file (``python -I -S launcher.py``) with the standard
library only, so it costs a few MB and milliseconds for each server.

``PR_SET_PDEATHSIG`` in the owner would not do. It exists on Linux only, and it fires when the forking *thread* ends. An
owner may start servers from a worker thread, which ends far too early. This process has one thread, so here the call is
sound. It kills the child if the launcher itself is killed.

Protocol: each request is one byte on standard input (``T`` SIGTERM, ``K`` SIGKILL, ``S`` SIGSTOP, ``C`` SIGCONT). The
answer is one line, written once the signal was sent, and after SIGSTOP once all threads of the child have stopped (on
macOS not before Python 3.13). The first line of output is the child's process id.
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
import time
from pathlib import Path

SIGNALS = {b"T": signal.SIGTERM, b"K": signal.SIGKILL, b"S": signal.SIGSTOP, b"C": signal.SIGCONT}
_PR_SET_PDEATHSIG = 1
_OWNER_CHECK_S = 0.5
_STOP_WITHIN_S = 5.0


def _die_with_launcher() -> None:
    """Ask Linux to kill this process when the launcher ends. Runs between the child's fork and exec."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _start(command: list[str], log: str, output: int | None) -> subprocess.Popen[bytes]:
    with Path(log).open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file if output is None else output,
            stderr=file,
            start_new_session=True,  # otherwise a Ctrl-C for the owner would reach the server first
            preexec_fn=_die_with_launcher if sys.platform == "linux" else None,
        )


def _say(line: str) -> None:
    """Answer the owner. A failure is ignored, because the closed pipe tells that the owner is gone."""
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:
        pass


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    if child.returncode is None:  # not reaped yet, so no other process has the child's id
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass


def _wait_until_stopped(child: subprocess.Popen[bytes]) -> None:
    """Wait until all threads of the child have stopped, or the child has ended.

    The kernel stops one thread after another. Meanwhile a server may answer one request more. Does not wait where
    there is no ``waitid``.
    """
    end = time.monotonic() + _STOP_WITHIN_S
    while child.returncode is None and hasattr(os, "waitid") and time.monotonic() < end:
        if os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)


def _serve(child: subprocess.Popen[bytes], owner: int) -> bool:
    """Pass signals on. Return True when the child ends, False when the owner does."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while child.poll() is None:
            ready = [key.fd for key, _ in selector.select(_OWNER_CHECK_S)]
            # A process that the owner forked may hold the pipe open after the owner's death. A new parent shows it too.
            if os.getppid() != owner:
                return False
            if woken in ready:
                os.read(woken, 4096)
            if 0 in ready:
                requests = os.read(0, 64)
                if not requests:
                    return False
                for request in requests:
                    number = SIGNALS[bytes([request])]
                    _signal_group(child, number)
                    if number == signal.SIGSTOP:
                        _wait_until_stopped(child)
                    _say("sent")
    return True


def main() -> int:
    """Run the command after the options. Return its exit code, or 143 if the owner is gone."""
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
        os.close(arguments.output)  # otherwise its reader would not see the child's end
    owned = True
    try:
        _say(str(child.pid))
        owned = _serve(child, arguments.owner)
    except KeyboardInterrupt:  # SIGTERM, see above: the server is to end, and the owner may still want its data
        pass
    finally:
        _signal_group(child, signal.SIGKILL)
        child.wait()
        if not owned:
            for directory in arguments.remove:
                # the launchers of all servers in a cluster remove the same directory
                shutil.rmtree(directory, ignore_errors=True)
    return child.returncode if owned else 143


if __name__ == "__main__":
    sys.exit(main())
