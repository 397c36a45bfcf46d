"""Exports: each format has the rows of the scan, and a file is whole or not there."""

import base64
import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import golden
import reput.arrow
import store_builder
from reput.errors import CorruptRecord, InvalidOption, WriteFailed

TOPIC = "GoldenOne"


def clean() -> Path:
    return golden.unpack("4.9.7", "clean")


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return reput.arrow.scan(clean(), topic=TOPIC).read_all()


def test_parquet_and_arrow_have_the_same_table(tmp_path: Path, table: pa.Table) -> None:
    for ending, read in (
        ("parquet", pq.read_table),
        ("arrow", lambda f: pa.ipc.open_file(f).read_all()),
    ):
        file = tmp_path / f"orders.{ending}"
        done = reput.arrow.export(clean(), file, topic=TOPIC)
        assert (done.file, done.message_count) == (str(file), table.num_rows)
        assert done.file_size == file.stat().st_size
        assert read(file) == table
    assert (
        pq.ParquetFile(tmp_path / "orders.parquet").metadata.row_group(0).column(9).compression
        == "ZSTD"
    )


def test_json_lines(tmp_path: Path, table: pa.Table) -> None:
    file = tmp_path / "orders.jsonl"
    reput.arrow.export(clean(), file, topic=TOPIC)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for row, expected in zip(rows, table.to_pylist(maps_as_pydicts="strict"), strict=True):
        assert body_of(row) == expected.pop("body")
        for name in ("born_timestamp", "store_timestamp"):
            assert row[name] == round(expected.pop(name).timestamp() * 1000)
        assert {name: row[name] for name in expected} == expected


def body_of(row: dict[str, Any]) -> bytes:
    decode = {"text": str.encode, "base64": base64.b64decode}[row["body_encoding"]]
    return bytes(decode(row["body"]))


def test_csv(tmp_path: Path, table: pa.Table) -> None:
    file = tmp_path / "orders.csv"
    reput.arrow.export(clean(), file, topic=TOPIC)
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    for row, expected in zip(rows, table.to_pylist(maps_as_pydicts="strict"), strict=True):
        assert body_of(row) == expected["body"]
        assert json.loads(row["keys"]) == expected["keys"]
        assert json.loads(row["properties"]) == expected["properties"]
        assert int(row["queue_offset"]) == expected["queue_offset"]
    times = pa.csv.read_csv(file)["store_timestamp"].cast(pa.timestamp("us", "UTC"))
    assert times.to_pylist() == table["store_timestamp"].to_pylist()


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_forms_of_bodies(tmp_path: Path, ending: str) -> None:
    bodies = [b"caf\xc3\xa9", b"\xff\x00", b""]
    store_builder.build(tmp_path / "store", [store_builder.message(body=body) for body in bodies])
    expected = {
        "auto": [("café", "text"), (base64.b64encode(bodies[1]).decode(), "base64"), ("", "text")],
        "text": [("café", "text"), ("\\xff\x00", "text"), ("", "text")],
        "base64": [(base64.b64encode(body).decode(), "base64") for body in bodies],
    }
    for form, texts in expected.items():
        file = tmp_path / f"{form}.{ending}"
        reput.arrow.export(tmp_path / "store", file, columns=["body"], body=form)
        with file.open(encoding="utf-8", newline="") as opened:
            rows = (
                [json.loads(line) for line in opened]
                if ending == "jsonl"
                else list(csv.DictReader(opened))
            )
        assert [(row["body"], row["body_encoding"]) for row in rows] == texts


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl", "csv"])
def test_no_rows(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"none.{ending}"
    done = reput.arrow.export(clean(), file, columns=["queue_id"], filter=[("queue_id", "=", 99)])
    assert done.message_count == 0
    if ending == "parquet":
        assert pq.read_table(file).schema.names == ["queue_id"]
    if ending == "csv":
        assert file.read_text() == '"queue_id"\n'


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("mine")
    with pytest.raises(InvalidOption, match=r"'to' is '.*orders.csv'; allowed: the name of a new"):
        reput.arrow.export(clean(), file, topic=TOPIC)
    assert file.read_text() == "mine"
    reput.arrow.export(clean(), file, topic=TOPIC, force=True)
    assert file.read_text().startswith('"topic"')
    assert [*tmp_path.iterdir()] == [file]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    damaged = golden.unpack("4.9.7", "torn/crc-early")
    with pytest.raises(CorruptRecord):
        reput.arrow.export(damaged, tmp_path / "a.parquet")
    with pytest.raises(InvalidOption, match=r"ends in .parquet, .arrow, .jsonl, .csv"):
        reput.arrow.export(clean(), tmp_path / "a.xlsx")
    with pytest.raises(InvalidOption, match="'body' is 'hex'; allowed: auto, text, base64"):
        reput.arrow.export(clean(), tmp_path / "a.csv", body="hex")
    with pytest.raises(WriteFailed, match=r"no/a\.csv: cannot write: No such file or directory"):
        reput.arrow.export(clean(), tmp_path / "no" / "a.csv")
    assert [*tmp_path.iterdir()] == []


def test_progress_is_reported(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    reput.arrow.export(
        clean(), tmp_path / "a.csv", columns=["queue_id"], maxBytesPerPartition="64k",
        on_task=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert steps == [(number + 1, len(steps)) for number in range(len(steps))]
    assert len(steps) > 5
