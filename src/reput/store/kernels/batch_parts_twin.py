"""The kernel ``batch_parts.batch_records`` in plain Python."""

import re
import struct
from collections.abc import Sequence

from reput.errors import CorruptRecord
from reput.format import batch, message as record, properties as props
from reput.store.kernels.twin_memory import read, write

_TOLD = struct.Struct("=qqq")
_INT = struct.Struct(">i")
_SPACE = props.KEY_SEPARATOR.encode()
_PAIR_END = props.PROPERTY_SEPARATOR.encode()
_NAME_VALUE = props.NAME_VALUE_SEPARATOR.encode()


def _kept(properties: bytes, left_out: Sequence[bytes]) -> bytes:
    pairs = re.findall(rb"[^\x02]*\x02|[^\x02]+", properties)
    return b"".join(
        pair
        for pair in pairs
        if pair.removesuffix(_PAIR_END).partition(_NAME_VALUE)[0] not in left_out
    )


def batch_records(
    body: int,
    size: int,
    head: int,
    head_size: int,
    topic: int,
    topic_size: int,
    dropped: int,
    dropped_size: int,
    tail: int,
    tail_size: int,
    record_max: int,
    target: int,
    told: int,
) -> int:
    """Make the records of a batch body; as the kernel."""
    data = read(body, size)
    common, name, more = read(head, head_size), read(topic, topic_size), read(tail, tail_size)
    left_out = read(dropped, dropped_size).split(_PAIR_END)[:-1]
    records: list[bytes] = []
    at = spaces = 0
    while at < size:
        try:
            part, behind = batch.decode_one(data, at)
            part.property_bytes.decode()
        except (CorruptRecord, UnicodeDecodeError):
            break
        properties = props.append(_kept(part.property_bytes, left_out), more)
        made = bytearray(common + part.body + name)
        _INT.pack_into(made, len(common) - _INT.size, len(part.body))
        if len(properties) > props.LENGTH_MAX:
            break
        made += record.PROPERTIES_LENGTH.pack(len(properties)) + properties
        if len(made) > record_max:
            break
        _INT.pack_into(made, 0, len(made))
        _INT.pack_into(made, record.POSITION_FLAG, part.flag)
        records.append(bytes(made))
        spaces += part.property_bytes.count(_SPACE)
        at = behind
    made_all = b"".join(records)
    if target:
        write(target, made_all)
    write(told, _TOLD.pack(at, len(made_all), spaces))
    return len(records)
