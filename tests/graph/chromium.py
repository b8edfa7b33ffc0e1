"""A page in a real browser: Chromium without a window, spoken to over a pipe in its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

_TIME_LIMIT = 60


class Page:
    """A page that is open."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.requests: list[str] = []
        """The address of everything that was asked for."""
        self.errors: list[str] = []
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._received = b""
        self._session: str | None = None
        self._loaded = False
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def open(self, path: Path) -> None:
        self._loaded = False
        self._send("Page.navigate", url=path.as_uri())
        end = time.monotonic() + _TIME_LIMIT
        while not self._loaded and time.monotonic() < end:
            self._handle(self._read())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks the middle of what a selector finds first, as a mouse does."""
        found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.evaluate(f"(() => {{ const at = {found}; return [at.x + at.width / 2, at.y + at.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def scroll(self, at: tuple[float, float], by: float) -> None:
        self._send("Input.dispatchMouseEvent", type="mouseWheel", x=at[0], y=at[1], deltaX=0, deltaY=by)
        # The event is handled with the next frame.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self._send("Input.insertText", text=text)

    def press_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)

    def prefer(self, scheme: str) -> None:
        """Has pages see that a person prefers `light` or `dark`."""
        self._send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self) -> bytes:
        """The page as it looks, in png."""
        return base64.b64decode(self._send("Page.captureScreenshot")["data"])

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._handle(answer)

    def _handle(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            part = os.read(self._from, 1 << 16)
            if not part:
                raise RuntimeError("The browser ended.")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


def find() -> str | None:
    """The program, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def browser(profile: Path, size: tuple[int, int] = (1300, 900)) -> Generator[Page]:
    """An empty page in a browser that keeps its files in the folder `profile`."""
    program = find()
    if program is None:
        raise FileNotFoundError("These tests open a page in Chromium: apt install chromium.")
    in_browser, to_browser = os.pipe()
    from_browser, out_browser = os.pipe()

    def give_pipes() -> None:
        # The browser reads from 3 and writes to 4; what is there may be one of the ends itself.
        ends = os.dup(in_browser), os.dup(out_browser)
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={size[0]},{size[1]}",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=give_pipes,
        pass_fds=(3, 4),
    )
    os.close(in_browser)
    os.close(out_browser)
    try:
        yield Page(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait(timeout=_TIME_LIMIT)
        os.close(to_browser)
        os.close(from_browser)
