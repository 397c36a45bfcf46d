"""The table of an audit: a row per message, in Parquet files that tasks write.

    TABLE/messages/00000000000134217728.parquet   a range of the log, named by its start
    TABLE/messages/units-000000.parquet           messages that have a unit and no record
    TABLE/links/                                  results of comparing rows with each other
    TABLE/audit.json                              the summary, once the table is complete

A task writes the same rows under the same name however often it runs. A folder with a summary
belongs to an audit; the next audit empties it.
"""

import json
import uuid
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from reput.errors import InvalidOption, WriteFailed
from reput.format import kernels, names, properties as props
from reput.spark.jobs.audit.judged import Judged
from reput.spark.jobs.audit.verdicts import (
    INDEXED,
    REASONS,
    STAGES,
    VERDICTS,
    MessageVerdict,
    Reason,
)
from reput.spark.jobs.dispatch.write_plan import QueueKey
from reput.store.files import files
from reput.store.queues.consume_queue_view import UnitArray

MESSAGES = "messages"
LINKS = "links"
SUMMARY = "audit.json"
_OPERATION_TOPICS = (names.OP_HALF_TOPIC, names.ROCKSDB_OP_HALF_TOPIC)
_OPERATION_SEPARATOR = ","
_DATE_MS_MAX = 253_402_300_799_999
"""Last millisecond of the year 9999."""
_ROW_GROUP_ROWS = 64 * 1024
_WORDS = pa.dictionary(pa.int8(), pa.string())

SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "physical_offset": pa.int64(),
        "size": pa.int32(),
        "store_timestamp": pa.timestamp("ms", tz="UTC"),
        "uniq_key": pa.string(),
        "sys_flag": pa.int32(),
        "verdict": _WORDS,
        "reason": _WORDS,
        "indexed": _WORDS,
        "stage": _WORDS,
        "groups_consumed": pa.list_(pa.string()),
        "groups_pending": pa.list_(pa.string()),
        "attempts": pa.int32(),
        "origin_message_id": pa.string(),
        "due": pa.timestamp("ms", tz="UTC"),
        "real_topic": pa.string(),
        "prepared_transaction_offset": pa.int64(),
        "body_crc": pa.int32(),
        "body_size": pa.int32(),
        "ends": pa.list_(pa.int64()),
    }
)


class RowWriter:
    """Writes a file of the table, which gets its name once it is complete.

    Args:
        table: Folder or URI of the table.
        name: Name of the file, without its suffix.
    """

    def __init__(self, table: str, name: str) -> None:
        self._fs, root = _open(table)
        self._path = f"{root}/{MESSAGES}/{name}.parquet"
        # An object store names an object when it is closed; a folder needs a draft.
        is_local = isinstance(self._fs, fs.LocalFileSystem)
        self._draft = f"{root}/.{name}-{uuid.uuid4().hex}" if is_local else self._path
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if self._draft != self._path:
            if error is None:
                self._fs.move(self._draft, self._path)
            else:
                self._fs.delete_file(self._draft)

    def put(self, window: Judged) -> None:
        """Write a row per record of a window."""
        self._put(_rows(window))

    def put_damaged(
        self, key: QueueKey, reason: Reason, numbers: npt.NDArray[np.int64], units: UnitArray
    ) -> None:
        """Write a row per message of a queue that has a unit and no record."""
        count = len(numbers)
        known: dict[str, Any] = {
            "topic": [key[0]] * count,
            "queue_id": [key[1]] * count,
            "queue_offset": numbers,
            "physical_offset": units["physical_offset"].astype(np.int64),
            "size": units["size"].astype(np.int32),
            "verdict": _words(
                np.full(count, VERDICTS.index(MessageVerdict.DAMAGED), np.int8), VERDICTS
            ),
            "reason": _words(np.full(count, REASONS.index(reason), np.int8), REASONS),
        }
        columns = {
            name: known.get(name, pa.nulls(count, SCHEMA.field(name).type)) for name in SCHEMA.names
        }
        self._put(pa.table(columns, SCHEMA))

    def _put(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._draft, SCHEMA, filesystem=self._fs, compression="zstd"
            )
        self._writer.write_table(rows, _ROW_GROUP_ROWS)


def prepare(table: str) -> None:
    """Create the folder of a table, and empty that of an earlier audit.

    Raises:
        InvalidOption: It holds other files.
        WriteFailed: It cannot be created.
    """
    system, root = _open(table)
    try:
        present = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
        its_own = {MESSAGES, LINKS, SUMMARY}
        foreign = [entry.base_name for entry in present if entry.base_name not in its_own]
        foreign = [name for name in foreign if not name.startswith(".")]
        if foreign:
            raise InvalidOption(
                "table", table, f"a folder that is empty or an audit's, which {foreign[0]!r} is not"
            )
        system.create_dir(root, recursive=True)
        system.delete_dir_contents(root, missing_dir_ok=True)
        system.create_dir(f"{root}/{MESSAGES}")
    except OSError as error:
        raise WriteFailed(table, f"cannot be created: {error}") from error


def finish(table: str, summary: dict[str, Any]) -> None:
    """Write the summary: the table is complete."""
    system, root = _open(table)
    with system.open_output_stream(f"{root}/{SUMMARY}") as stream:
        stream.write(json.dumps(summary, indent=2).encode())


def spark_path(table: str, name: str) -> str:
    """Return Spark's name of a folder of the table; Spark would not take a plain path as local."""
    root = files.absolute(table).rstrip("/")
    return f"{root}/{name}" if "://" in root else f"file://{root}/{name}"


def is_finished(table: str) -> bool:
    """Return whether there is the table of a completed audit."""
    system, root = _open(table)
    return bool(system.get_file_info(f"{root}/{SUMMARY}").type == fs.FileType.File)


def _open(table: str) -> tuple[fs.FileSystem, str]:
    if "://" in table:
        system, root = fs.FileSystem.from_uri(files.arrow_uri(table))
        return system, root.rstrip("/")
    return fs.LocalFileSystem(), table.rstrip("/")


# --- rows ----------------------------------------------------------------------------------------


def _rows(window: Judged) -> pa.Table:
    columns = window.columns
    count = columns.count
    properties = _Properties(columns)
    consumed, pending = _readers(window)
    due = window.due_ms
    values: dict[str, Any] = {
        "topic": pa.DictionaryArray.from_arrays(
            window.topic_ids, window.topics
        ).dictionary_decode(),
        "queue_id": columns.numbers("queue_id"),
        "queue_offset": columns.numbers("queue_offset"),
        "physical_offset": columns.numbers("physical_offset"),
        "size": columns.numbers("store_size"),
        "store_timestamp": _times(columns.numbers("store_timestamp")),
        "uniq_key": texts_of(columns.unique_keys()),
        "sys_flag": columns.numbers("sys_flag"),
        "verdict": _words(window.verdicts, VERDICTS),
        "reason": _words(window.reasons, REASONS),
        "indexed": _words(window.indexed, INDEXED),
        "stage": _words(window.stages, STAGES),
        "groups_consumed": consumed,
        "groups_pending": pending,
        "attempts": columns.numbers("reconsume_times"),
        "origin_message_id": properties.column(props.ORIGIN_MESSAGE_ID),
        "due": _times(due, due == 0),
        "real_topic": properties.column(props.REAL_TOPIC),
        "prepared_transaction_offset": columns.numbers("prepared_transaction_offset"),
        "body_crc": columns.numbers("body_crc"),
        "body_size": columns.numbers("body_size"),
        "ends": _ended(window),
    }
    assert len(values["uniq_key"]) == count
    return pa.table(values, SCHEMA)


def _times(times_ms: npt.NDArray[np.int64], is_none: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return times; null for none, and for numbers that are no date."""
    is_date = np.abs(times_ms) <= _DATE_MS_MAX
    mask = ~is_date if is_none is None else ~is_date | is_none
    return pa.array(times_ms, mask=mask).cast(_type("due"))


def _type(name: str) -> pa.DataType:
    return SCHEMA.field(name).type


def _words(codes: npt.NDArray[np.int8], words: tuple[Any, ...]) -> pa.DictionaryArray:
    """Return words by their positions; None is null."""
    has_none = words[0] is None
    texts = pa.array([str(word) for word in words if word is not None])
    places = pa.array(codes - has_none, mask=codes == 0 if has_none else None)
    return pa.DictionaryArray.from_arrays(places, texts)


def texts_of(runs: kernels.Runs) -> pa.Array:
    """Return the texts of runs; null where a run is absent."""
    valid = None if runs.present is None else pa.array(runs.present).buffers()[1]
    buffers = [valid, pa.py_buffer(runs.offsets), pa.py_buffer(runs.data)]
    return pa.Array.from_buffers(pa.string(), len(runs.offsets) - 1, buffers)


class _Properties:
    """Columns of single properties of a window's records."""

    def __init__(self, columns: kernels.Columns) -> None:
        pairs = columns.properties()
        self._count = columns.count
        self._offsets = pairs.offsets
        self._names = texts_of(pairs.names)
        self._values = texts_of(pairs.values)

    def column(self, name: str) -> pa.Array:
        """Return a property of each record, null if it has none."""
        places = np.flatnonzero(np.asarray(pc.equal(self._names, name)))
        rows = np.searchsorted(self._offsets, places, "right") - 1
        of_row = np.zeros(self._count, np.int64)
        of_row[rows] = places
        is_none = np.ones(self._count, np.bool_)
        is_none[rows] = False
        return self._values.take(pa.array(of_row, mask=is_none))


def _readers(window: Judged) -> tuple[pa.Array, pa.Array]:
    """Return the groups that consumed each record, and the groups for which it is pending."""
    sets = window.readers.sets
    places = pa.array(window.readers.set_of, mask=window.readers.set_of < 0)
    kind = _type("groups_consumed")
    return (
        pa.array([consumed for consumed, _ in sets], kind).take(places),
        pa.array([pending for _, pending in sets], kind).take(places),
    )


def _ended(window: Judged) -> pa.Array:
    """Return the queue offsets of the half messages that each op message ends."""
    of_operations = [i for i, topic in enumerate(window.topics) if topic in _OPERATION_TOPICS]
    rows = np.flatnonzero(np.isin(window.topic_ids, of_operations))
    if not len(rows):
        return pa.nulls(window.columns.count, _type("ends"))
    ended: list[list[int] | None] = [None] * window.columns.count
    bodies, _ = window.columns.take(rows).bodies()
    data = bodies.data.tobytes()
    for number, row in enumerate(rows.tolist()):
        text = data[bodies.offsets[number] : bodies.offsets[number + 1]].decode("ascii", "replace")
        words = [word.strip() for word in text.split(_OPERATION_SEPARATOR)]
        ended[row] = [int(word) for word in words if word.isascii() and word.isdigit()]
    return pa.array(ended, _type("ends"))
