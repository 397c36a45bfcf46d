"""The report page: all numbers, escaped names, and no external resources."""

import base64
import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("pyspark", reason="reput.spark.report imports it")

from reput.html import charts, texts
from reput.spark import report as report_module
from reput.spark.pages import store as report_page
from reput.spark.report import Agreement, FileRow, GapRow, LagRow, Report, ReportedTopic
from reput.store.reader import Condition

HOUR_MS = 3_600_000
START_MS = 1_795_227_600_000  # 2026-11-21T02:20:00Z, a full bucket of ten minutes
EVIL = "</bdi></style></script><script>alert('1' + \"2\")</script>&amp;\u202e\x00\x1b\ud800"
EVIL_SEEN = EVIL.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")


def sample() -> Report:
    """Return a report whose numbers all differ, so that each can be searched for."""
    return Report(
        store="/data/rocketmq/store",
        broker="broker-a",
        condition="crashed",
        reput_version="0.1.0",
        spark_version="4.3.0",
        messages=1_234_567,
        bytes=9_876_543_210,
        body_bytes=8_765_432_109,
        first_ms=START_MS + 25,
        last_ms=START_MS + HOUR_MS + 157,
        topics=[
            ReportedTopic(
                "orders", 1_000_001, 9_000_000_002, 8_000_000_003, 16, START_MS + 25, START_MS + 77
            ),
            ReportedTopic(
                "%RETRY%paid",
                234_566,
                876_543_208,
                765_432_106,
                4,
                START_MS + 99,
                START_MS + HOUR_MS + 157,
            ),
        ],
        tags=[("red", 700_003), ("", 534_564)],
        bucket_seconds=600,
        timeline=[
            (START_MS, "orders", 1_000_001),
            (START_MS, "%RETRY%paid", 111_112),
            (START_MS + HOUR_MS, "%RETRY%paid", 120_013),
            (START_MS + HOUR_MS, "others", 3_441),
        ],
        sizes=[(256, 1_234_500), (4096, 67)],
        latencies=[(1, 1_111_111), (2, 123_000), (1024, 456)],
        producers=[("192.0.2.2", 1_234_000), ("[fd00:0:0:0:0:0:0:2]", 567)],
        gaps=[
            GapRow(1_073_745_000, 3_190, "damage", "body does not match BODYCRC", f"{1 << 30:020d}")
        ],
        files=[
            FileRow(f"{0:020d}", 1 << 30, 210, START_MS + 25, START_MS + 1_234),
            FileRow(f"{1 << 30:020d}", (1 << 30) + 1, 536_870_912, None, None),
        ],
        queue_agreement=Agreement(1_234_560, 71, 83),
        index_agreement=Agreement(2_469_134, 0, 0),
        lags=[LagRow("CG_Orders", "orders", 4_444), LagRow("CG_Ahead", "orders", -12)],
        seconds=1_834.25,
    )


def empty() -> Report:
    return Report("/data/store", "", "clean", "0.1.0", "4.3.0")


def one_message() -> Report:
    return Report(
        *("/data/store", "b", "clean", "0.1.0", "4.3.0", 1, 100, 5, START_MS, START_MS),
        topics=[ReportedTopic("t", 1, 100, 5, 1, START_MS, START_MS)],
        tags=[("", 1)],
        timeline=[(START_MS, "t", 1)],
        sizes=[(128, 1)],
        latencies=[(1, 1)],
        producers=[("h", 1)],
        files=[FileRow("0" * 20, 1000, 900, START_MS, START_MS)],
        queue_agreement=Agreement(1, 0, 0),
        index_agreement=Agreement(1, 0, 0),
    )


class Page:
    """A page as its readers see it, parsed as XML, which is the strictest check."""

    def __init__(self, report: Report) -> None:
        self.source = report_page.render(report)
        # Style and script are no XML.
        text = self.source.removeprefix("<!doctype html>")
        bare = re.sub(r"(?s)<(style|script)>.*?</\1>", "", text)
        self.root = ElementTree.fromstring(bare)
        self.texts = {text.strip() for text in self.root.itertext()}
        self.words = {word.strip(",.;()") for text in self.texts for word in text.split()}

    def section(self, title: str) -> ElementTree.Element:
        """Return the only section with a title."""
        (section,) = [
            element for element in self.root.iter("section") if element.findtext("h2") == title
        ]
        return section

    def figure(self, name: str) -> tuple[str, ...]:
        """Return value, note and state of a key figure."""
        (card,) = [
            element
            for element in self.root.iter("div")
            if element.get("class") == "card figure" and element.findtext("h2") == name
        ]
        value, note = (paragraph.text or "" for paragraph in card.iter("p"))
        return value, note, card.findtext("h2/span") or ""


def text_of(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def of_class(element: ElementTree.Element, tag: str, name: str) -> list[ElementTree.Element]:
    return [inner for inner in element.iter(tag) if inner.get("class") == name]


def iso(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number and text of a report with the name of its field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, key)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner, name)
    else:
        yield name, value


class Tags(HTMLParser):
    """The tags of a page, each closed in its place, by a parser of HTML like a browser's."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        assert len({name for name, _ in attrs}) == len(attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("meta", "link")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.mark.parametrize("make", [sample, empty, one_message])
def test_the_page_is_well_formed_and_requests_nothing(make: Callable[[], Report]) -> None:
    report = make()
    page = Page(report)
    assert report == make()
    assert (page.root.tag, page.root.get("lang")) == ("html", "en")
    seen = Tags(page.source).seen
    assert (seen["script"], seen["style"]) == (1, 1)
    links = [
        value
        for element in page.root.iter()
        for name, value in element.items()
        if name in ("src", "href", "action", "style") or name.startswith("on")
    ]
    assert links == ["data:,"]
    for word in ("url(", "@import", "http://", "https://"):
        assert word not in page.source
    policy = next(
        element.get("content") or ""
        for element in page.root.iter("meta")
        if element.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        match = re.search(f"(?s)<{tag}>(.*?)</{tag}>", page.source)
        assert match
        digest = base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_plots_and_tables_have_descriptions() -> None:
    root = Page(sample()).root
    plots = [element for element in root.iter("svg") if element.get("role") == "img"]
    assert len(plots) == 1 + 2 + 2  # timeline, histograms, files
    for plot in plots:
        assert (plot[0].tag, plot[1].tag) == ("title", "desc")
        assert plot.get("aria-label") == f"{plot[0].text}: {plot[1].text}"
    inside = {id(element) for plot in plots for element in plot.iter("svg")}
    for other in root.iter("svg"):
        assert id(other) in inside or other.get("aria-hidden") == "true"
    for table in root.iter("table"):
        assert table.findtext("caption")
        assert all(head.get("scope") == "col" for head in table.iter("th"))


# --- names and values of any kind -----------------------------------------------------------------


def test_names_are_escaped_everywhere() -> None:
    report = sample()
    report.store = report.broker = report.condition = EVIL
    report.topics[0].topic = report.lags[0].group = report.lags[0].topic = EVIL
    report.timeline = [(START_MS, EVIL, 7), (START_MS, "a\tb\nc", 1)]
    report.tags, report.producers = [(EVIL, 7)], [(EVIL, 7)]
    report.gaps = [GapRow(0, 1, EVIL, EVIL, EVIL)]
    report.files[0].name = EVIL
    page = Page(report)
    assert Tags(page.source).seen["script"] == 1
    assert EVIL_SEEN in page.texts
    page.source.encode()  # without lone surrogates
    for title in ("Messages over time", "Messages by topic", "Messages by tag", "Producers"):
        assert EVIL_SEEN in [bdi.text for bdi in page.section(title).iter("bdi")]
    for title in ("Damage", "Topics", "Consumer lag"):
        assert EVIL_SEEN in list(page.section(title).itertext())
    # XML turns literal line ends and tabs into spaces, but not character references.
    tips = [element.get("data-tip") or "" for element in page.root.iter("rect")]
    assert any("\na\ufffdb\ufffdc\t1\t" in tip for tip in tips)


names = st.text(max_size=12)
counts = st.integers(1, 1 << 62)
times = st.integers(-(1 << 63), (1 << 63) - 1)
sizes = st.integers(0, 1 << 50)
powers = st.dictionaries(st.integers(0, 62).map(lambda power: 1 << power), counts, max_size=5)
by_power = powers.map(lambda powers_of_two: sorted(powers_of_two.items()))
agreements = st.none() | st.builds(Agreement, sizes, sizes, sizes)
REPORTS = st.builds(
    Report,
    *[names] * 5,
    *[sizes] * 3,
    first_ms=times,
    last_ms=times,
    topics=st.lists(st.builds(ReportedTopic, names, *[sizes] * 4, times, times), max_size=15),
    tags=st.lists(st.tuples(names, counts), max_size=15),
    bucket_seconds=st.sampled_from(report_module.BUCKETS_SECONDS),
    timeline=st.lists(st.tuples(times, names, counts), max_size=15),
    sizes=by_power,
    latencies=by_power,
    producers=st.lists(st.tuples(names, counts), max_size=5),
    gaps=st.lists(st.builds(GapRow, sizes, sizes, names, names, names), max_size=5),
    files=st.lists(
        st.builds(FileRow, names, sizes, sizes, st.none() | times, st.none() | times), max_size=5
    ),
    queue_agreement=agreements,
    index_agreement=agreements,
    lags=st.lists(st.builds(LagRow, names, names, times), max_size=5),
    seconds=st.floats(0, 1e6),
)


@settings(max_examples=8)
@given(REPORTS)
def test_any_values_give_a_page(report: Report) -> None:
    page = Page(report)
    assert len(list(page.root.iter("section"))) >= 10
    page.source.encode()


# --- numbers ------------------------------------------------------------------------------------


def test_every_number_and_name_of_the_report_is_on_the_page() -> None:
    report = sample()
    page = Page(report)
    elsewhere = {"bucket_seconds", "wasted"}  # "10 min"; as "unused" and as a share
    for name, value in leaves(report.as_json()):
        if value is None or name in elsewhere:
            continue
        if isinstance(value, str):
            assert not value or any(value in text for text in page.texts), (name, value)
        elif name in ("first_ms", "last_ms") or (name == "timeline" and value >= START_MS):
            assert iso(value) in page.texts, (name, value)
        elif name in ("sizes", "latencies") and value in (1, 2, 256, 1024, 4096):
            continue  # bounds: the next test
        else:
            assert f"{value:,}" in page.words, (name, value)
    assert {"A", "bar", "is", "10", "min", "210", "536,870,912"} <= page.words
    report.first_ms, report.last_ms = -(1 << 63), (1 << 63) - 1  # which are no times
    assert {str(report.first_ms), str(report.last_ms)} <= Page(report).texts


def test_histograms_include_empty_powers_of_two() -> None:
    page = Page(sample())
    sizes = page.section("Record size")
    rows = [" | ".join(text_of(cell) for cell in row) for row in sizes.iter("tr")]
    assert rows[1:] == [
        "128 to 255 | 1,234,500",
        "256 to 511 | 0",
        "512 to 1,023 | 0",
        "1,024 to 2,047 | 0",
        "2,048 to 4,095 | 67",
    ]
    edges = [
        element.text
        for element in sizes.iter("text")
        if "amount" not in (element.get("class") or "")
    ]
    assert edges == ["128 B", "256 B", "512 B", "1 KiB", "2 KiB", "4 KiB"]
    latencies = page.section("Latency from born to stored")
    assert {"0 ms", "8 ms", "512 ms"} <= {element.text for element in latencies.iter("text")}
    assert {"0", "1", "512 to 1,023"} <= {text_of(element) for element in latencies.iter("td")}
    assert "Half are below 1 ms, 99 % below 2 ms, all below 1 s." in list(latencies.itertext())


def test_sizes_and_time_spans_have_a_suitable_unit() -> None:
    kib, minute_ms = 1 << 10, 60_000
    sizes = (0, 1023, kib, 1536, 99 * kib, 123 << 20, 1 << 30, 5 << 40, 5 << 50)
    assert [texts.size_text(size) for size in sizes] == [
        *("0 B", "1,023 B", "1 KiB", "1.5 KiB", "99 KiB", "123 MiB", "1 GiB"),
        *("5 TiB", "5,120 TiB"),
    ]
    spans = (0, 999, 1500, minute_ms, 90 * minute_ms, 36 * HOUR_MS, 730 * 24 * HOUR_MS)
    assert [texts.duration_text(span) for span in spans] == [
        *("0 ms", "999 ms", "1.5 s", "1 min", "1.5 h", "1.5 d", "2 y"),
    ]
    report = one_message()
    report.bytes, report.last_ms = 1536, report.first_ms + 90 * minute_ms
    assert {"1.5 KiB", "1.5 h"} <= Page(report).texts


def test_agreement_is_ok_and_disagreement_is_to_be_checked() -> None:
    report = sample()
    page = Page(report)
    assert page.figure("Damaged ranges") == ("1", "3,190 bytes", "! check")
    queues = "1,234,560 right, 71 wrong, 83 missing"
    assert page.figure("Queue agreement") == ("99.98 %", queues, "! check")
    index = "2,469,134 right, 0 wrong, 0 missing"
    assert page.figure("Index agreement") == ("100 %", index, "✓ ok")
    verdict = text_of(page.section("Worth a look"))
    assert "1 damaged range in the log" in verdict
    assert "71 queue entries without a message" in verdict
    assert "83 messages without a queue entry" in verdict
    # A hundred percent is shown only for all; bytes after the end of the log are no damage.
    report.queue_agreement = Agreement(10**9, 1, 0)
    report.gaps[0].kind = "torn"
    page = Page(report)
    assert page.figure("Queue agreement")[0] == "99.99 %"
    assert page.figure("Damaged ranges") == ("0", "none found", "✓ ok")
    assert "torn" in page.source
    page = Page(one_message())
    assert "No damage" in text_of(page.section("Healthy"))
    assert page.figure("Damaged ranges") == ("0", "none found", "✓ ok")


@pytest.mark.parametrize("condition", Condition)
def test_the_page_of_an_empty_store(condition: Condition) -> None:
    report = empty()
    report.condition = condition.value
    page = Page(report)
    assert page.section("Empty").get("class") == "verdict"
    assert page.figure("Messages") == ("0", "", "")
    assert page.figure("Queue agreement") == ("—", "nothing to compare", "")
    assert {"Message store", "No messages.", "None found.", "0 files, 0 B."} <= page.texts
    assert "1970" not in page.source
    assert list(page.root.iter("table")) == []
    state = next(page.root.iter("span"))
    assert state.text == condition.value
    assert state.get("title")
    assert state.get("class") == f"state {'ok' if condition is Condition.CLEAN else 'warn'}"


def test_a_topic_has_one_color_in_all_plots_and_others_are_grey() -> None:
    page = Page(sample())
    assert report_page._OTHERS == report_module.OTHERS
    for title in ("Messages over time", "Messages by topic", "Bytes by topic"):
        colors = [
            (text_of(element), element.get("data-series"))
            for element in page.section(title).iter("li")
        ]
        for name, color in (("orders", "s0"), ("%RETRY%paid", "s1")):
            assert next(shown for text, shown in colors if text.startswith(name)) == color
        if title == "Messages over time":
            assert [text for text, _ in colors] == ["orders", "%RETRY%paid", "others"]
            assert colors[-1][1] == "sx"
    for title, head, order in (  # which tables are sorted by
        ("Topics", "Messages", "descending"),
        ("Damage", "Physical offset", "ascending"),
        ("Consumer lag", "Lag", "descending"),
    ):
        heads = [element for element in page.section(title).iter("th") if element.get("aria-sort")]
        assert [(text_of(cell), cell.get("aria-sort")) for cell in heads] == [(head, order)]
        assert heads[0].get("class") == "number"


def test_the_timeline_has_a_bounded_number_of_columns() -> None:
    report = sample()
    report.timeline = [(START_MS + number * 600_000, "orders", 1) for number in range(10_000)]
    columns = of_class(Page(report).section("Messages over time"), "rect", "hit")
    assert 100 < len(columns) <= report_page.COLUMNS_MAX
    total = sum(int((element.get("data-tip") or "").split("\t")[-2]) for element in columns)
    assert total == 10_000


def test_damage_is_marked_at_its_place_in_its_file() -> None:
    report = sample()
    report.files = [FileRow(f"{number * 1000:020d}", 1000, 100, None, None) for number in range(3)]
    report.gaps = [
        GapRow(1250, 500, "damage", "bad", f"{1000:020d}"),
        GapRow(3000, 1000, "damage", "file is missing", f"{3000:020d}"),
    ]
    cells = of_class(Page(report).section("Commit log"), "svg", "file")
    marks = [
        [(mark.get("x"), mark.get("width")) for mark in of_class(cell, "rect", "damage")]
        for cell in cells
    ]
    assert marks == [[], [("25.00%", "50.00%")], [], [("0.00%", "100.00%")]]
    used = [next(cell.iter("rect")).get("width") for cell in cells]
    assert used == ["90.00%", "90.00%", "90.00%", "0.00%"]


def test_long_lists_are_truncated_with_a_note() -> None:
    report = sample()
    rows = charts.ROWS_MAX
    report.topics = [
        ReportedTopic(f"t{n}", 10, 100, 5, 1, START_MS, START_MS) for n in range(rows + 1)
    ]
    report.messages, report.bytes = 10 * (rows + 1), 100 * (rows + 1)
    report.files = [FileRow(f"{n:020d}", 1, 0, None, None) for n in range(rows + 7)]
    report.gaps = [GapRow(rows + 6, 1, "damage", "bad", f"{rows + 6:020d}")]
    page = Page(report)
    assert len(list(page.section("Topics").iter("tr"))) == 1 + rows
    assert {"and 1 more row", "and 7 more files"} <= page.texts
    cells = of_class(page.section("Commit log"), "svg", "file")
    assert len(cells) == rows
    assert cells[-1].findtext("title") == f"{rows + 6:020d}"  # the file with damage is drawn
    bars = page.section("Messages by topic").findall("ul/li")
    assert len(bars) == charts.BARS_MAX + 1
    others = rows + 1 - charts.BARS_MAX
    assert text_of(bars[-1]) == f"{others} other topics{10 * others:,}"


def test_the_page_does_not_import_spark() -> None:
    code = "import sys; import reput.spark.pages.store; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
