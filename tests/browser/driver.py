"""Chromium for tests, over its DevTools pipe: descriptors 3 and 4, JSON messages ending with NUL.

It needs no library. Nothing sleeps: each wait is for a message of the browser, within a deadline.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DEADLINE_S = 60
"""Longest wait for the browser: it is reached only if something hangs."""
# Chromium's descriptors must be 3 and 4, whatever the pipes of this process are.
_LAUNCHER = """
import os, sys
read, write = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
os.dup2(read, 3), os.dup2(write, 4)
os.set_inheritable(3, True), os.set_inheritable(4, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
)
_KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "Space": (32, " ")}
"""Virtual key code and text of keys with a name."""
_AXE_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


class Browser:
    """A Chromium with one tab.

    Args:
        profile: Folder of its files.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        launch = [sys.executable, "-c", _LAUNCHER, str(commands), str(answers), CHROMIUM]
        self._process = subprocess.Popen(
            [*launch, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Close the pipe and wait for the browser, which exits when the pipe is closed."""
        os.close(self._commands)
        os.close(self._answers)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # --- commands and events ----------------------------------------------------------------------

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; keep the events that arrive before it."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        data = json.dumps(command).encode() + b"\0"
        while data:  # a pipe takes less than a long script at once
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + DEADLINE_S
        while True:
            message = self._receive(deadline, method)
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def wait_for(self, method: str, since: int = 0) -> dict[str, Any]:
        """Return the parameters of the first event of a kind after this many events."""
        deadline = time.monotonic() + DEADLINE_S
        for index in range(since, sys.maxsize):
            while index == len(self.events):
                self.events.append(self._receive(deadline, method))
            if self.events[index].get("method") == method:
                params: dict[str, Any] = self.events[index]["params"]
                return params
        raise AssertionError(method)

    def seen(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of these events since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left_s)[0]:
                raise TimeoutError(f"the browser did not answer {what} in {DEADLINE_S} s")
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    # --- pages ------------------------------------------------------------------------------------

    def open(
        self,
        url: str,
        width: int = 1280,
        scheme: str = "light",
        media: str = "screen",
        *,
        scripts: bool = True,
    ) -> None:
        """Load a page in a window of this width, and forget the events before.

        Args:
            url: Of HTTP, or of a file.
            width: CSS pixels.
            scheme: ``light`` or ``dark``.
            media: ``screen`` or ``print``.
            scripts: Whether the page may run its scripts; ``ask`` can in any case.
        """
        self.prefer(scheme, media)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        result = self.call("Page.navigate", url=url)
        assert "errorText" not in result, (url, result)
        self.wait_for("Page.loadEventFired")

    def prefer(self, scheme: str, media: str = "screen") -> None:
        """Change the colors that the user prefers, and the medium; nothing is animated."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    @contextlib.contextmanager
    def navigation(self) -> Iterator[None]:
        """Wait at the end of the block for the page to which it leads."""
        since = len(self.events)
        yield
        self.wait_for("Page.loadEventFired", since)

    def back(self) -> None:
        """Go back in the history."""
        history = self.call("Page.getNavigationHistory")
        entry = history["entries"][history["currentIndex"] - 1]
        # A page that the browser has kept fires no load event when it is shown again.
        since = len(self.events)
        self.call("Page.navigateToHistoryEntry", entryId=entry["id"])
        self.wait_for("Page.frameNavigated", since)
        self.until("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return the result; wait for it if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true, looked at in each frame."""
        self.ask(
            "new Promise((done) => { const look = () => "
            f"({condition}) ? done(true) : requestAnimationFrame(look); look(); }})"
        )

    # --- input ------------------------------------------------------------------------------------

    def click(self, selector: str) -> None:
        """Click at the middle of the first element like a mouse, even if another is above it."""
        self.point(selector)
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of the first element, after scrolling to it."""
        assert self.ask(f"document.querySelector({json.dumps(selector)}) !== null"), selector
        self.ask(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})"
        )
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _middle(self, selector: str) -> tuple[float, float]:
        x, y = self.ask(
            "(({left, top, width, height}) => [left + width / 2, top + height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return x, y

    def type(self, text: str) -> None:
        """Press the key of each character."""
        for letter in text:
            self._press({"key": letter, "text": letter})

    def press(self, key: str) -> None:
        """Press ``Enter``, ``Tab``, ``Escape`` or ``Space``."""
        code, text = _KEYS[key]
        self._press(
            {
                "key": key,
                "code": key,
                "windowsVirtualKeyCode": code,
                **({"text": text} if text else {}),
            }
        )

    def _press(self, key: dict[str, Any]) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.call(
            "Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in key.items() if k != "text"}
        )

    # --- what a page has done ---------------------------------------------------------------------

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the console of the browser shows: errors, refused content, output."""
        return self.seen("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")

    def urls(self) -> list[str]:
        """Return the URLs of all requests since the page was opened, without ``data:``."""
        urls = [event["request"]["url"] for event in self.seen("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]

    def statuses(self) -> list[int]:
        """Return the statuses of the documents since the page was opened."""
        responses = self.seen("Network.responseReceived")
        return [event["response"]["status"] for event in responses if event["type"] == "Document"]

    def screenshot(self, height: int = 900) -> bytes:
        """Return the top of the window, up to this height, as PNG."""
        width = self.ask("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(shot["data"])

    def metrics(self) -> dict[str, float]:
        """Return counters of the tab, as ``ScriptDuration`` in seconds and ``JSHeapUsedSize``."""
        values = self.call("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in values}

    def load_ms(self) -> float:
        """Return milliseconds from the start of the navigation to the end of the load event."""
        elapsed: float = self.ask("performance.getEntriesByType('navigation')[0].loadEventEnd")
        return elapsed

    def violations(self, axe: str) -> list[str]:
        """Return the violations of WCAG 2.2 A and AA, by axe-core.

        Args:
            axe: The source of ``axe.min.js``.
        """
        self.ask(f"{axe}; 0")
        failures: list[str] = self.ask(
            f"axe.run(document, {{runOnly: {json.dumps(_AXE_TAGS)}}}).then(({{violations}}) => "
            "violations.map(({id, help, nodes}) => `${id}: ${help}: ${nodes.map((node) => "
            "node.target + ' ' + node.html.slice(0, 120)).slice(0, 3).join(' | ')}`))"
        )
        return failures
