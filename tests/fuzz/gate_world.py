"""The kernel ``gate`` on memory between pages, its frames, and what Python says about them."""

import base64
import ctypes
import hashlib
import hmac
import json
import struct
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from fuzz.kernel_worlds import Fence
from reput.broker.kernels import gate_words as words, native
from reput.errors import NotAFrame
from reput.format import command as commands, java, signing
from reput.format.command import LENGTH, MARK, Command
from reput.format.kernels import native as formats
from reput.format.kernels.rows import rows_of, start_of, word_count
from reput.secret import Secret
from reput.store.kernels import hot

SECRETS = {"rocketmq2": "12345678", "schlüssel-ä": "schlüssel", "AK": "x" * 65, "k" * 40: "y" * 64}
Field = tuple[str, str]
CODES = {310: ("b", ""), 10: ("topic", ""), 11: ("topic", "consumerGroup")}
"""Codes that may be granted, with the fields of topic and group."""

ROW_WORDS = word_count(words.GateRow)


class Grant(NamedTuple):
    """A grant, of the peer of the world."""

    access_key: str
    code: int
    topic: str
    group: str


class GateWorld:
    """The block of the kernel with all that it points at; buffer, scratch and rows end at a page.

    Args:
        data: The bytes in the buffer.
        grants: The grants.
        rows_max: Number of rows.
        has_sha: Whether to use instructions for SHA-1, if the processor has them.
    """

    def __init__(
        self,
        data: bytes,
        grants: Sequence[Grant] = (),
        rows_max: int = 256,
        *,
        has_sha: bool = True,
    ) -> None:
        self.buffer = Fence(len(data))
        self.buffer.write(0, data)
        self.rows = Fence(8 * ROW_WORDS * rows_max)
        self.scratch = Fence(words.SCRATCH_BYTES)
        self.accounts = rows_of(words.AccountRow, 16)
        self.grants = rows_of(words.Grant, 64)
        self.texts: list[Fence] = []
        self.codes = rows_of(words.GrantableCode, len(CODES))
        for row, (code, (topic, group)) in zip(self.codes, CODES.items(), strict=True):
            row.number = code
            row.topic, row.topic_size = self._text(topic.encode()), len(topic)
            row.group, row.group_size = self._text(group.encode()), len(group)
        block = self.block = words.GateCall()
        block.buffer = self.buffer.address
        block.end = len(data)
        block.frames = self.rows.address
        block.rows_max = rows_max
        block.scratch = self.scratch.address
        block.has_sha = has_sha and formats.has_sha()
        block.peer = 1
        block.epoch = 7
        block.seed = 12345
        block.accounts = start_of(self.accounts)
        block.account_slots = len(self.accounts)
        block.grants = start_of(self.grants)
        block.grant_slots = len(self.grants)
        block.codes = start_of(self.codes)
        block.code_count = len(CODES)
        self.slots = {name: self._add_account(name, secret) for name, secret in SECRETS.items()}
        for grant in grants:
            self.add_grant(grant)

    def _text(self, text: bytes) -> int:
        fence = Fence(len(text))
        fence.write(0, text)
        self.texts.append(fence)
        return fence.address

    def _call(self, name: str, *arguments: int) -> int:
        kinds = [ctypes.c_int64] * (1 + len(arguments))
        kernel = native.plain_function(name, kinds, is_short=True)
        return kernel(self.argument, *map(ctypes.c_int64, arguments))

    def _add_account(self, name: str, secret: str) -> int:
        data = name.encode()
        pads = self._text(b"".join(signing.key_pads(Secret(secret))))
        slot = self._call("gate_account", self._text(data), len(data), pads)
        assert 0 <= slot < len(self.accounts)
        return slot

    def add_grant(self, grant: Grant) -> None:
        topic, group = grant.topic.encode(), grant.group.encode()
        slot = self._call(
            "gate_grant",
            *(self.slots[grant.access_key], grant.code),
            *(self._text(topic), len(topic), self._text(group), len(group)),
        )
        assert 0 <= slot < len(self.grants)

    argument_kind = ctypes.c_int64

    @property
    def argument(self) -> ctypes.c_int64:
        """The argument of the kernel."""
        return ctypes.c_int64(self.block.address)

    def buffer_memory(self) -> memoryview:
        """Return the bytes in the buffer, to be changed."""
        return hot.view_at(self.buffer.address, self.buffer.size)

    def first_row(self) -> words.GateRow:
        """Return the first row."""
        return words.GateRow.from_address(self.rows.address)

    def judge(self) -> list[list[int]]:
        """Return the rows."""
        count = self._call("gate")
        size = 8 * ROW_WORDS
        assert 0 <= count <= self.rows.size // size
        data = self.rows.data
        return [list(struct.unpack_from(f"={ROW_WORDS}q", data, size * i)) for i in range(count)]

    def verdicts(self) -> list[int]:
        """Return the verdicts."""
        return [row[words.ROW.verdict] for row in self.judge()]


# --- what Python says -------------------------------------------------------------


def signature_of(secret: str, fields: dict[str, str], body: bytes) -> str:
    """Return a signature as ``AclUtils`` of 4.9.7 computes it."""
    names = sorted(set(fields) - {"Signature"}, key=lambda name: name.encode("utf-16-be"))
    content = b"".join(java.encode_utf8(fields[name]) for name in names) + body
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def expected_verdict(content: bytes, grants: Sequence[Grant] = ()) -> int:
    """Return the verdict about a frame without its length."""
    try:
        request = commands.decode(content)
    except NotAFrame:
        return words.ODD
    fields = request.ext_fields or {}
    if not {"AccessKey", "Signature"} <= fields.keys():
        return words.UNSIGNED
    name = fields["AccessKey"]
    if name not in SECRETS:
        return words.UNKNOWN
    if fields["Signature"] != signature_of(SECRETS[name], fields, request.body):
        return words.BAD
    topic_field, group_field = CODES.get(request.code, ("", ""))
    grant = Grant(name, request.code, fields.get(topic_field, ""), fields.get(group_field, ""))
    return words.GRANTED if grant in grants else words.VERIFIED


def meaning_of(content: bytes) -> tuple[int, dict[str, str] | None, bytes] | None:
    """Return what a frame asks for; None if it is not a frame."""
    try:
        request = commands.decode(content)
    except NotAFrame:
        return None
    return request.code, request.ext_fields, request.body


# --- frames -----------------------------------------------------------------------

NAMES = (
    *"abcdefghijklmn",
    *("topic", "consumerGroup", "queueId", "Topic", "_x", "ns", "nsd", "Z", "zz", "AccessKey2"),
    *("defaultTopic", "defaultTopicQueueNums", "defaultTop", "Signatur", "SignatureX", "bornTime"),
)
VALUES = (
    *("", "T", "Orders", "g", "1700000000000", 'UNIQ_KEY\x010A\x02k\x01"\\/\n\t\r\b\f\x02', "é"),
    *("\U0001f600", "%41", "a" * 15, "b" * 16, "c" * 17, "ü" * 40, "\x7f", "\x00", "x" * 300),
)


def signed_fields(random: Random, name: str, fields: dict[str, str], body: bytes) -> dict[str, str]:
    """Return fields with a signature, most often a valid one."""
    fields = {**fields, "AccessKey": name}
    signature = signature_of(SECRETS.get(name, "?"), fields, body)
    kind = random.random()
    if kind < 0.1:
        position = random.randrange(28)
        signature = signature[:position] + random.choice("Aa0+=/ é") + signature[position + 1 :]
    elif kind < 0.15:
        signature = random.choice(["", "=", signature[:27], signature + "=", signature[:-1] + "A"])
    elif kind < 0.2:
        del fields["AccessKey"]
    fields["Signature"] = signature
    if kind > 0.95:
        del fields["Signature"]
    order = list(fields)
    random.shuffle(order)
    return {key: fields[key] for key in order}


def json_text(random: Random, text: str) -> str:
    """Return a text as JSON, with escapes where they need not be."""
    plain = random.random() < 0.5
    if plain:
        return json.dumps(text, ensure_ascii=random.random() < 0.5)
    parts = []
    for character in text:
        units = character.encode("utf-16-be")
        if random.random() < 0.2:
            form = "\\u%04x" if random.random() < 0.5 else "\\u%04X"
            parts.append("".join(form % unit for (unit,) in struct.iter_unpack(">H", units)))
        elif character == "/" and random.random() < 0.5:
            parts.append("\\/")
        else:
            parts.append(json.dumps(character, ensure_ascii=False)[1:-1])
    return f'"{"".join(parts)}"'


def json_header(random: Random, code: int, flag: int, fields: Iterable[Field]) -> bytes:
    """Return a JSON header as a client may write it."""
    texts = ",".join(f'"{name}":{json_text(random, value)}' for name, value in fields)
    parts = [
        f'"code":{code}',
        f'"extFields":{{{texts}}}',
        f'"flag":{flag}',
        '"language":"JAVA"',
        f'"opaque":{random.randrange(1 << 31)}',
        '"serializeTypeCurrentRPC":"JSON"',
        '"version":453',
    ]
    random.shuffle(parts)
    return ("{" + ",".join(parts) + "}").encode()


def binary_header(random: Random, code: int, flag: int, fields: Iterable[Field]) -> bytes:
    """Return a binary header."""
    extension = b"".join(
        struct.pack(">h", len(name.encode()))
        + name.encode()
        + struct.pack(">i", len(value.encode()))
        + value.encode()
        for name, value in fields
    )
    head = struct.pack(">hbhii", code, 0, 453, random.randrange(1 << 31), flag)
    return head + struct.pack(">ii", 0, len(extension)) + extension


def frame_of(header: bytes, body: bytes, serialization: int = 0) -> bytes:
    """Return a frame."""
    mark = MARK.pack(serialization << 24 | len(header))
    return LENGTH.pack(len(mark) + len(header) + len(body)) + mark + header + body


def some_fields(random: Random) -> dict[str, str]:
    """Return fields of a request."""
    count = random.choice([0, 1, 3, 10, 20])
    fields = {random.choice(NAMES): random.choice(VALUES) for _ in range(count)}
    for number in range(random.choice([0, 0, 0, 45, 60])):
        fields[f"f{number}"] = str(number)
    return fields


def some_frame(random: Random, name: str | None = None) -> bytes:
    """Return a frame of a form that the kernel reads, unless it has too many fields."""
    name = name or random.choice([*SECRETS, "rocketmq2", "rocketmq2", "nobody"])
    body = random.randbytes(random.choice([0, 1, 20, 55, 56, 63, 64, 65, 119, 120, 128, 1000]))
    code = random.choice([310, 310, 11, 10, 34])
    fields = signed_fields(random, name, some_fields(random), body)
    flag = random.choice([0, 0, 0, 2])
    if random.random() < 0.5:
        return frame_of(json_header(random, code, flag, fields.items()), body)
    return frame_of(binary_header(random, code, flag, fields.items()), body, 1)


def odd_frame(random: Random) -> bytes:
    """Return a frame of another form, perhaps one that nothing reads."""
    frame = some_frame(random, "rocketmq2")
    old, new = random.choice(
        [
            (b'"code":', b'"code": '),
            (b'"code":', b'"code":11,"code":'),
            (b'"flag":', b'"remark":"r","flag":'),
            (b'"flag":', b'"zz":1,"flag":'),
            (b'"flag":0', b'"flag":1'),
            (b'"extFields":{', b'"extFields":{"topic":"T","topic":"U",'),
            (b'"extFields":{', b'"extFields":{"AccessKey":"rocketmq2",'),
            (b'"extFields":{', '"extFields":{"é":"T",'.encode()),
            (b'"extFields":{', b'"extFields":{"\\u0061":"T",'),
            (b'"extFields":{', b'"extFields":{"n":1,'),
            (b'"extFields":{', b'"extFields":{"n":null,'),
            (b'"extFields":{', b'"extFields":{"":"T",'),
            (b'"extFields":{', b'"extFields":{"\\":"T",'),
            (b'"extFields":{', b'"extFields":{"a":"\\ud800",'),
            (b'"extFields":{', b'"extFields":{"a":"\\udc00\\ud800",'),
            (b'"extFields":{', b'"extFields":{"a":"\xff",'),
            (b'"extFields":{', b'"extFields":{"a":"\\x",'),
            (b'"extFields":{', b'"extFields":{"a":"\n",'),
            (b'"extFields":{', b'"extFields":{"_UNIQUE_KEY_QUERY":"true",'),
            (b"\x00\x05topic", b"\x00\x05topix"),
            (b"}", b"}}"),
            (b'"', b""),
        ]
    )
    changed = bytearray(frame.replace(old, new, 1))
    grown = len(changed) - len(frame)
    (mark,) = MARK.unpack_from(changed, 4)
    changed[:8] = LENGTH.pack(len(changed) - 4) + MARK.pack(mark + grown)
    return bytes(changed)


def signed_request(request: Command, name: str = "rocketmq2") -> bytes:
    """Return the frame of a signed request."""
    credentials = signing.Credentials(name, Secret(SECRETS[name]))
    return commands.encode(signing.Signer(credentials).sign(request))


def check_gate(seed: int) -> None:
    """Compare the verdicts of the kernel with those of the codecs."""
    random = Random(seed)
    count = random.choice([1, 2, 5])
    frames = [(odd_frame if random.random() < 0.3 else some_frame)(random) for _ in range(count)]
    grants = []
    for frame in frames:
        meaning = meaning_of(frame[4:])
        if meaning is None or random.random() < 0.5:
            continue
        code, fields, _ = meaning
        if code in CODES and fields and fields.get("AccessKey") in SECRETS:
            topic, group = (fields.get(field, "") for field in CODES[code])
            if topic and bool(group) == bool(CODES[code][1]):
                grants.append(Grant(fields["AccessKey"], code, topic, group))
    data = b"".join(frames)
    cut = random.choice([len(data), random.randrange(len(data) + 1)])
    rows_max = random.choice([256, 256, 1, 0])
    rows = GateWorld(data[:cut], grants, rows_max, has_sha=random.random() < 0.5).judge()
    end = 0
    whole = 0
    for frame, row in zip(frames, rows, strict=False):
        end += len(frame)
        whole += 1
        assert row[words.ROW.end] == end <= cut
        verdict = row[words.ROW.verdict]
        expected = expected_verdict(frame[4:], grants)
        assert verdict in (words.ODD, expected), (verdict, expected, frame)
        assert (row[words.ROW.account] >= 0) == (verdict in (words.VERIFIED, words.GRANTED))
    assert whole == len(rows)
    if len(rows) < min(rows_max, len(frames)):
        assert end + len(frames[len(rows)]) > cut
