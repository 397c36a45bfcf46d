"""Request frames of the load generator, with headers laid out as Java's clients write them.

``FrameRing`` holds the frames of one connection's sends. They are encoded once; numpy patches what
differs from message to message, for a thousand messages at a time:

    opaque        8 decimal digits, or 4 bytes in a binary header
    born time     13 decimal digits
    unique keys   32 hexadecimal digits, one key for each message of a batch:
                  12 of the run, 4 of the connection, 4 of the place in the batch, 12 that count
                  requests. The count is last, as in Java's keys: consecutive keys then have close
                  hashes, which the broker's index files serve faster than scattered ones
"""

import functools
import itertools
import json
import re
import struct
import time
from collections.abc import Mapping, Sequence

import numpy as np

from reput.format import batch, command as commands, signing
from reput.format.codes import LanguageCode, RequestCode
from reput.format.command import Command, Serialization
from reput.format.signing import Signer

OPAQUE_DIGITS = 8
OPAQUE_FIRST = 10**7
OPAQUE_COUNT = (9 * 10**7) // 65_536 * 65_536
"""Opaques of one connection. A multiple of any power of two up to 65,536."""
OPAQUE_NAME = b'"opaque":'
_OPAQUE_AT_BINARY = 13
_BORN_MS = 1_234_567_890_123
_VERSION = 399
_PLACE_DIGITS = 4
_PATCH_ROWS = 1024


# --- requests -----------------------------------------------------------------------------------


def request(
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    flag: int = 0,
) -> bytes:
    """Return a request with a JSON header, its members in Java's order."""
    header = {
        "code": code,
        "extFields": fields or {},
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": _VERSION,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


def send_fields(
    topic: str,
    queue_id: int,
    properties: str,
    *,
    born_ms: int | None = None,
    group: str = "bench-producer",
    is_batch: bool = False,
) -> dict[str, str]:
    """Return the fields of a SEND_MESSAGE_V2; ``born_ms`` is the current time by default."""
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000 if born_ms is None else born_ms),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if is_batch else "false",
    }


def properties_of(key: str) -> str:
    """Return the encoded properties of a message with this unique key."""
    return f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"


def send(topic: str, queue_id: int, body: bytes) -> bytes:
    """Return a SEND_MESSAGE_V2 with a JSON header."""
    fields = send_fields(topic, queue_id, properties_of("0" * 32))
    return request(RequestCode.SEND_MESSAGE_V2, fields, body)


def pull_fields(
    topic: str, queue_id: int, queue_offset: int, count: int, *, group: str, hold_ms: int = 0
) -> dict[str, str]:
    """Return the fields of a PULL_MESSAGE with its subscription; with 0 ms it is not held."""
    return {
        "commitOffset": "0",
        "consumerGroup": group,
        "expressionType": "TAG",
        "maxMsgNums": str(count),
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "subVersion": "0",
        "subscription": "*",
        "suspendTimeoutMillis": str(hold_ms),
        "sysFlag": str(4 | (2 if hold_ms else 0)),
        "topic": topic,
    }


# --- sends in bulk ------------------------------------------------------------------------------


class FrameRing:
    """Send requests of one connection, consecutive in memory.

    Row ``n % row_count`` is the request with number ``n``. The queues take turns.

    Args:
        frames: A request for each queue, as ``ring_frames`` returns them.
        key_head: The digits with which all unique keys of these frames begin.
        row_count: Number of rows at least.
        signer: Signs each request again, as its fields change.
    """

    def __init__(
        self,
        frames: Sequence[bytes],
        key_head: bytes,
        row_count: int,
        signer: Signer | None = None,
    ) -> None:
        self._key_head = key_head
        self._cycle_rows = len(frames)
        cycle_count = max(3, -(-row_count // len(frames)))
        cycle = b"".join(frames)
        self._cycle_bytes = len(cycle)
        self.row_count = cycle_count * len(frames)
        sizes = itertools.islice(itertools.cycle(map(len, frames)), self.row_count)
        self._starts = [0, *itertools.accumulate(sizes)]
        self._data = np.tile(np.frombuffer(cycle, np.uint8), cycle_count)
        self._view = self._data.data
        self._cycle_count = cycle_count
        self._patch_cycles = max(1, min(_PATCH_ROWS, self.row_count // 2) // len(frames))
        self.patch_rows = self._patch_cycles * len(frames)
        """Number of rows that are patched at a time."""
        self._patched_count = 0
        self._signer = signer
        self._signatures_at = [] if signer is None else [_signature_in(frame) for frame in frames]
        self._is_json = frames[0][4] == Serialization.JSON
        self._columns = [
            self._columns_of(frame, start)
            for frame, start in zip(frames, self._starts, strict=False)
        ]

    def _columns_of(self, frame: bytes, start: int) -> "_Columns":
        """Return the fields to patch in the rows of one queue, as views of the ring."""

        def column(position: int, kind: str) -> np.ndarray:
            return np.ndarray(
                (self._cycle_count,),
                np.dtype(kind),
                self._data.data,
                start + position,
                (self._cycle_bytes,),
            )

        if self._is_json:
            opaque_at = frame.index(OPAQUE_NAME) + len(OPAQUE_NAME)
            opaques = [column(opaque_at, "u4"), column(opaque_at + 4, "u4")]
        else:
            opaques = [column(_OPAQUE_AT_BINARY, ">i4")]
        born_at = frame.index(b"%d" % _BORN_MS)
        return _Columns(
            opaques,
            [
                [column(position + 4 * part, "u4") for part in range(3)]
                for position in self._counts_in(frame)
            ],
            column(born_at, "S13"),
        )

    def _counts_in(self, frame: bytes) -> list[int]:
        """Return the positions of the digits that count requests, in each unique key."""
        heads = re.finditer(re.escape(self._key_head), frame)
        return [head.end() + _PLACE_DIGITS for head in heads]

    def rows(self, number: int, count: int) -> tuple[memoryview, ...]:
        """Return the bytes of ``count`` requests from ``number`` on, in at most two pieces.

        ``count`` is at most ``row_count - patch_rows``.
        """
        while self._patched_count < number + count:
            self._patch()
        if self._signer is not None:
            for place in range(number, number + count):
                self._sign(place % self.row_count, self._signer)
        row = number % self.row_count
        starts, end = self._starts, row + count
        if end <= self.row_count:
            return (self._view[starts[row] : starts[end]],)
        return self._view[starts[row] :], self._view[: starts[end - self.row_count]]

    def _sign(self, row: int, signer: Signer) -> None:
        frame = self._view[self._starts[row] : self._starts[row + 1]]
        request = commands.decode(frame[commands.LENGTH.size :])
        signature = signer.signature(signing.content(request.ext_fields or {}, request.body))
        position = self._signatures_at[row % self._cycle_rows]
        frame[position : position + signing.SIGNATURE_BYTES] = signature.encode()

    def _patch(self) -> None:
        """Number the next rows."""
        first = self._patched_count
        cycle = first // self._cycle_rows % self._cycle_count
        cycles = min(self._patch_cycles, self._cycle_count - cycle)
        count = cycles * self._cycle_rows
        laps, opaques = np.divmod(np.arange(first, first + count), OPAQUE_COUNT)
        opaques += OPAQUE_FIRST
        high, low = np.divmod(opaques, 10_000)
        digits = _digits()
        texts = digits[laps], digits[high], digits[low]
        for queue, columns in enumerate(self._columns):
            turn = slice(queue, None, self._cycle_rows)
            rows = slice(cycle, cycle + cycles)
            if self._is_json:
                columns.opaques[0][rows] = texts[1][turn]
                columns.opaques[1][rows] = texts[2][turn]
            else:
                columns.opaques[0][rows] = opaques[turn]
            for key in columns.keys:
                for part, text in zip(key, texts, strict=True):
                    part[rows] = text[turn]
        self._patched_count += count

    def stamp(self, number: int, count: int, born_ms: int) -> None:
        """Set the born time of ``count`` requests from ``number`` on."""
        first = number // self._cycle_rows
        last = (number + count - 1) // self._cycle_rows
        start, end = first % self._cycle_count, last % self._cycle_count + 1
        pieces = [slice(start, end)] if start < end else [slice(start, None), slice(0, end)]
        text = b"%d" % born_ms
        for columns in self._columns:
            for rows in pieces:
                columns.born[rows] = text


def _signature_in(frame: bytes) -> int:
    """Return the position of the signature in a signed frame."""
    fields = commands.decode(frame[commands.LENGTH.size :]).ext_fields or {}
    return frame.index(fields[signing.SIGNATURE].encode())


class _Columns:
    """Fields to patch in the rows of one queue."""

    __slots__ = ("born", "keys", "opaques")

    def __init__(
        self, opaques: list[np.ndarray], keys: list[list[np.ndarray]], born: np.ndarray
    ) -> None:
        self.opaques = opaques
        self.keys = keys
        """Three parts of the digits that count requests, for each unique key."""
        self.born = born


@functools.cache
def _digits() -> np.ndarray:
    """Return the four decimal digits of 0 to 9,999, each number as one word."""
    return np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), "u4")


def key_head(connection: int) -> bytes:
    """Return the digits with which the unique keys of a connection of this run begin."""
    return b"%012X%04X" % (time.time_ns() >> 10 & (1 << 48) - 1, connection & 0xFFFF)


def ring_frames(
    topic: str,
    queue_ids: Sequence[int],
    body: bytes,
    key_head: bytes,
    *,
    batch_count: int = 1,
    group: str = "bench-producer",
    is_oneway: bool = False,
    is_json: bool = True,
    signer: Signer | None = None,
) -> list[bytes]:
    """Return the frames of a ``FrameRing``: a send to each queue.

    Args:
        topic: The topic.
        queue_ids: Its queues on the broker of the connection.
        body: Body of each message.
        key_head: The digits with which all unique keys begin, as ``key_head`` returns them.
        batch_count: Messages of a request; with more than 1 it is a SEND_BATCH_MESSAGE.
        group: The producer group.
        is_oneway: The broker sends no reply.
        is_json: Whether headers are JSON, else binary.
        signer: Signs the frames.
    """
    keys = [f"{key_head.decode()}{place:04X}{'0' * 12}" for place in range(batch_count)]
    flag = commands.IS_ONEWAY if is_oneway else 0
    is_batch = batch_count > 1
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    if is_batch:
        body = batch.encode(
            batch.InnerMessage(0, body, properties_of(key).encode()) for key in keys
        )
    frames = []
    for queue_id in queue_ids:
        fields = send_fields(
            topic,
            queue_id,
            "" if is_batch else properties_of(keys[0]),
            born_ms=_BORN_MS,
            group=group,
            is_batch=is_batch,
        )
        if signer is not None:
            signed = signer.sign(Command(code, ext_fields=fields, body=body))
            fields = signed.ext_fields or {}
        if is_json:
            frames.append(request(code, fields, body, opaque=OPAQUE_FIRST, flag=flag))
        else:
            command = Command(
                code,
                OPAQUE_FIRST,
                flag,
                LanguageCode.JAVA,
                _VERSION,
                ext_fields=fields,
                body=body,
                serialization=Serialization.ROCKETMQ,
            )
            frames.append(commands.encode(command))
    return frames
