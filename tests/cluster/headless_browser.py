"""A headless Chromium for tests of the page, driven over its debugging pipe. No driver program or library is needed."""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.timing import eventually, scaled

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
_ANSWER_S = 45.0
_OPTIONS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-features=BackForwardCache",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-extensions",
    "--disable-default-apps",
    "--mute-audio",
    "--force-color-profile=srgb",
]
_START = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(text), fcntl.F_DUPFD, 100) for text in sys.argv[1:3])
os.dup2(reading, 3)  # the browser reads from descriptor 3 and writes to 4
os.dup2(writing, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def browser_program() -> str | None:
    """Return the path of a Chromium, None if there is none. ``ZKCONSUMER_TEST_BROWSER`` names one."""
    named = os.environ.get("ZKCONSUMER_TEST_BROWSER")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser. One thread calls it.

    Arguments: ``folder`` is an empty directory for its profile. Attributes: ``complaints`` are errors and warnings of
    the console, uncaught exceptions and violations of the content security policy; ``requests`` are the addresses that
    the page asked for.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._command = [program, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        self._number = 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._session: str | None = None

    def __enter__(self) -> Self:
        our_read, its_write = os.pipe()
        its_read, our_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(its_read), str(its_write), *self._command],
            pass_fds=(its_read, its_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_read)
        os.close(its_write)
        self._write = os.fdopen(our_write, "wb", buffering=0)
        self._reader = threading.Thread(target=self._read, args=(our_read,), name="browser-reader", daemon=True)
        self._reader.start()
        try:
            targets = self._send("Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            self._session = self._send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self._send(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):  # it has ended already
            self._write.write(b'{"id":0,"method":"Browser.close"}\0')
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(scaled(5))
                break
            except subprocess.TimeoutExpired:
                end()
        self._process.wait(scaled(5))
        self._reader.join(scaled(5))
        self._write.close()

    # ---- the pipe: JSON objects, each with a zero byte at its end

    def _read(self, descriptor: int) -> None:
        left = b""
        with os.fdopen(descriptor, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                *whole, left = (left + chunk).split(b"\0")
                for text in whole:
                    self._take(json.loads(text))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers.put(message)
            return
        told, method = message.get("params", {}), message.get("method")
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def _send(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answers.get(timeout=scaled(_ANSWER_S))
            if answer["id"] == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found

    # ---- what a test does

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Set the size of the window in CSS pixels."""
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def dark(self, dark: bool) -> None:
        """Choose the colours that the system prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[feature])

    def open(self, address: str) -> None:
        """Go to an address."""
        self._send("Page.navigate", url=address)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, which may be a promise."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 15.0) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        return eventually(lambda: self.run(expression), seconds, f"{expression} in the page; {self.complaints}")

    def key(self, name: str, text: str = "") -> None:
        """Press and release a key by its name, such as ``ArrowRight``."""
        for kind in ("keyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=name, code=name, text=text if kind == "keyDown" else "")

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of the first element that a selector finds."""
        box = self.run(
            f"""(() => {{
              const found = document.querySelector({json.dumps(selector)});
              found.scrollIntoView({{block: "center"}});
              const box = found.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def picture(self, *, whole: bool = False) -> bytes:
        """Return a PNG of the window, or of the whole page."""
        answer = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])
