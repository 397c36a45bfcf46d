"""Conversion between records and the columns of an archive: head, body, tail.

A record is split around its body: the bytes before it, the stored body, and the bytes after it.
Concatenated, the three are the record, byte for byte, and any reader of Parquet finds the body in a
column. Nothing large is computed or stored twice.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput.format import message as record, sys_flag as flags
from reput.format.kernels import Columns
from reput.spark.options import ReadOptions
from reput.spark.portions import unwrapped
from reput.spark.rows import FIELDS, RowMaker

HEAD, BODY, TAIL = "record_head", "body", "record_tail"
_RECORD_COLUMNS = (HEAD, BODY, TAIL)
_PLAIN_COLUMNS = tuple(name for name in FIELDS if name != BODY)
_LOW_SYS_FLAG = record.POSITION_SYS_FLAG + 3
_BODY_LENGTH_V4 = (
    record.HEAD.size + 2 * record.HOST_V4_BYTES + record.STORE_TIMESTAMP.size + record.TAIL.size - 4
)
"""Position of BODYLEN in a record with IPv4 hosts; each IPv6 host shifts it."""
_V6_MORE_BYTES = record.HOST_V6_BYTES - record.HOST_V4_BYTES

SCHEMA = pa.schema(
    [
        *((name, FIELDS[name]) for name in _PLAIN_COLUMNS),
        *((name, pa.binary()) for name in _RECORD_COLUMNS),
    ]
)
"""Columns of an archive's Parquet files."""


class ColumnMaker:
    """Makes the columns of an archive from records of a log file.

    Args:
        broker: Value of column ``broker``.
    """

    def __init__(self, broker: str) -> None:
        self._maker = RowMaker(_PLAIN_COLUMNS, ReadOptions(paths=()), broker, of_records=True)

    def table(
        self,
        data: npt.NDArray[np.uint8],
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> pa.Table:
        """Return records as a table of ``SCHEMA``.

        Args:
            data: A log file.
            positions: Positions of its records, ascending, spanning less than 2 GB.
            sizes: Sizes of the records, in bytes.
        """
        plain = self._maker.batch(Columns(data, positions))
        pieces = split_records(data, positions, sizes)
        return pa.Table.from_arrays([*plain.columns, *pieces], schema=SCHEMA)


def split_records(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> list[pa.Array]:
    """Return heads, bodies and tails of records; arguments as in ``ColumnMaker.table``."""
    if not len(positions):
        return [pa.array([], pa.binary()) for _ in _RECORD_COLUMNS]
    low_flags = data[positions + _LOW_SYS_FLAG]
    lengths_at = positions + _BODY_LENGTH_V4
    for bit in (flags.BORN_HOST_V6, flags.STORE_HOST_V6):
        lengths_at += np.where(low_flags & bit, _V6_MORE_BYTES, 0)
    body_sizes = np.zeros(len(positions), np.int64)
    for i in range(4):
        body_sizes = body_sizes << 8 | data[lengths_at + i]
    bodies_at = lengths_at + 4
    cuts = np.stack([positions, bodies_at, bodies_at + body_sizes, positions + sizes], axis=1)
    base, end = int(positions[0]), int(positions[-1] + sizes[-1])
    # One array over all the bytes, split at each border; every fourth value lies between records.
    offsets = (cuts.reshape(-1) - base).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[base:end])]
    runs = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    firsts = np.arange(0, len(offsets), 4)
    return [runs.take(pa.array(firsts + i)) for i in range(len(_RECORD_COLUMNS))]


def join_records(table: pa.Table) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Return the concatenated records of a row group, and the bounds of each.

    Args:
        table: Columns ``record_head``, ``body``, ``record_tail``. Without ``body`` the records have
            an empty body and are otherwise unchanged.
    """
    columns = [_whole(table.column(name)) for name in _RECORD_COLUMNS if name in table.column_names]
    if BODY not in table.column_names:
        columns[0] = _bodiless(columns[0])
    joined = pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.binary()))
    joined = _whole(joined)
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    return data if data is not None else pa.py_buffer(b""), bounds.astype(np.int64)


def _bodiless(heads: pa.Array) -> pa.Array:
    """Return heads with a body length of 0, their last field."""
    _, offsets, data = heads.buffers()
    if not len(heads):
        return heads
    bounds = np.frombuffer(offsets, np.int32)[heads.offset : heads.offset + len(heads) + 1]
    changed = np.frombuffer(data, np.uint8).copy()
    for i in range(1, 5):
        changed[bounds[1:] - i] = 0
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(changed)]
    return pa.Array.from_buffers(pa.binary(), len(heads), buffers)


def columns_of(table: pa.Table) -> Columns:
    """Return the decoded records of a row group; ``table`` as in ``join_records``."""
    data, bounds = join_records(table)
    return Columns(data, bounds[:-1])


def messages_inside(columns: Columns) -> Iterator[Columns]:
    """Yield the messages inside of the batch records among some records."""
    is_batch = (columns.numbers("sys_flag") & flags.INNER_BATCH) != 0
    if is_batch.any():
        yield from unwrapped(columns.take(is_batch))


def last_offsets(columns: Columns) -> npt.NDArray[np.int64]:
    """Return the queue offset of the last message of each record, in the order of the log.

    A batch record has several.
    """
    lasts = columns.numbers("queue_offset").copy()
    places = columns.numbers("physical_offset")
    for messages in messages_inside(columns):
        rows = np.searchsorted(places, messages.numbers("physical_offset"))
        np.maximum.at(lasts, rows, messages.numbers("queue_offset"))
    return lasts


def record_columns(*, has_bodies: bool = True) -> list[str]:
    """Return the names of the columns that make the record, with or without its body."""
    return [name for name in _RECORD_COLUMNS if has_bodies or name != BODY]


def writer_options(rows_max: int, level: int) -> dict[str, Any]:
    """Return the encodings of the Parquet files.

    Growing numbers are delta-encoded, ids prefix-encoded, everything else is left to zstd. Row
    groups and pages have statistics.

    Args:
        rows_max: Number of rows of the largest row group.
        level: Compression level of zstd.
    """
    growing = ("queue_offset", "physical_offset", "born_timestamp", "store_timestamp", "store_size")
    prefixed = ("msg_id", "offset_msg_id")
    repeated = [
        *("topic", "broker", "queue_id", "tags", "flag", "sys_flag", "born_host", "store_host"),
        *("reconsume_times", "prepared_transaction_offset", "properties.key_value.key"),
    ]
    words = {"ndv": max(rows_max, 1), "fpp": 0.01}
    return {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": repeated,
        "column_encoding": {
            **dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(prefixed, "DELTA_BYTE_ARRAY"),
        },
        "write_page_index": True,
        "sorting_columns": [pq.SortingColumn(SCHEMA.get_field_index("physical_offset"))],
        "bloom_filter_options": {"msg_id": words, "keys.list.element": words},
        # Statistics of bodies and parts of records are useless and large.
        "write_statistics": [
            *("topic", "queue_id", "queue_offset", "physical_offset", "msg_id", "tags"),
            *("born_timestamp", "store_timestamp"),
        ],
    }


def _whole(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return column
