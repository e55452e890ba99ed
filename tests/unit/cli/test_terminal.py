"""Output that is shown again and again, in a terminal of its own and in a pipe; colours; and completion."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.group_snapshots import group_snapshot
from tests.programs import run_python
from tests.timing import eventually, scaled
from tests.values import present
from zkconsumer.cli.tables import Screen, cut, painted, watched, width_of
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.operations.doctor import Level
from zkconsumer.operations.snapshot_file import write_snapshots

CLOSED = "\x1b[?25h\x1b[?1049l"


class Terminal:
    """A command in a terminal of this size."""

    def __init__(self, *words: str, rows: int = 24, columns: int = 80, kind: str = "xterm") -> None:
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._modes = termios.tcgetattr(far)
        self._far = far
        names = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        command = [sys.executable, "-m", "zkconsumer", *words]
        self.process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env={**names, "TERM": kind})
        self._seen = b""

    def text(self) -> str:
        os.set_blocking(self._near, False)
        try:
            self._seen += os.read(self._near, 1 << 20)
        except BlockingIOError:
            pass
        return self._seen.decode(errors="replace")

    def shows(self, words: str) -> str:
        eventually(lambda: words in self.text(), 60, self.text)
        return self.text()

    def press(self, key: bytes) -> None:
        os.write(self._near, key)

    def ended(self) -> int:
        """Wait for the end, which brings back the screen and the modes of the terminal. Return the exit code."""
        code = self.process.wait(scaled(60))
        self.shows(CLOSED)
        assert termios.tcgetattr(self._far) == self._modes
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._near)
        os.close(self._far)


@contextmanager
def in_terminal(*words: str, **more: Any) -> Iterator[Terminal]:
    made = Terminal(*words, **more)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file of a group with a hostile name and a healthy group."""
    made = tmp_path / "groups.jsonl"
    evil = group_snapshot(
        {"g_a": {"t": 1}}, {"t:0": "g_a-0"}, {"t:0": 9}, {"t:0": (0, 5)}, group="\x1b[2J<b>" + "x" * 9999
    )
    write_snapshots(str(made), [evil, group_snapshot({"g_a": {"t": 1}}, {"t:0": "g_a-0"}, {"t:0": 5}, {"t:0": (0, 9)})])
    return str(made)


@pytest.mark.parametrize(
    ("words", "shown"), [(["top"], "2 groups at"), (["doctor", "--watch", "1"], "doctor of all groups, as of")]
)
@pytest.mark.parametrize("size", [{}, {"rows": 5, "columns": 24}], ids=["usual", "tiny"])
def test_a_page_comes_again_and_q_ends_it(words: list[str], shown: str, size: dict[str, int], file: str) -> None:
    with in_terminal(*words, "--from", file, **size) as made:
        made.shows(shown[: size.get("columns", 80)])
        drawn = made.text().count("\x1b[H\x1b[2J")
        eventually(lambda: made.text().count("\x1b[H\x1b[2J") > drawn, 60, made.text)
        made.press(b"q")
        assert made.ended() == (0 if words == ["top"] else 1)
        assert "\x1b[2J<b>" not in made.text()
        assert size or "\x1b[31m" in made.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_gives_the_terminal_back(number: signal.Signals, file: str) -> None:
    with in_terminal("top", "--from", file) as made:
        made.shows("2 groups at")
        made.process.send_signal(number)
        assert made.ended() == 130


@pytest.mark.parametrize("words", [["top"], ["doctor", "--watch", "9999"]])
def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(words: list[str], file: str) -> None:
    """Then the page is drawn again, and not only after the interval."""
    with in_terminal(*words, "--from", file) as made:
        made.shows("q ends")
        made.process.send_signal(signal.SIGTSTP)
        made.shows(CLOSED)

        def goes_on() -> bool:
            made.process.send_signal(signal.SIGCONT)  # again and again: it may not have stopped yet
            return made.text().count("\x1b[?1049h") == 2

        eventually(goes_on, 60, made.text)
        eventually(lambda: "q ends" in made.text().rpartition("\x1b[?1049h")[2], 60, made.text)
        made.press(b"q")
        assert made.ended() == (0 if words == ["top"] else 1)


def test_ctrl_z_in_the_middle_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal takes nothing more for a while, as after Ctrl-S or through a slow line."""
    near, far = pty.openpty()
    before, sent, seen = termios.tcgetattr(far), threading.Event(), bytearray()
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("LINES", "1000")

    def stop() -> None:
        signal.pthread_kill(present(threading.main_thread().ident), signal.SIGTSTP)
        sent.set()

    def read() -> None:
        sent.wait(scaled(60))
        while b"the end" not in seen:
            seen.extend(os.read(near, 1 << 16))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(far, "w") as out, os.fdopen(near, "rb", buffering=0):
        monkeypatch.setattr(sys, "stdin", out)
        with Screen(out) as screen:
            threading.Timer(0.2, stop).start()
            screen.draw(["x" * 1000] * 999)
        print("the end", file=out, flush=True)
        reader.join(scaled(60))
        assert seen.count(b"\x1b[?1049h") == 2
        assert termios.tcgetattr(far) == before


def test_a_second_ctrl_c_does_not_keep_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = pty.openpty()
    before, restore, again = termios.tcgetattr(far), termios.tcsetattr, [KeyboardInterrupt]

    def interrupted(*given: Any) -> None:
        if again:
            raise again.pop()
        restore(*given)

    with os.fdopen(far, "w") as out, os.fdopen(near, "rb", buffering=0):
        monkeypatch.setattr(sys, "stdin", out)
        with pytest.raises(KeyboardInterrupt), Screen(out):
            monkeypatch.setattr(termios, "tcsetattr", interrupted)
        assert termios.tcgetattr(far) == before


def test_a_terminal_that_obeys_no_escapes_gets_plain_text(file: str) -> None:
    with in_terminal("top", "--interval", "1", "--from", file, kind="dumb") as made:
        eventually(lambda: made.text().count("errors in") > 1, 60, made.text)
        made.process.send_signal(signal.SIGINT)
        made.process.wait(scaled(60))
        assert "\x1b" not in made.text()


@pytest.mark.parametrize("words", ["doctor --watch 9999", "top --interval 9999"])
def test_a_command_ends_with_the_reader_of_its_output(words: str, file: str) -> None:
    """It would wait for its next look, and a shell for the command."""
    command = f"{sys.executable} -m zkconsumer {words} --from {file}"
    said = subprocess.run(["sh", "-c", f"{command} | head -1"], capture_output=True, timeout=scaled(60), check=True)
    assert said.stdout
    assert not said.stderr


@pytest.mark.parametrize("words", ["doctor", "top --once", "groups --describe --all-groups"])
def test_a_closed_output_is_no_error(words: str, file: str) -> None:
    command = f"{sys.executable} -m zkconsumer {words} --from {file} >&-"
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=scaled(60), check=False)
    assert "Traceback" not in said.stderr


def test_a_failed_look_is_marked_as_stale_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = ["one", RegistryUnavailableError("no ZooKeeper\nat all"), "two", KeyboardInterrupt()]
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def look() -> int:
        now = looks.pop(0)
        if isinstance(now, BaseException):
            raise now
        print(now)
        return 0

    with pytest.raises(KeyboardInterrupt):
        watched(look, 1.0, "a title")
    printed = capsys.readouterr()
    assert printed.out.split() == ["one", "two"]
    assert re.fullmatch(r"zkconsumer: stale, the look at \S+ failed: no ZooKeeper at all\n", printed.err)


def test_the_first_look_may_fail() -> None:
    def look() -> int:
        raise RegistryUnavailableError("away")

    with pytest.raises(RegistryUnavailableError):
        watched(look, 1.0, "a title")


@pytest.mark.parametrize(
    ("variables", "tty", "painted_text"),
    [({}, True, "\x1b[31mx\x1b[0m"), ({}, False, "x"), ({"NO_COLOR": "1"}, True, "x"), ({"TERM": "dumb"}, True, "x")],
)
def test_colours_are_for_terminals(
    variables: dict[str, str], tty: bool, painted_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"NO_COLOR": "", "TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    assert painted("x", Level.ERROR) == painted_text


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("abc", 0, ""),
        ("abc", 1, "…"),
        ("日" * 500_000, 2400, "日" * 1199 + "…"),  # in no time
    ],
)
def test_a_text_is_cut_to_columns(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert width_of(shown) <= width


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("zkconsumer doc", ["doctor "]),
        ("zkconsumer doctor --tw", ["--twice "]),
        ("zkconsumer groups desc", ["describe "]),
        ("zkconsumer doctor --format j", ["json "]),
        ("zkconsumer errors UnknownT", ["UnknownTopicError "]),
        ("zkconsumer help standing", ["standing-still "]),
        ("zkconsumer doctor --zookeeper ", []),
    ],
)
def test_a_shell_completes_words(line: str, completed: list[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    out = tmp_path / "completed"
    asks = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    run_python("-m", "zkconsumer", variables={"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", **asks})
    assert out.read_text().split("\n") == (completed or [""])


SHELLS = {
    "bash": """
eval "$(register-python-argcomplete zkconsumer)"
COMP_LINE="zkconsumer doctor --tw" COMP_POINT=22 COMP_WORDS=(zkconsumer doctor --tw) COMP_CWORD=2 COMP_TYPE=9
$(complete -p zkconsumer | sed 's/.*-F \\([^ ]*\\).*/\\1/') zkconsumer --tw doctor
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "fish": """
register-python-argcomplete --shell fish zkconsumer | source
complete -C "zkconsumer doctor --tw" | string split -f 1 \\t
""",
}
"""Programs that complete ``zkconsumer doctor --tw`` as the documents set it up."""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_words(shell: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", SHELLS[shell]],
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )
    assert done.stdout.strip() == "--twice", done.stderr
