"""Each reader of whole stores returns the rows of Java's manifests.

The same readers in Spark are in tests/spark, and what each selects is tested beside it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import golden
import reput.arrow
from reput.spark import options as option_texts, rows
from reput.spark.jobs.archive import archive
from reput.spark.options import TriggerLimits
from reput.spark.streaming.stream import QueueStream
from spark import reading
from spark.in_process import InProcess
from spark.reading import Row

EVERYTHING: dict[str, Any] = {"broker": reading.BROKER, "readIsolation": "all"}


def planned(store: Path, _: Path) -> list[Row]:
    return reading.read(store, **EVERYTHING).rows


def by_arrow(store: Path, _: Path) -> list[Row]:
    """Read many small tasks in several threads."""
    scan = reput.arrow.scan(store, maxBytesPerPartition="8k", threads=3, **EVERYTHING)
    arrow_rows: list[Row] = []
    for batch in scan:
        batch.validate(full=True)
        arrow_rows += batch.to_pylist(maps_as_pydicts="strict")
    return arrow_rows


def from_an_archive(store: Path, folder: Path) -> list[Row]:
    archive(
        InProcess(), str(store), str(folder / "archive"), include_last=True, broker=reading.BROKER
    )
    return reading.read(folder / "archive", **EVERYTHING).messages


def by_a_stream(store: Path, _: Path) -> list[Row]:
    """Read micro-batches of 100 queue offsets."""
    options = {"path": str(store), "startingOffsets": "earliest", **EVERYTHING}
    parsed = option_texts.parse_stream(reading.texts(options))
    stream = QueueStream(parsed, list(rows.message_fields(parsed)))
    position, limits, stream_rows = stream.initial_offset(), TriggerLimits(max_offsets=100), []
    while (end := stream.latest_offset(position, limits)) != position:
        for task in stream.tasks(position, end):
            stream_rows += [row for batch in stream.read(task) for row in batch.to_pylist()]
        position = end
    for row in stream_rows:
        row["properties"] = dict(row["properties"])
    return sorted(stream_rows, key=lambda row: row["physical_offset"])


READERS: tuple[Callable[[Path, Path], list[Row]], ...] = (planned, by_arrow)
OF_WHOLE_QUEUES: tuple[Callable[[Path, Path], list[Row]], ...] = (from_an_archive, by_a_stream)
"""Readers for ``clean``: an archive takes long, and a stream sees what queues list."""


@pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)
def test_rows_equal_the_manifest(version: str, name: str, tmp_path: Path) -> None:
    store, expected = golden.unpack(version, name), reading.expected(version, name)
    for read in (*READERS, *(OF_WHOLE_QUEUES if name == "clean" else ())):
        got = [reading.comparable(version, row) for row in read(store, tmp_path)]
        assert got == expected, read.__name__
