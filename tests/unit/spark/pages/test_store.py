"""The report page: all numbers, escaped names, and no external resources."""

import base64
import dataclasses
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("pyspark", reason="reput.spark.report imports it")

from reput.html import charts
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


def parse(page: str) -> ElementTree.Element:
    """Parse the page as XML, the strictest check; style and script are removed first."""
    bare = re.sub(r"(?s)<(style|script)>.*?</\1>", "", page.removeprefix("<!doctype html>"))
    return ElementTree.fromstring(bare)


def texts(page: str) -> set[str]:
    """Return all pieces of text that a reader sees."""
    return {text.strip() for text in parse(page).itertext()}


def words(page: str) -> set[str]:
    return {word.strip(",.;()") for text in texts(page) for word in text.split()}


def section(page: str, title: str) -> ElementTree.Element:
    sections = [
        element for element in parse(page).iter("section") if element.findtext("h2") == title
    ]
    assert len(sections) == 1
    return sections[0]


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


# --- markup -------------------------------------------------------------------------------------


class Balance(HTMLParser):
    """Checks that each element is closed in its place, with a parser of HTML like a browser's."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert len({name for name, _ in attrs}) == len(attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("meta", "link")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("make", [sample, empty, one_message])
def test_the_page_is_well_formed_for_both_kinds_of_parser(make: Any) -> None:
    page = report_page.render(make())
    root = parse(page)
    assert root.tag == "html"
    assert root.get("lang") == "en"
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert balance.open == []
    assert balance.seen.count("script") == balance.seen.count("style") == 1


def test_plots_and_tables_have_descriptions() -> None:
    root = parse(report_page.render(sample()))
    plots = [element for element in root.iter("svg") if element.get("role") == "img"]
    assert len(plots) == 1 + 2 + 2  # timeline, histograms, files
    for plot in plots:
        assert plot[0].tag == "title"
        assert plot[1].tag == "desc"
        assert plot.get("aria-label") == f"{plot[0].text}: {plot[1].text}"
    inside = {id(element) for plot in plots for element in plot.iter("svg")}
    for other in root.iter("svg"):
        assert id(other) in inside or other.get("aria-hidden") == "true"
    for table in root.iter("table"):
        assert table.findtext("caption")
        assert all(head.get("scope") == "col" for head in table.iter("th"))


@pytest.mark.parametrize("make", [sample, empty, one_message])
def test_the_page_requests_nothing(make: Any) -> None:
    page = report_page.render(make())
    links = [
        value
        for element in parse(page).iter()
        for name, value in element.items()
        if name in ("src", "href", "action", "style") or name.startswith("on")
    ]
    assert links == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_policy_allows_the_style_and_the_script_of_the_page_only() -> None:
    page = report_page.render(sample())
    policy = next(
        element.get("content") or ""
        for element in parse(page).iter("meta")
        if element.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        match = re.search(f"(?s)<{tag}>(.*?)</{tag}>", page)
        assert match
        digest = base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


# --- names and values of any kind -----------------------------------------------------------------


def test_names_are_escaped_everywhere() -> None:
    report = sample()
    report.store = report.broker = report.condition = EVIL
    report.topics[0].topic = report.lags[0].group = report.lags[0].topic = EVIL
    report.timeline = [(START_MS, EVIL, 7)]
    report.tags, report.producers = [(EVIL, 7)], [(EVIL, 7)]
    report.gaps = [GapRow(0, 1, EVIL, EVIL, EVIL)]
    report.files[0].name = EVIL
    page = report_page.render(report)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert balance.seen.count("script") == 1
    assert EVIL_SEEN in texts(page)
    page.encode()  # without lone surrogates
    for title in ("Messages over time", "Messages by topic", "Messages by tag", "Producers"):
        names = [bdi.text for bdi in section(page, title).iter("bdi")]
        assert EVIL_SEEN in names
    for title in ("Damage", "Topics", "Consumer lag"):
        assert EVIL_SEEN in list(section(page, title).itertext())


def test_a_tip_has_a_line_for_each_row_with_any_names() -> None:
    report = one_message()
    report.timeline = [(START_MS, "a\tb\nc", 1)]
    tips = [element.get("data-tip") for element in parse(report_page.render(report)).iter("rect")]
    # XML turns literal line ends and tabs into spaces, but not character references.
    assert f"{iso(START_MS)}\na\ufffdb\ufffdc\t1\tsx\nAll\t1\t" in tips


names = st.text(max_size=12)
counts = st.integers(1, 1 << 62)
times = st.integers(-(1 << 63), (1 << 63) - 1)
sizes = st.integers(0, 1 << 50)
powers = st.dictionaries(st.integers(0, 62).map(lambda power: 1 << power), counts, max_size=5)


@settings(max_examples=15)
@given(
    st.builds(
        Report,
        *[names] * 5,
        messages=sizes,
        bytes=sizes,
        body_bytes=sizes,
        first_ms=times,
        last_ms=times,
        topics=st.lists(st.builds(ReportedTopic, names, *[sizes] * 4, times, times), max_size=15),
        tags=st.lists(st.tuples(names, counts), max_size=15),
        bucket_seconds=st.sampled_from(report_module.BUCKETS_SECONDS),
        timeline=st.lists(st.tuples(times, names, counts), max_size=15),
        sizes=powers.map(lambda powers_of_two: sorted(powers_of_two.items())),
        latencies=powers.map(lambda powers_of_two: sorted(powers_of_two.items())),
        producers=st.lists(st.tuples(names, counts), max_size=5),
        gaps=st.lists(st.builds(GapRow, sizes, sizes, names, names, names), max_size=5),
        files=st.lists(
            st.builds(FileRow, names, sizes, sizes, st.none() | times, st.none() | times),
            max_size=5,
        ),
        queue_agreement=st.none() | st.builds(Agreement, sizes, sizes, sizes),
        index_agreement=st.none() | st.builds(Agreement, sizes, sizes, sizes),
        lags=st.lists(st.builds(LagRow, names, names, times), max_size=5),
        seconds=st.floats(0, 1e6),
    )
)
def test_any_values_give_a_page(report: Report) -> None:
    page = report_page.render(report)
    assert len(list(parse(page).iter("section"))) >= 10
    page.encode()


# --- numbers ------------------------------------------------------------------------------------


def test_every_number_and_name_of_the_report_is_on_the_page() -> None:
    report = sample()
    page = report_page.render(report)
    seen, seen_words = texts(page), words(page)
    elsewhere = {"bucket_seconds", "wasted"}  # "10 min"; as "unused" and as a share
    for name, value in leaves(report.as_json()):
        if value is None or name in elsewhere:
            continue
        if isinstance(value, str):
            assert not value or any(value in text for text in seen), (name, value)
        elif name in ("first_ms", "last_ms") or (name == "timeline" and value >= START_MS):
            assert iso(value) in seen, (name, value)
        elif name in ("sizes", "latencies") and value in (1, 2, 256, 1024, 4096):
            continue  # bounds: the next test
        else:
            assert f"{value:,}" in seen_words, (name, value)
    assert {"A", "bar", "is", "10", "min"} <= seen_words
    assert {"210", "536,870,912"} <= seen_words


def test_histograms_include_empty_powers_of_two() -> None:
    page = report_page.render(sample())
    sizes = section(page, "Record size")
    rows = [" | ".join("".join(cell.itertext()) for cell in row) for row in sizes.iter("tr")]
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
    latencies = section(page, "Latency from born to stored")
    assert {"0 ms", "8 ms", "512 ms"} <= {element.text for element in latencies.iter("text")}
    assert {"0", "1", "512 to 1,023"} <= {
        "".join(element.itertext()) for element in latencies.iter("td")
    }
    assert "Half are below 1 ms, 99 % below 2 ms, all below 1 s." in list(latencies.itertext())


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (99 << 10, "99 KiB"),
        (123 << 20, "123 MiB"),
        (1 << 30, "1 GiB"),
        (5 << 40, "5 TiB"),
        (5 << 50, "5,120 TiB"),
    ],
)
def test_sizes_have_a_suitable_unit(size: int, text: str) -> None:
    report = empty()
    report.bytes = size
    assert text in texts(report_page.render(report))


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (60_000, "1 min"),
        (90 * 60_000, "1.5 h"),
        (36 * HOUR_MS, "1.5 d"),
        (730 * 24 * HOUR_MS, "2 y"),
    ],
)
def test_time_spans_have_a_suitable_unit(span_ms: int, text: str) -> None:
    report = one_message()
    report.last_ms = report.first_ms + span_ms
    assert text in texts(report_page.render(report))


def test_times_out_of_range_are_numbers() -> None:
    report = one_message()
    report.first_ms, report.last_ms = -(1 << 63), (1 << 63) - 1
    assert {str(report.first_ms), str(report.last_ms)} <= texts(report_page.render(report))


# --- states -------------------------------------------------------------------------------------


def figure(page: str, name: str) -> tuple[str, ...]:
    """Return value, note and state of a key figure."""
    for element in parse(page).iter("div"):
        if element.get("class") == "card figure" and element.findtext("h2") == name:
            value, note = (paragraph.text or "" for paragraph in element.iter("p"))
            return value, note, element.findtext("h2/span") or ""
    raise AssertionError(name)


def test_agreement_is_ok_and_disagreement_is_to_be_checked() -> None:
    page = report_page.render(sample())
    assert figure(page, "Damaged ranges") == ("1", "3,190 bytes", "! check")
    queues = "1,234,560 right, 71 wrong, 83 missing"
    assert figure(page, "Queue agreement") == ("99.98 %", queues, "! check")
    index = "2,469,134 right, 0 wrong, 0 missing"
    assert figure(page, "Index agreement") == ("100 %", index, "✓ ok")
    verdict = list(section(page, "Worth a look").itertext())
    assert "1 damaged range in the log" in "".join(verdict)
    assert "71 queue entries without a message" in "".join(verdict)
    assert "83 messages without a queue entry" in "".join(verdict)


def test_a_hundred_percent_is_shown_only_for_all() -> None:
    report = sample()
    report.queue_agreement = Agreement(10**9, 1, 0)
    assert figure(report_page.render(report), "Queue agreement")[0] == "99.99 %"


def test_a_sound_store_is_healthy() -> None:
    page = report_page.render(one_message())
    assert "No damage" in "".join(section(page, "Healthy").itertext())
    assert figure(page, "Damaged ranges") == ("0", "none found", "✓ ok")


def test_the_page_of_an_empty_store() -> None:
    page = report_page.render(empty())
    assert section(page, "Empty").get("class") == "verdict"
    assert figure(page, "Messages") == ("0", "", "")
    assert figure(page, "Queue agreement") == ("—", "nothing to compare", "")
    assert {"Message store", "No messages.", "None found.", "0 files, 0 B."} <= texts(page)
    assert "1970" not in page
    assert list(parse(page).iter("table")) == []


@pytest.mark.parametrize("condition", Condition)
def test_each_condition_is_explained(condition: Condition) -> None:
    report = empty()
    report.condition = condition.value
    state = next(element for element in parse(report_page.render(report)).iter("span"))
    assert state.text == condition.value
    assert state.get("title")
    assert state.get("class") == f"state {'ok' if condition is Condition.CLEAN else 'warn'}"


# --- plots --------------------------------------------------------------------------------------


def test_a_topic_has_one_color_in_all_plots() -> None:
    page = report_page.render(sample())
    for title in ("Messages over time", "Messages by topic", "Bytes by topic"):
        colors = {
            "".join(element.itertext()): element.get("data-series")
            for element in section(page, title).iter("li")
        }
        shown = {
            name: next(v for k, v in colors.items() if k.startswith(name))
            for name in ("orders", "%RETRY%paid")
        }
        assert shown == {"orders": "s0", "%RETRY%paid": "s1"}


def test_topics_without_a_color_are_grey() -> None:
    assert report_page._OTHERS == report_module.OTHERS
    legend = section(report_page.render(sample()), "Messages over time").find("ul")
    assert legend is not None
    assert ["".join(element.itertext()) for element in legend] == [
        "orders",
        "%RETRY%paid",
        "others",
    ]
    assert legend[-1].get("data-series") == "sx"


def test_the_timeline_has_a_bounded_number_of_columns() -> None:
    report = sample()
    report.timeline = [(START_MS + number * 600_000, "orders", 1) for number in range(10_000)]
    chapter = section(report_page.render(report), "Messages over time")
    columns = [element for element in chapter.iter("rect") if element.get("class") == "hit"]
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
    chapter = section(report_page.render(report), "Commit log")
    cells = [element for element in chapter.iter("svg") if element.get("class") == "file"]
    marks = [
        [
            (element.get("x"), element.get("width"))
            for element in cell.iter("rect")
            if element.get("class") == "damage"
        ]
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
    page = report_page.render(report)
    assert len(list(section(page, "Topics").iter("tr"))) == 1 + rows
    assert "and 1 more row" in texts(page)
    cells = [
        element
        for element in section(page, "Commit log").iter("svg")
        if element.get("class") == "file"
    ]
    assert len(cells) == rows
    assert "and 7 more files" in texts(page)
    assert cells[-1].findtext("title") == f"{rows + 6:020d}"  # the file with damage is drawn
    bars = section(page, "Messages by topic").findall("ul/li")
    assert len(bars) == charts.BARS_MAX + 1
    others = rows + 1 - charts.BARS_MAX
    assert "".join(bars[-1].itertext()) == f"{others} other topics{10 * others:,}"


def test_tables_mark_the_sorted_column() -> None:
    page = report_page.render(sample())
    for title, head, order in (
        ("Topics", "Messages", "descending"),
        ("Damage", "Physical offset", "ascending"),
        ("Consumer lag", "Lag", "descending"),
    ):
        heads = {
            "".join(element.itertext()): element for element in section(page, title).iter("th")
        }
        assert heads[head].get("aria-sort") == order
        assert heads[head].get("class") == "number"
        assert [name for name, cell in heads.items() if cell.get("aria-sort")] == [head]


def test_the_report_is_not_changed() -> None:
    report = sample()
    before = dataclasses.replace(report)
    assert report_page.render(report) == report_page.render(report)
    assert report == before


def test_the_page_does_not_import_spark() -> None:
    code = "import sys; import reput.spark.pages.store; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_bytes_after_the_end_of_the_log_are_shown_but_no_damage() -> None:
    report = sample()
    for gap in report.gaps:
        gap.kind = "torn"
    page = report_page.render(report)
    assert figure(page, "Damaged ranges") == ("0", "none found", "✓ ok")
    assert "torn" in page
