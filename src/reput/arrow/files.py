"""Rows in files: Parquet, Arrow, JSON lines, CSV.

A file is written under another name, and gets its own when it is complete.
"""

import base64
import enum
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import pyarrow as pa

from reput.errors import InvalidOption, WriteFailed
from reput.file_sync import sync_data, sync_folder

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Size of a row group of Parquet before it is encoded, in bytes."""
_REPEATED = ["topic", "broker", "tags", "born_host", "store_host", "properties.key_value.key"]
"""Columns of few different values, which Parquet keeps in dictionaries."""
ENCODING = "body_encoding"
"""Column of text formats: ``text`` or ``base64``."""


class BodyForm(enum.StrEnum):
    """Form of bodies in JSON lines and CSV."""

    AUTO = "auto"
    TEXT = "text"
    BASE64 = "base64"


def body_form(text: str) -> BodyForm:
    """Return the form of bodies with this name. Raises ``InvalidOption``."""
    if text not in list(BodyForm):
        raise InvalidOption("body", text, ", ".join(BodyForm))
    return BodyForm(text)


@dataclass(frozen=True)
class Exported:
    """A written file."""

    file: str
    message_count: int
    """Number of rows."""
    file_size: int
    """Size in bytes."""


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""

    def close(self) -> None:
        """Write the end of the file."""


class _Parquet:
    def __init__(self, file: IO[bytes], schema: pa.Schema, body: BodyForm) -> None:
        import pyarrow.parquet as pq

        self._schema = schema
        repeated = [name for name in _REPEATED if name.partition(".")[0] in schema.names]
        self._writer = pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=repeated or False
        )
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema))
        self._gathered, self._gathered_bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


class _Arrow:
    def __init__(self, file: IO[bytes], schema: pa.Schema, body: BodyForm) -> None:
        self._writer = pa.ipc.new_file(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    """A JSON document per line; times in ms since the epoch, as in the output of the commands."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, body: BodyForm) -> None:
        self._file = file
        self._body = body
        self._encoder = msgspec.json.Encoder()

    def write(self, batch: pa.RecordBatch) -> None:
        columns: dict[str, Sequence[Any]] = {}
        for field, array in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_timestamp(field.type):
                columns[field.name] = (
                    array.cast(pa.timestamp("ms", "UTC")).cast("int64").to_pylist()
                )
            elif pa.types.is_map(field.type):
                columns[field.name] = [
                    None if pairs is None else dict(pairs) for pairs in array.to_pylist()
                ]
            elif pa.types.is_binary(field.type):
                columns |= _texts(field.name, array, self._body)
            else:
                columns[field.name] = array.to_pylist()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        self._file.write(self._encoder.encode_lines(rows))

    def close(self) -> None:
        pass


class _Csv:
    """Null is an empty field, an empty text is ``""``; keys and properties are JSON."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, body: BodyForm) -> None:
        self._file = file
        self._body = body
        self._encoder = msgspec.json.Encoder()
        self._writer: Any = None
        self.write(pa.RecordBatch.from_pylist([], schema))  # the headings

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow.csv as pc

        columns: dict[str, Any] = {}
        for field, array in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_nested(field.type):
                columns[field.name] = pa.array(self._documents(field, array), pa.string())
            elif pa.types.is_binary(field.type):
                texts = _texts(field.name, array, self._body)
                columns |= {name: pa.array(column, pa.string()) for name, column in texts.items()}
            else:
                columns[field.name] = array
        shown = pa.RecordBatch.from_pydict(columns)
        if self._writer is None:
            self._writer = pc.CSVWriter(self._file, shown.schema)
        self._writer.write_batch(shown)

    def _documents(self, field: pa.Field, array: pa.Array) -> Iterator[str | None]:
        for value in array.to_pylist():
            if value is None:
                yield None
            else:
                plain = dict(value) if pa.types.is_map(field.type) else value
                yield self._encoder.encode(plain).decode()

    def close(self) -> None:
        self._writer.close()


_FORMATS: dict[str, Callable[[IO[bytes], pa.Schema, BodyForm], _Writer]] = {
    ".parquet": _Parquet,
    ".arrow": _Arrow,
    ".jsonl": _JsonLines,
    ".csv": _Csv,
}


def write(
    file: Path,
    schema: pa.Schema,
    batches: Callable[[], Iterator[pa.RecordBatch]],
    *,
    body: BodyForm,
    force: bool,
) -> Exported:
    """Write batches to a file; its ending selects the format. See ``reput.arrow.export``."""
    make = _FORMATS.get(file.suffix.lower())
    if make is None:
        raise InvalidOption("to", str(file), f"a file that ends in {', '.join(_FORMATS)}")
    if file.exists() and not force:
        raise InvalidOption("to", str(file), "the name of a new file, or force to replace this one")
    rows = batches()  # planned first: no file for a read that is refused
    count = 0
    with _draft(file) as draft, closing(make(draft, schema, body)) as writer:
        for batch in rows:
            writer.write(batch)
            count += batch.num_rows
    return Exported(str(file), count, file.stat().st_size)


@contextmanager
def _draft(file: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces another one when it is complete; after an error it is deleted.

    Raises:
        WriteFailed: It was not written.
    """
    draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as opened:
            yield opened
            opened.flush()
            sync_data(opened.fileno())
        draft.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise WriteFailed(str(file), f"cannot write: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _texts(name: str, array: pa.Array, form: BodyForm) -> dict[str, list[str | None]]:
    """Return a binary column as texts; for bodies also how each is encoded."""
    values: list[bytes | None] = array.to_pylist()
    if name != "body":
        return {name: [_base64(value) for value in values]}
    texts = [_encoded(value, form) for value in values]
    return {name: [text for _, text in texts], ENCODING: [encoding for encoding, _ in texts]}


def _encoded(body: bytes | None, form: BodyForm) -> tuple[str | None, str | None]:
    if body is None:
        return None, None
    if form is BodyForm.TEXT:
        return "text", body.decode("utf-8", "backslashreplace")
    if form is BodyForm.AUTO:
        try:
            return "text", body.decode()
        except UnicodeDecodeError:
            pass
    return "base64", _base64(body)


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
