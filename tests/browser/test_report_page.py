"""The report page in a real browser: layout, plots, interaction, and no network access.

The tests control Chromium over its DevTools pipe (file descriptors 3 and 4, JSON messages that end
with NUL), which needs no library.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="reput.spark.report imports it")

from reput.spark.pages import store as report_page
from reput.spark.report import Agreement, FileRow, GapRow, LagRow, Report, TopicRow

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
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


class Browser:
    """A Chromium with one tab."""

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
        for domain in ("Page", "Runtime", "Log", "Network"):
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

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; keep the events that arrive before it."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser has gone"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, file: Path, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Load a file in a window of this width."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.events.clear()
        self.call("Page.navigate", url=file.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return the result."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def seen(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of these events since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium to see the page in a browser")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    try:
        browser.start()
        yield browser
    finally:
        browser.close()


HOUR_MS = 3_600_000
START_MS = 1_795_226_400_000
LONG = "GoldenLong-" + "abcdefghijklmnopqrstuvwxyz" * 4
EVIL = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


def usual() -> Report:
    """Return the report of a store with damage, all kinds of names, and more topics than colors."""
    names = ["orders", LONG, EVIL, "%RETRY%paid", *(f"tenant-{number}" for number in range(20))]
    topics = [
        TopicRow(name, 2400 - 100 * i, 10**9 >> i, 10**8 >> i, 4, START_MS, START_MS + HOUR_MS)
        for i, name in enumerate(names)
    ]
    timeline = [
        (START_MS + minute * 60_000, name, 1 + (minute * 7 + number * 13) % 40)
        for minute in range(60)
        for number, name in enumerate([*names[:11], "others"])
    ]
    files = [
        FileRow(f"{number << 30:020d}", 1 << 30, number << 24, START_MS, START_MS + HOUR_MS)
        for number in range(9)
    ]
    return Report(
        *("/data/" + "very-long-folder-name/" * 8, "broker-a", "crashed", "0.1.0", "4.3.0"),
        messages=sum(row.messages for row in topics),
        bytes=sum(row.bytes for row in topics),
        body_bytes=sum(row.body_bytes for row in topics),
        first_ms=START_MS,
        last_ms=START_MS + HOUR_MS,
        topics=topics,
        tags=[(EVIL, 900), (LONG, 800), ("", 7)],
        bucket_seconds=60,
        timeline=timeline,
        sizes=[(1 << power, 1_234_567 >> power) for power in range(8, 20)],
        latencies=[(1 << power, 999_999_999 >> power) for power in range(24)],
        producers=[("192.0.2.2", 1_234), ("[fd00:0:0:0:0:0:0:2]", 567)],
        gaps=[GapRow((2 << 30) + (1 << 29), 3_190, "damage", "bad", f"{2 << 30:020d}")],
        files=files,
        queue_agreement=Agreement(10_000, 1, 2),
        index_agreement=Agreement(20_000, 0, 0),
        lags=[LagRow(LONG, name, 100 - number) for number, name in enumerate(names)],
        seconds=14.2,
    )


def empty() -> Report:
    return Report("/data/store", "", "clean", "0.1.0", "4.3.0")


@pytest.fixture
def page(tmp_path: Path) -> Callable[[Report], Path]:
    """Return a function that renders a report into a file."""

    def write(report: Report) -> Path:
        file = tmp_path / "report.html"
        file.write_text(report_page.render(report), encoding="utf-8")
        return file

    return write


BOXES = """
[...document.querySelectorAll("svg[role=img]")].map((plot) => {
  const { width, height, left, right } = plot.getBoundingClientRect();
  return [width, height, left, right];
})
"""
DRAWN = """
[...document.querySelectorAll("path.series, rect.plain, rect.used, .bars rect")].every((one) => {
  const { width, height } = one.getBoundingClientRect();
  return width > 0 && height > 0;
})
"""


def assert_nothing_is_logged_or_fetched(browser: Browser) -> None:
    """Check that the browser logged nothing and requested only the file."""
    complaints = browser.seen(
        "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"
    )
    assert complaints == []
    urls = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("make", [usual, empty])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_and_draws(
    browser: Browser,
    page: Callable[[Report], Path],
    tmp_path: Path,
    make: Callable[[], Report],
    scheme: str,
    width: int,
) -> None:
    report = make()
    browser.open(page(report), width, scheme)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    boxes = browser.ask(BOXES)
    assert len(boxes) == (3 + len(report.files) if report.messages else 0)
    for box_width, box_height, left, right in boxes:
        assert box_width > 20
        assert box_height > 20
        assert 0 <= left < right <= width
    assert browser.ask(DRAWN)
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in background[4:-1].split(",")) / 3
    assert brightness < 60 if scheme == "dark" else brightness > 200
    assert browser.ask("document.title").endswith(": store report")  # and not "owned"
    shot = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
    assert shot.startswith(b"\x89PNG")
    (tmp_path / f"{make.__name__}-{scheme}-{width}.png").write_bytes(shot)
    assert_nothing_is_logged_or_fetched(browser)


def test_a_printed_page_is_light_and_complete(
    browser: Browser, page: Callable[[Report], Path]
) -> None:
    browser.open(page(usual()), 718, "dark", "print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("document.documentElement.scrollWidth") <= 718
    cut = "(one) => one.scrollHeight > one.clientHeight"
    assert browser.ask(f"[...document.querySelectorAll('.scroll')].filter({cut}).length") == 0
    assert browser.ask("document.querySelectorAll('.scroll').length") > 3


def test_a_tip_shows_the_numbers_of_a_column(
    browser: Browser, page: Callable[[Report], Path]
) -> None:
    report = usual()
    browser.open(page(report), 1280)
    browser.ask("document.querySelector('.stacks').scrollIntoView({block: 'center'})")
    # The scroll event, which hides a tip, is fired with the next frame.
    browser.call(
        "Runtime.evaluate",
        expression="new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))",
        awaitPromise=True,
    )
    x, y = browser.ask(
        "(({left, top, width}) => [left + width * 0.5 / 60, top + 100])"
        "(document.querySelector('.stacks').getBoundingClientRect())"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert browser.ask("document.getElementById('tip').hidden") is False
    lines = browser.ask("[...document.querySelectorAll('#tip p')].map((one) => one.innerText)")
    counts = {name: count for moment, name, count in report.timeline if moment == START_MS}
    assert lines[0] == "2026-11-21T02:00:00.000Z"
    assert {line.split("\n")[0] for line in lines[1:]} == {*counts, "All"}
    assert lines[-1].split() == ["All", str(sum(counts.values()))]
    left, right = browser.ask(
        "(({left, right}) => [left, right])(document.getElementById('tip').getBoundingClientRect())"
    )
    assert 0 <= left < right <= 1280
    assert_nothing_is_logged_or_fetched(browser)


def test_a_topic_of_the_legend_is_highlighted(
    browser: Browser, page: Callable[[Report], Path]
) -> None:
    browser.open(page(usual()), 1280)
    browser.ask(
        "document.querySelector('.legend li')"
        ".dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
    )
    bright = "[...document.querySelectorAll('.series:not(.faint)')].map((one) => one.classList[1])"
    assert browser.ask(bright) == [
        browser.ask("document.querySelector('.legend li').dataset.series")
    ]
    browser.ask("document.body.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))")
    assert len(browser.ask(bright)) == 12
    assert_nothing_is_logged_or_fetched(browser)


def test_a_click_sorts_and_a_second_click_reverses(
    browser: Browser, page: Callable[[Report], Path]
) -> None:
    report = usual()
    browser.open(page(report), 1280)
    browser.ask(
        "window.topics = [...document.querySelectorAll('table')]"
        ".find((one) => one.caption.textContent.startsWith('Every topic'))"
    )

    def click(column: int) -> list[str]:
        browser.ask(f"topics.rows[0].cells[{column}].firstChild.click()")
        answer: list[str] = browser.ask(
            f"[...topics.tBodies[0].rows].map((row) => row.cells[{column}].textContent)"
        )
        return answer

    messages = [f"{row.messages:,}" for row in report.topics]
    assert click(1) == messages[::-1]  # descending before
    assert click(1) == messages
    sizes = [f"{row.bytes:,}" for row in report.topics]
    assert click(2) == sizes  # numbers start in descending order
    names = click(0)
    assert sorted(names) == sorted(row.topic for row in report.topics)
    assert names[-1].startswith("tenant-")
    assert browser.ask("[...topics.rows[0].cells].map((one) => one.ariaSort)") == [
        "ascending",
        *[None] * 6,
    ]
    assert_nothing_is_logged_or_fetched(browser)
