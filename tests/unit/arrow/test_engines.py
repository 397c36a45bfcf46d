"""Queries of pandas, Polars and DuckDB: their results, and what they hand over to the scan."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import golden
import reput.arrow

TOPICS = ("GoldenOne", "GoldenFour")


def clean() -> Path:
    return golden.unpack("4.9.7", "clean")


def sent(*topics: str) -> list[dict[str, Any]]:
    return [m for m in golden.messages("4.9.7", "clean") if m["topic"] in topics]


@pytest.fixture
def plans(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "reput.spark")
    return caplog


# --- pandas -----------------------------------------------------------------


def test_pandas() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = reput.arrow.to_pandas(clean(), topic="GoldenOne", columns=["tags", "store_timestamp"])
    assert [*frame.columns] == ["tags", "store_timestamp"]
    assert len(frame) == len(sent("GoldenOne"))
    first = frame["store_timestamp"].iloc[0].timestamp()
    assert round(first * 1000) == sent("GoldenOne")[0]["storeTimestamp"]


# --- Polars -----------------------------------------------------------------


def test_polars_hands_predicates_over(plans: pytest.LogCaptureFixture) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    lazy = reput.arrow.scan_polars(clean())
    assert plans.text == ""  # nothing is planned yet
    counts = (
        lazy.filter(pl.col("topic").is_in(TOPICS), pl.col("queue_offset").is_between(2, 1000))
        .group_by("topic")
        .len()
        .collect()
    )
    assert "topics in ['GoldenFour', 'GoldenOne'], queue_offsets 2..1000" in plans.text
    expected = [m["topic"] for m in sent(*TOPICS) if m["queueOffset"] >= 2]
    assert dict(counts.iter_rows()) == {topic: expected.count(topic) for topic in TOPICS}


def test_polars_reads_the_columns_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    from reput.arrow.reading import Read

    asked: list[list[str]] = []
    batches = Read.batches
    monkeypatch.setattr(
        Read,
        "batches",
        lambda read, columns, *rest: (asked.append(list(columns)), batches(read, columns, *rest))[
            1
        ],
    )
    lazy = reput.arrow.scan_polars(clean())
    bodies = lazy.filter(pl.col("reconsume_times") == 0).select("body").head(3).collect()
    assert bodies.height == 3
    assert lazy.select(pl.len()).collect().item() == 759
    assert {*asked[0]} == {"body", "reconsume_times"}
    assert len(asked[1]) <= 1


def test_polars_has_all_columns_and_no_rows() -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = reput.arrow.scan_polars(clean()).filter(pl.col("topic") == "Nothing").collect()
    assert frame.height == 0
    assert frame.columns == reput.arrow.dataset(clean()).schema.names
    whole = reput.arrow.scan_polars(clean(), topic="GoldenOne").collect()
    assert whole.equals(pl.from_arrow(reput.arrow.scan(clean(), topic="GoldenOne").read_all()))


# --- DuckDB and datasets ----------------------------------------------------


def test_duckdb_hands_columns_and_predicates_over(plans: pytest.LogCaptureFixture) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    messages = reput.arrow.dataset(clean())
    query = (
        "SELECT topic, count(*), max(store_timestamp) FROM messages WHERE topic IN "
        "('GoldenOne', 'GoldenFour') AND queue_offset >= 2 AND store_timestamp > "
        "'2020-01-01T00:00:00Z' GROUP BY topic ORDER BY topic"
    )
    got = duckdb.sql(query).fetchall()
    wanted = "topics in ['GoldenFour', 'GoldenOne'], queue_offsets 2.."
    assert wanted in plans.text
    assert "store_times_us 1577836800000001.." in plans.text
    expected = [m for m in sent(*TOPICS) if m["queueOffset"] >= 2]
    assert [(topic, count) for topic, count, _ in got] == [
        (topic, sum(m["topic"] == topic for m in expected)) for topic in sorted(TOPICS)
    ]
    assert len(messages.schema.names) == 21
    assert duckdb.sql("SELECT count(*) FROM messages").fetchall() == [(759,)]


def test_duckdb_reads_a_reader() -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    reader = reput.arrow.scan(clean(), topic="GoldenOne", columns=["body"])
    got = duckdb.sql("SELECT sum(octet_length(body)) FROM reader").fetchall()
    assert got == [(sum(m["bodyLength"] for m in sent("GoldenOne")),)]
    assert isinstance(reader, pa.RecordBatchReader)


def test_a_dataset_scans() -> None:
    messages = reput.arrow.dataset(clean(), topic="GoldenOne", columns=["queue_id", "tags"])
    count = len(sent("GoldenOne"))
    assert messages.count_rows() == count
    assert messages.schema.names == ["queue_id", "tags"]
    assert messages.head(2).num_rows == 2
    assert messages.scanner(columns=[]).count_rows() == count
    tagged = messages.to_table(filter=pc.field("tags") == "TagA")
    assert tagged.num_rows == sum(m["tags"] == "TagA" for m in sent("GoldenOne"))
    computed = messages.to_table(columns={"next": pc.field("queue_id") + 1})
    assert computed["next"].to_pylist() == [m["queueId"] + 1 for m in sent("GoldenOne")]
    assert pc.scalar(True).equals(messages.partition_expression)


@pytest.mark.parametrize("use", ["get_fragments", "sort_by", "join", "filter", "replace_schema"])
def test_what_a_dataset_without_files_cannot_do_is_an_error(use: str) -> None:
    messages = reput.arrow.dataset(clean())
    with pytest.raises(NotImplementedError, match="scans only"):
        getattr(messages, use)("queue_id")
