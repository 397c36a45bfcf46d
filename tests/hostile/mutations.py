"""Changes that hostile clients make to valid requests: seeded, so that findings are reproducible.

    mutate(random.Random(seed), draft, sources) -> bytes of a frame, or of several

Each mutation is a function that changes a draft; a few change the frame's bytes afterwards.
"""

import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hostile import requests
from hostile.wire import BINARY, ONEWAY, Draft
from reput.format import names

# --- hostile values -------------------------------------------------------------------------------

NUMBERS: list[Any] = [
    0, -1, 1, 2, 31, 32, 33, 64, 127, 128, 255, 256, 999, 1_000, 32_767, 32_768, 65_535, 65_536,
    2**31 - 2, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53, 2**62,
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**18, 10**19, 10**400,
    0.5, -0.0, 1e9, 1e300,
    "1e9", "0x10", "+1", "-0", " 1", "1 ", "1_000",
    "\uff11\uff12", "\u0663", "²", "00000000000000000001",
    "NaN", "Infinity", "-Infinity", "null", "true", "", "9" * 5_000, "-" + "9" * 5_000,
]  # fmt: skip

NAMES: list[str] = [
    "", " ", "\t", ".", "..", "../../x", "/", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb",
    "a\r\nb", "a\x01b", "a\x02b", "\x1b[31m", "a b", 'a"b', "a'b", "a%b", "a@b", "a@b@c", "%s%n",
    "${x}", "\x7f",
    "\ud800", "\udfff", "a\ud800b", "日本", "é" * 60, "\U0001f600" * 32, "\u202e", "\ufeff",
    "x" * 126, "x" * 127, "x" * 128, "x" * 200, "x" * 255, "x" * 256, "x" * 32_767, "x" * 1_000_000,
    names.RETRY_PREFIX, names.DLQ_PREFIX, names.LMQ_PREFIX,
    names.RETRY_PREFIX + requests.GROUP, names.DLQ_PREFIX + requests.GROUP,
    names.RETRY_PREFIX + "..", names.RETRY_PREFIX + "a/../b", names.RETRY_PREFIX + "\ud800",
    names.RETRY_PREFIX * 30, names.LMQ_PREFIX + "x" * 300, names.LMQ_PREFIX + "../x",
    names.RETRY_PREFIX + "a+b_T", names.RETRY_PREFIX + "a\nb_T",
    *sorted(names.SYSTEM_TOPICS), *sorted(names.SYSTEM_GROUPS),
    names.REVIVE_TOPIC_PREFIX + "DefaultCluster", names.SYNC_MEMBER_PREFIX + "broker-a",
    names.TRANSACTION_GROUP, names.REVIVE_GROUP, names.SYSTEM_GROUP_PREFIX + "x",
    "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", requests.TOPIC, requests.GROUP,
]  # fmt: skip

FILTERS: list[str] = [
    "a > 1", "a = " + "-" * 16_000 + "1", " OR ".join(["a = 1"] * 5_000),
    " OR ".join(["a CONTAINS 'b'"] * 2_000), "a IN (" + ",".join(["'x'"] * 100_000) + ")",
    "(" * 5_000 + "a = 1" + ")" * 5_000, "NOT " * 10_000 + "a = 1", "a BETWEEN 1 AND",
    "'" * 10_000, "a = '" + "x" * 100_000, "a = 1e400", "a = " + "9" * 10_000, "\0", "a = 1 --",
    "||".join(f"tag{number}" for number in range(100_000)), "||" * 100_000, "*" * 1_000,
]  # fmt: skip

TEXTS: list[str] = [
    *('\\"' * 8_000, "[" * 50_000, "{" * 50_000, "{1:" * 30_000, "\\" * 100_001, "," * 100_000),
    *(
        " " * 100_000,
        "\n" * 50_000,
        "a=" * 30_000,
        "a=b\\\n" * 20_000,
        "0," * 100_000,
        "a@" * 50_000,
    ),
    *("\x01" * 40_000, "\x02" * 40_000, "a\x01b\x02" * 8_000, ";" * 100_000, "%" * 100_000),
]


def _json_texts() -> list[bytes]:
    return [
        b"", b"null", b"0", b'""', b"[]", b"{}", b"[[]]", b"{", b"}", b'{"a":', b"\xff\xfe", b"\0",
        b'\\"' * 100_000, b"{" + b'\\"' * 32_000, b'"' * 200_001, b"[" * 200_000, b"{1:" * 100_000,
        b"{a:" * 100_000, b"{" + b"a:1," * 60_000 + b"}", b"{" + b'"a":1,' * 100_000 + b'"a":2}',
        b'{"' + b"\\" * 200_001, b"[" + b"0," * 200_000 + b"0]", b'["' + b"x" * 1_000_000 + b'"]',
        b"{" + b",".join(b'"%d":%d' % (n, n) for n in range(50_000)) + b"}",
        b"[" + b"9" * 500_000 + b"]", b"[1e999999999]", b"'" * 100_000, b"/*" * 100_000,
        b"//" + b"x" * 100_000, b'{"@type":"java.lang.Class","val":"x"}', b'"\\ud800"',
        b'{"a":"\\ud800\\ud800"}', b"\xed\xa0\x80" * 1_000, b'{"topic":NaN,"queueId":Infinity}',
    ]  # fmt: skip


JSON_TEXTS = _json_texts()


def value(rng: random.Random) -> Any:
    """Return a hostile value for any place."""
    choice = rng.random()
    if choice < 0.4:
        return rng.choice(NUMBERS)
    if choice < 0.8:
        return rng.choice(NAMES)
    if choice < 0.88:
        return rng.choice(FILTERS)
    if choice < 0.95:
        return rng.choice(TEXTS)
    return rng.choice([None, True, False, [], {}, [[]], {"a": {"b": []}}, [None] * 10_000])


def hostile_properties(rng: random.Random) -> str:
    """Return an invalid property string, or one with properties that only brokers may set."""
    choice = rng.randrange(6)
    if choice == 0:
        count = rng.choice([64, 65, 1_000, 8_000, 100_000])
        return "".join(f"n{number}\x01v\x02" for number in range(count))
    if choice == 1:
        return rng.choice(TEXTS)
    if choice == 2:
        return "x" * rng.choice([1, 32_766, 32_767, 32_768, 100_000])
    if choice == 3:
        name = rng.choice(requests.INTERNAL_PROPERTIES)
        return f"{name}\x01v\x02" * rng.choice([2, 1_000, 4_000])
    count = rng.randint(1, 6)
    text = ""
    for name in rng.sample(requests.INTERNAL_PROPERTIES, count):
        text_value = value(rng)
        text += (
            f"{name}\x01{text_value if isinstance(text_value, str) else json.dumps(text_value)}\x02"
        )
    return text


# --- mutations of drafts --------------------------------------------------------------------------

Mutation = Callable[[random.Random, Draft], None]


def change_field(rng: random.Random, draft: Draft) -> None:
    """Give a field another value."""
    if draft.fields:
        draft.fields[rng.choice(sorted(draft.fields))] = value(rng)


def drop_field(rng: random.Random, draft: Draft) -> None:
    if draft.fields:
        del draft.fields[rng.choice(sorted(draft.fields))]


def add_fields(rng: random.Random, draft: Draft) -> None:
    """Add unknown fields."""
    count = rng.choice([1, 10, 999, 1_001, 20_000])
    more = {f"x{number}": "y" for number in range(count)}
    draft.fields = {**(draft.fields or {}), **more}
    draft.fields[rng.choice(NAMES)] = "z"


def change_properties(rng: random.Random, draft: Draft) -> None:
    for name in ("i", "properties"):
        if draft.fields and name in draft.fields:
            draft.fields[name] = hostile_properties(rng)


def _leaves(document: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of each value in a document."""
    leaves: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        container = todo.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            leaves.append((container, key))
            if isinstance(container[key], (dict, list)):
                todo.append(container[key])
    return leaves


def change_body_value(rng: random.Random, draft: Draft) -> None:
    if (
        isinstance(draft.document, dict) and draft.document
    ):  # Other mutations may have removed all values.
        container, key = rng.choice(_leaves(draft.document))
        container[key] = value(rng)


def drop_body_value(rng: random.Random, draft: Draft) -> None:
    if (
        isinstance(draft.document, dict) and draft.document
    ):  # Other mutations may have removed all values.
        container, key = rng.choice(_leaves(draft.document))
        del container[key]


def repeat_body_value(rng: random.Random, draft: Draft) -> None:
    """Repeat an element of a list, or an entry of a map under other names."""
    if not isinstance(draft.document, dict):
        return
    count = rng.choice([2, 33, 1_000, 5_000])
    containers = [
        (c, k) for c, k in _leaves(draft.document) if c[k] and isinstance(c[k], (list, dict))
    ]
    if containers:
        container, key = rng.choice(containers)
        inner = container[key]
        if isinstance(inner, list):
            container[key] = inner * count
        else:
            first = next(iter(inner.values()))
            inner.update({f"k{number}": first for number in range(count)})


def number_body_names(rng: random.Random, draft: Draft) -> None:
    """Repeat an element of a list, each time with other names."""
    if not isinstance(draft.document, dict):
        return
    lists = [(c, k) for c, k in _leaves(draft.document) if isinstance(c[k], list) and c[k]]
    if lists:
        container, key = rng.choice(lists)
        text = json.dumps(container[key][0])
        count = rng.choice([100, 1_000, 3_000])
        container[key] = [
            json.loads(text.replace("ostile", f"ostile{number}")) for number in range(count)
        ]


def replace_body(rng: random.Random, draft: Draft) -> None:
    draft.document = None
    choice = rng.randrange(4)
    if choice == 0:
        draft.body = rng.randbytes(rng.choice([1, 16, 1_000, 100_000]))
    elif choice == 1:
        draft.body = zlib.compress(bytes(rng.choice([1_000, 64 << 20])), 1)
    else:
        draft.body = rng.choice(JSON_TEXTS)


def grow_body(rng: random.Random, draft: Draft) -> None:
    body = draft.body_bytes()
    draft.document = None
    draft.body = body + bytes(rng.choice([1, 100, 70_000, 1 << 20, 5 << 20]))


def damage_body(rng: random.Random, draft: Draft) -> None:
    """Flip bits, cut, or overwrite bytes with wrong numbers."""
    body = bytearray(draft.body_bytes())
    draft.document = None
    if body:
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(body))
            choice = rng.randrange(3)
            if choice == 0:
                body[place] ^= 1 << rng.randrange(8)
            elif choice == 1:
                lie = rng.choice([-1, 0, 1, 2**31 - 1, -(2**31), 4, 20, 0x7FFF])
                body[place : place + 4] = struct.pack(">i", lie)
            else:
                del body[place:]
                break
    draft.body = bytes(body)


def be_binary(rng: random.Random, draft: Draft) -> None:
    draft.serialization = BINARY


def be_oneway(rng: random.Random, draft: Draft) -> None:
    draft.flag |= ONEWAY


def change_head(rng: random.Random, draft: Draft) -> None:
    name = rng.choice(["flag", "opaque", "version", "language", "code", "serialization"])
    if name == "serialization":
        draft.serialization = rng.choice([1, 2, 127, 255])
    elif name == "code":
        draft.code = rng.choice([0, -1, 9_999, 2**31 - 1, 65_535, 200_150])
    elif name == "language":
        draft.language = value(rng)
    else:
        number = value(rng)
        setattr(draft, name, number if isinstance(number, int) else 1)


def replace_header(rng: random.Random, draft: Draft) -> None:
    header = json.dumps({"code": draft.code, "opaque": draft.opaque, "extFields": {}})
    draft.raw_header = rng.choice(
        [
            header.replace("{}", "[" * 100_000).encode(),
            header.replace("{}", '{"a":' * 20_000).encode(),
            header.replace("{}", "{" + ",".join(['"a":"b"'] * 20_000) + "}").encode(),
            header.replace("{}", '{"topic":"\\ud800"}').encode(),
            header.replace("{}", '{"topic":' + "9" * 100_000 + "}").encode(),
            header.encode()[: rng.randrange(len(header))],
            b"[" * 100_000, b"null", b"", b'\\"' * 100_000, b"\xff" * 100,
            header.replace("{}", '{"x":"' + "y" * 1_000_000 + '"}').encode(),
        ]
    )  # fmt: skip


def lie_about_length(rng: random.Random, draft: Draft) -> None:
    lie = rng.choice([-5, -4, -1, 1, 4, 1_000, 1 << 20, 16 << 20, 2**31 - 1])
    if rng.random() < 0.5:
        draft.length_lie = lie
    else:
        draft.header_length_lie = lie


MUTATIONS: Sequence[tuple[Mutation, int]] = [
    (change_field, 12),
    (drop_field, 3),
    (add_fields, 1),
    (change_properties, 5),
    (change_body_value, 12),
    (drop_body_value, 3),
    (repeat_body_value, 3),
    (number_body_names, 2),
    (replace_body, 4),
    (grow_body, 1),
    (damage_body, 5),
    (be_binary, 4),
    (be_oneway, 2),
    (change_head, 2),
    (replace_header, 1),
    (lie_about_length, 1),
]
"""Each mutation with its relative frequency."""

_FUNCTIONS = [mutation for mutation, _ in MUTATIONS]
_WEIGHTS = [weight for _, weight in MUTATIONS]


def mutate(rng: random.Random, draft: Draft) -> Draft:
    """Return a request with one to three mutations; sometimes with none."""
    mutated = draft.copy()
    for mutation in rng.choices(_FUNCTIONS, _WEIGHTS, k=rng.choice([0, 1, 1, 1, 2, 3])):
        mutation(rng, mutated)
        mutated.mutations.append(mutation.__name__)
    if (
        "opaque" not in mutated.mutations
        and isinstance(mutated.opaque, int)
        and mutated.opaque == 1
    ):
        mutated.opaque = rng.randrange(1, 2**31)
    return mutated


def damage(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with flipped, cut or inserted bytes; its length mostly stays right."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(4, len(data))
        choice = rng.randrange(4)
        if choice == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif choice == 1:
            data[place] = rng.choice(b'\0\xff"\\{}[],:0-')
        elif choice == 2:
            data[place:place] = rng.choice([b"\\", b'"', b"\xff", b"9" * 100, b"\0" * 8])
        else:
            del data[place : place + rng.randint(1, 8)]
        if len(data) < 8:
            break
    data[:4] = struct.pack(">i", len(data) - 4)
    return bytes(data)


def frame(
    rng: random.Random, drafts: Mapping[int, list[Draft]], others: Sequence[tuple[str, bytes]]
) -> tuple[str, bytes]:
    """Return a hostile frame and its description; some are made of recorded frames."""
    if others and rng.random() < 0.1:
        name, data = rng.choice(others)
        return f"recorded {name}", damage(rng, data)
    code = rng.choice(sorted(drafts))
    draft = mutate(rng, rng.choice(drafts[code]))
    data = draft.encode()
    label = draft.describe()
    if rng.random() < 0.08:
        data, label = damage(rng, data), f"{label}+damaged"
    return label, data
