"""Messages of RocketMQ as Arrow data, without Spark: for pandas, Polars, DuckDB and files.

Rows, columns, options and plans are those of ``spark.read.format("rocketmq")``
(docs/reference/spark-options.md, docs/reference/spark-schema.md). Needs pyarrow, of
the extra ``arrow``.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.extras import extra_missing

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from reput.arrow.files import Exported
    from reput.arrow.message_dataset import MessageDataset
    from reput.arrow.reading import Read

__all__ = ["dataset", "export", "scan", "scan_polars", "to_pandas"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


def scan(
    source: Source = None,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002 - the word of pyarrow
    threads: int | None = None,
    **options: object,
) -> "pa.RecordBatchReader":
    """Read messages as record batches, in the order of the plan.

    The read is planned now; batches are read when they are taken, some ahead of the consumer, so
    that a store may be larger than memory.

    Args:
        source: A store folder or an archive, several of them, a pattern, a URI, or name servers
            (``host:port``), whose brokers are read up to the messages that exist now.
        columns: Names of columns, in order; None: all.
        filter: Rows to return: an expression of ``pyarrow.compute``, or tuples such as
            ``[("topic", "=", "orders"), ("queue_offset", ">=", 100)]``. Conditions on ``topic``,
            ``queue_id``, ``queue_offset``, ``physical_offset``, ``store_timestamp``, ``tags`` and
            ``msg_id`` skip files, queues and ranges.
        threads: Number of threads that read; by default one per core, at most 8. Archives and
            brokers are read by one.
        **options: Options of ``format("rocketmq")``: ``topic="orders"``. Dicts become JSON, lists
            names separated by commas. For names with a dot use ``**{"tls.enable": True}``.

    Returns:
        A reader to iterate over once. Closing or dropping it ends the read.

    Raises:
        InvalidOption: An option, column or filter is not allowed, or does not fit the store.
        StoreUnavailable: The folder is not a store, or is in use.
        CorruptRecord: A record is damaged and ``mode`` is FAILFAST; while batches are taken.
        DataLoss: Selected messages do not exist any more, unless ``failOnDataLoss`` is false.
        ReadFailed: A server does not reply, or refuses.
    """
    read = _read(source, columns, options)
    import pyarrow as pa

    batches = read.batches(read.columns, read.predicate(filter), threads)
    return pa.RecordBatchReader.from_batches(read.schema(), batches)


def to_pandas(
    source: Source = None,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002
    threads: int | None = None,
    **options: object,
) -> "pd.DataFrame":
    """Read messages into a frame of pandas, which must fit into memory.

    Arguments and errors are those of ``scan``. Needs the extra ``pandas``.
    """
    _require("pandas", "reput.arrow.to_pandas")
    reader = scan(source, columns=columns, filter=filter, threads=threads, **options)
    return reader.read_pandas()


def scan_polars(
    source: Source = None,
    *,
    columns: Sequence[str] | None = None,
    threads: int | None = None,
    **options: object,
) -> "pl.LazyFrame":
    """Return messages as a lazy frame of Polars.

    A query reads only the columns that it needs; predicates skip files, queues and ranges as
    ``filter`` of ``scan`` does; ``head`` ends the read early. Each ``collect`` plans again.

    Arguments and errors are those of ``scan``. Needs the extra ``polars``.
    """
    _require("polars", "reput.arrow.scan_polars")
    read = _read(source, columns, options)
    from reput.arrow.polars_source import lazy_frame

    return lazy_frame(read, threads)


def dataset(
    source: Source = None,
    *,
    columns: Sequence[str] | None = None,
    threads: int | None = None,
    **options: object,
) -> "MessageDataset":
    """Return messages as a dataset of pyarrow, which DuckDB queries by the name of its variable.

    DuckDB and other engines that read datasets hand over columns and predicates. Each scan plans
    again. Arguments and errors are those of ``scan``.
    """
    read = _read(source, columns, options)
    from reput.arrow.message_dataset import MessageDataset

    return MessageDataset(read, threads)


def export(
    source: Source,
    to: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002
    threads: int | None = None,
    body: str = "auto",
    force: bool = False,
    on_task: Callable[[int, int], None] | None = None,
    **options: object,
) -> "Exported":
    """Write messages to a file, batch by batch; ``reput export`` is the same as a command.

    The file appears when it is complete, and is durable on return.

    Args:
        source: As for ``scan``; so are ``columns``, ``filter``, ``threads`` and options.
        to: File to create: ``.parquet`` (zstd), ``.arrow`` (the IPC file format), ``.jsonl`` (one
            document a line, times in ms since the epoch) or ``.csv``.
        columns: Names of columns; None: all.
        filter: Rows to write.
        threads: Number of threads that read.
        body: Bodies in JSON lines and CSV: ``text`` (UTF-8, other bytes escaped), ``base64``, or
            ``auto``: text if it is UTF-8, else base64. Column ``body_encoding`` has the result.
        force: Replace an existing file.
        on_task: Called with the numbers of completed parts of the plan and of all parts.
        **options: Options of ``format("rocketmq")``.

    Raises:
        InvalidOption: As ``scan``; or the file exists, or its ending is unknown.
        WriteFailed: The file cannot be written.
    """
    read = _read(source, columns, options)
    from reput.arrow import files

    predicate = read.predicate(filter)
    return files.write(
        Path(to),
        read.schema(),
        lambda: read.batches(read.columns, predicate, threads, on_task),
        body=files.body_form(body),
        force=force,
    )


def _read(source: Source, columns: Sequence[str] | None, options: Mapping[str, object]) -> "Read":
    try:
        from reput.arrow.reading import Read
    except ModuleNotFoundError as error:
        raise extra_missing("reput.arrow", error, extra="arrow") or error from error
    return Read(source, options if columns is None else {**options, "columns": columns})


def _require(package: str, user: str) -> None:
    """Raise ``ExtraMissing`` if a package is not installed."""
    import importlib

    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise extra_missing(user, error) or error from error
