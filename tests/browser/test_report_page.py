"""The report page in a real browser: layout, plots, interaction, and no network access."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="reput.spark.report imports it")

from browser.driver import Browser
from reput.spark.pages import store as report_page
from reput.spark.report import Agreement, FileRow, GapRow, LagRow, Report, ReportedTopic

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]

HOUR_MS = 3_600_000
START_MS = 1_795_226_400_000
LONG = "GoldenLong-" + "abcdefghijklmnopqrstuvwxyz" * 4
EVIL = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


def usual() -> Report:
    """Return the report of a store with damage, all kinds of names, and more topics than colors."""
    names = ["orders", LONG, EVIL, "%RETRY%paid", *(f"tenant-{number}" for number in range(20))]
    topics = [
        ReportedTopic(name, 2400 - 100 * i, 10**9 >> i, 10**8 >> i, 4, START_MS, START_MS + HOUR_MS)
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
    assert browser.complaints() == []
    assert [url for url in browser.urls() if not url.startswith("file:")] == []


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
    browser.open(page(report).as_uri(), width, scheme)
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
    shot = browser.screenshot()
    assert shot.startswith(b"\x89PNG")
    (tmp_path / f"{make.__name__}-{scheme}-{width}.png").write_bytes(shot)
    assert_nothing_is_logged_or_fetched(browser)


def test_a_printed_page_is_light_and_complete(
    browser: Browser, page: Callable[[Report], Path]
) -> None:
    browser.open(page(usual()).as_uri(), 718, "dark", "print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("document.documentElement.scrollWidth") <= 718
    cut = "(one) => one.scrollHeight > one.clientHeight"
    assert browser.ask(f"[...document.querySelectorAll('.scroll')].filter({cut}).length") == 0
    assert browser.ask("document.querySelectorAll('.scroll').length") > 3


def test_a_tip_shows_the_numbers_of_a_column(
    browser: Browser, page: Callable[[Report], Path]
) -> None:
    report = usual()
    browser.open(page(report).as_uri(), 1280)
    browser.ask("document.querySelector('.stacks').scrollIntoView({block: 'center'})")
    # The scroll event, which hides a tip, is fired with the next frame.
    browser.ask("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
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
    browser.open(page(usual()).as_uri(), 1280)
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
    browser.open(page(report).as_uri(), 1280)
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
