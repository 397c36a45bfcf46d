"""Store writers without a JVM: the calls that Spark would make, with pickled objects."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema

from reput.spark import options as read_options
from reput.spark.importing import options as import_options, sink as store_sink
from reput.spark.importing.sink import StoreStreamWriter, StoreWriter
from reput.spark.rows import message_fields
from reput.spark.scan import MessageScan

_PICKLE = CloudPickleSerializer()
SIZES = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "maxHashSlotNum": 200,
    "maxIndexNum": 1000,
    "maxMessageSize": 16 * 1024,
}
"""Sizes so small that a few hundred messages fill several files of each kind."""

Partitions = Sequence[Sequence[pa.RecordBatch]]


def texts(path: Path, **options: object) -> dict[str, str]:
    """Return options in the form in which Spark passes them."""
    return {name: str(value) for name, value in {**SIZES, **options, "path": path}.items()}


def sent(value: Any) -> Any:
    """Pickle and unpickle a value, as between processes."""
    return _PICKLE.loads(_PICKLE.dumps(value))


def batch(rows: Sequence[Mapping[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    """Return rows as the record batch that Spark passes to a writer."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    known = {
        "body": pa.binary(),
        "queue_id": pa.int32(),
        "delay_level": pa.int32(),
        "flag": pa.int32(),
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "born_timestamp": pa.timestamp("us", "UTC"),
        "store_timestamp": pa.timestamp("us", "UTC"),
        "deliver_at": pa.timestamp("us", "UTC"),
        **types,
    }
    arrays = [pa.array([row.get(n) for row in rows], known.get(n, pa.string())) for n in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def write(
    path: Path, partitions: Partitions, *, overwrite: bool = False, **options: object
) -> None:
    """Do the same as ``df.write.format("rocketmq").options(...).save(path)``."""
    schema = from_arrow_schema(partitions[0][0].schema)
    writer = StoreWriter(import_options.parse(texts(path, **options)), schema, overwrite)
    messages = [sent(sent(writer).write(iter(part))) for part in partitions]
    sent(writer).commit(messages)


class Stream:
    """The micro-batches of one ``df.writeStream`` query.

    Args:
        monkeypatch: Sets the query id, which Spark passes to its workers.
        path: The store's folder.
        query: The id.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, path: Path, query: str = "q1", **options: object
    ) -> None:
        self._monkeypatch = monkeypatch
        self._options = import_options.parse(texts(path, **options))
        self._query = query

    def write(self, batch_id: int, partitions: Partitions) -> None:
        """Run a micro-batch, for the first time or again."""
        self._monkeypatch.setattr(store_sink, "_query_id", lambda: self._query)
        schema = from_arrow_schema(partitions[0][0].schema)

        def made() -> StoreStreamWriter:
            return StoreStreamWriter(self._options, schema, overwrite=False)

        messages = [pickle.loads(pickle.dumps(made().write(iter(part)))) for part in partitions]
        made().commit(messages, batch_id)


def read(path: Path, **options: object) -> list[pa.RecordBatch]:
    """Do the same as ``spark.read.format("rocketmq").load(path)``."""
    given = {name: str(value) for name, value in {"scan": "log", **options, "path": path}.items()}
    parsed = read_options.parse(given)
    columns = list(message_fields(parsed))
    scan = MessageScan(parsed, columns)
    return [row for task in scan.tasks() for row in MessageScan(parsed, columns).read(task)]


def rows(path: Path, **options: object) -> list[dict[str, Any]]:
    """Return the rows of a store as dictionaries."""
    read_rows: list[dict[str, Any]] = pa.Table.from_batches(read(path, **options)).to_pylist()
    return read_rows
