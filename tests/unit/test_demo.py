"""The demo's report: its numbers are on the page, and every failure is shown."""

import dataclasses

import pytest

pytest.importorskip("pyspark", reason="reput.spark.report imports it")

from demo import page as demo_page
from demo.story import Audited, MicroBatch, Rebuilt, Story, Streamed, Traffic
from reput.spark.report import Report

START_MS = 1_795_227_600_000


def story() -> Story:
    """Return a story without failures, whose numbers are all different."""
    return Story(
        Traffic(
            message_count=2_001,
            group="readers",
            publish_seconds=2.0,
            consumed_count=2_001,
            consume_seconds=0.5,
            published=[(START_MS, 0), (START_MS + 2_000, 2_001)],
            consumed=[(START_MS + 2_000, 0), (START_MS + 2_500, 2_001)],
        ),
        Streamed(
            published=2_503,
            rows=2_503,
            different=2_503,
            seconds=5.0,
            parquet_bytes=1 << 19,
            batches=[
                MicroBatch(START_MS + 6_000, 1_700, 3.0, 803),
                MicroBatch(START_MS + 8_000, 803, 2.0, 0),
            ],
        ),
        Rebuilt(1.25, 2_507, 5_009, 0, 0),
        Audited(1.75, 2_511, {"dispatched": 2_511}, 0),
    )


def page(demo_story: Story) -> str:
    report = Report("/store", "broker-a", "clean", "0.1.0", "4.3.0", messages=1)
    return demo_page.render(report, demo_story)


def test_all_numbers_are_on_the_page() -> None:
    text = page(story())
    for number in (
        *("2,001, each acknowledged, 1,000 a second", "2,001 by group readers, 4,002 a second"),
        *("2,503 of 2,503 from", "0.5 MiB of Parquet, each once, 501 a second, lag at most 803"),
        *("2,507 queue units and 5,009 index entries from the log in 1.2 s", "byte-identical: yes"),
        *("2,511 messages in 1.8 s: 0 lost; 2,511 dispatched", "lag 0"),
    ):
        assert number in text, number
    assert "Healthy" in text
    assert "502 more were sent for the stream: group readers has not read them" in text
    assert text.count("<polyline") == 3


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("traffic", {"consumed_count": 2_000}, "2,000 of 2,001 were consumed"),
        ("streamed", {"rows": 2_504}, "the stream wrote 2,504 rows, 2,503 different ones"),
        ("streamed", {"different": 2_502}, "2,502 different ones, of 2,503 messages"),
        ("rebuilt", {"index_differences": 3}, "0 queues and 3 index files differ"),
        ("audited", {"lost": 7}, "the audit found 7 lost messages"),
    ],
)
def test_failures_come_first(part: str, change: dict[str, int], problem: str) -> None:
    whole = story()
    assert whole.problems == []
    changed = dataclasses.replace(
        whole, **{part: dataclasses.replace(getattr(whole, part), **change)}
    )
    assert len(changed.problems) == 1
    assert problem in changed.problems[0]
    text = page(changed)
    assert "Worth a look" in text
    assert problem in text


def test_skipped_parts_are_omitted() -> None:
    text = page(Story())
    assert "What was done" not in text
    assert "<polyline" not in text
    text = page(Story(rebuilt=Rebuilt(1.25, 2_507, 5_009, 0, 0)))
    assert "byte-identical: yes" in text
    assert "Through the broker" not in text
