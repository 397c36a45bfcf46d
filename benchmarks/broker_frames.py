"""Frames of the load generator, laid out as Java's clients send them."""

import json
import struct
import time

import numpy as np

OPAQUE_DIGITS = 8
OPAQUE_FIRST = 10**7
# Opaques begin again after a multiple of any ring's rows.
_OPAQUES = (9 * 10**7) // 65_536 * 65_536
_KEY_HEAD = "7F0000015EF818B4AAC2"
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_VERSION = 399


def frame(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    """Return a whole frame."""
    mark = serialization << 24 | len(header)
    return struct.pack(">ii", 4 + len(header) + len(body), mark) + header + body


def request(
    code: int, fields: dict[str, str] | None = None, body: bytes = b"", opaque: int = 0
) -> bytes:
    """Return a request with a JSON header, its members in Java's order."""
    header = {
        "code": code,
        "extFields": fields or {},
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": _VERSION,
    }
    return frame(json.dumps(header, separators=(",", ":")).encode(), body)


def _binary(code: int, fields: dict[str, str], body: bytes, opaque: int) -> bytes:
    extension = b"".join(
        struct.pack(f">h{len(name)}si{len(value)}s", len(name), name, len(value), value)
        for name, value in ((n.encode(), v.encode()) for n, v in fields.items())
    )
    head = struct.pack(">hbhiiii", code, 0, _VERSION, opaque, 0, 0, len(extension))
    return frame(head + extension, body, 1)


def request_fields(topic: str, queue_id: int, key: str, born_ms: int) -> dict[str, str]:
    """Return the fields of a SEND_MESSAGE_V2."""
    return {
        "a": "bench-producer",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(born_ms),
        "h": "0",
        "i": f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def send(
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    key: str = _KEY_HEAD + "0" * 12,
    opaque: int = OPAQUE_FIRST,
    is_json: bool = True,
) -> bytes:
    """Return a SEND_MESSAGE_V2 frame."""
    fields = request_fields(topic, queue_id, key, time.time_ns() // 1_000_000)
    if is_json:
        return request(310, fields, body, opaque)
    return _binary(310, fields, body, opaque)


class Ring:
    """Sends of one size, side by side in memory, with their opaques and keys to be patched."""

    def __init__(self, template: bytes, queue_at: int, rows: int, queues: int, salt: int) -> None:
        self.size = len(template)
        self._rows = rows
        self._all = np.tile(np.frombuffer(template, np.uint8), (rows, 1))
        self._view = memoryview(self._all).cast("B")
        self._all[:, queue_at] = np.frombuffer(b"0123456789", np.uint8)[np.arange(rows) % queues]
        self._is_json = template[4] == 0
        if self._is_json:
            self._opaque_at = template.index(b'"opaque":') + len(b'"opaque":')
        else:
            self._opaque_at = 13
        # The last 12 digits of the key: 4 say which connection, 8 are counted.
        key = template.index(_KEY_HEAD.encode()) + len(_KEY_HEAD)
        self._all[:, key : key + 4] = np.frombuffer(b"%04X" % salt, np.uint8)
        self._key_at = key + 4

    def rows(self, first: int, count: int) -> memoryview:
        """Return the bytes of some rows."""
        return self._view[first * self.size : (first + count) * self.size]

    def patch(self, number: int, count: int) -> None:
        """Make ``count`` rows those of the messages from ``number`` on; they do not wrap."""
        row = number % self._rows
        part = self._all[row : row + count]
        numbers = np.arange(number, number + count)
        opaques = OPAQUE_FIRST + numbers % _OPAQUES
        at = self._opaque_at
        if self._is_json:
            rest = opaques
            for digit in range(OPAQUE_DIGITS - 1, -1, -1):
                rest, figure = np.divmod(rest, 10)
                part[:, at + digit] = figure + ord("0")
        else:
            part[:, at : at + 4] = opaques.astype(">i4").view(np.uint8).reshape(-1, 4)
        for digit in range(8):
            part[:, self._key_at + digit] = _HEX[numbers >> (28 - 4 * digit) & 15]


def ring(rows: int, topic: str, body_bytes: int, queues: int, *, is_json: bool, salt: int) -> Ring:
    """Return a ring of sends that take turns on the queues."""
    noise = np.random.default_rng(7).integers(32, 127, body_bytes, np.uint8).tobytes()
    template = send(topic, 0, noise, is_json=is_json)
    other = send(topic, 1, noise, is_json=is_json)
    mark = b'"e":"' if is_json else b"\x00\x01e\x00\x00\x00\x01"
    queue_at = template.index(mark) + len(mark)
    assert template[queue_at] == ord("0")
    assert other[queue_at] == ord("1")
    return Ring(template, queue_at, rows, queues, salt)


def pull(
    topic: str,
    queue_id: int,
    queue_offset: int,
    batch: int,
    *,
    opaque: int,
    hold_ms: int = 0,
    group: str = "bench-consumer",
) -> bytes:
    """Return a PULL_MESSAGE frame that brings its subscription; 0 ms: it is not held."""
    fields = {
        "commitOffset": "0",
        "consumerGroup": group,
        "expressionType": "TAG",
        "maxMsgNums": str(batch),
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "subVersion": "0",
        "subscription": "*",
        "suspendTimeoutMillis": str(hold_ms),
        "sysFlag": str(4 | (2 if hold_ms else 0)),
        "topic": topic,
    }
    return request(11, fields, opaque=opaque)


def heartbeat(client_id: str, group: str, topic: str) -> bytes:
    """Return the heartbeat of a push consumer."""
    body = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": group,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [],
                        "expressionType": "TAG",
                        "subString": "*",
                        "subVersion": 1,
                        "tagsSet": [],
                        "topic": topic,
                    }
                ],
                "unitMode": False,
            }
        ],
        "producerDataSet": [],
    }
    return request(34, body=json.dumps(body).encode())
