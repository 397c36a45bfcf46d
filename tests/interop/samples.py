"""Random texts, property strings and messages; equal for equal states of ``random.Random``."""

from random import Random

from reput.format import body as bodies, message as records, properties as props, sys_flag as flags
from reput.format.message import Host, StoredMessage

PLAIN = "abcXYZ019 -_%|#=;,.:/\\\"'{}[]\t\n~"
ODD = (
    "\0\x03\x1f\x7f\x80\xa0\xadéßñ\u0301\u07ff\u0800\u200b\u2028日本語汉字한\ufeff\ufffd\ufffe\uffff"
    "\ud7ff\ue000😀👨\u200d👩\U00010000\U0001f9ff\U0010ffff"
)
SURROGATES = "\ud800\ud83d\udbff\udc00\ude00\udfff"
TOPIC = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%|_-"
# Continuation alone, lead alone, overlong, surrogates, over U+10FFFF, bytes that are never used.
MALFORMED_HEX = """
    80 bf c3 e2 e282 f0 f09f f09f98 c080 c1bf e08080 e09fbf f08080af f08fbfbf eda080 edbfbf
    eda0bdedb880 eda0 edb0 ed f4908080 f48fbf f5808080 f888808080 fc8480808080 fe ff efbf
"""
MALFORMED = [bytes.fromhex(text) for text in MALFORMED_HEX.split()]
COMPRESSIONS = {
    "zlib": flags.COMPRESSED | flags.COMPRESSION_ZLIB,
    "zlib of clients before 4.9.4": flags.COMPRESSED,
    "lz4": flags.COMPRESSED | flags.COMPRESSION_LZ4,
    "zstd": flags.COMPRESSED | flags.COMPRESSION_ZSTD,
}

SAME_EVERYWHERE = (COMPRESSIONS["lz4"], COMPRESSIONS["zstd"])
"""Compressions whose bytes are the same on each machine: pip installs the libraries."""


def text(random: Random, length_max: int, alphabet: str = PLAIN + ODD) -> str:
    """Return a text of 0 to ``length_max`` characters."""
    return "".join(random.choices(alphabet, k=random.randint(0, length_max)))


def topic(random: Random) -> str:
    """Return a topic: usually a legal one, sometimes any text that fits 127 bytes."""
    if random.random() < 0.8:
        return "".join(random.choices(TOPIC, k=random.choice((1, 5, 20, 126, 127))))
    name = text(random, 31) or "é"
    return name.encode()[:124].decode(errors="ignore")


def properties(random: Random, alphabet: str = PLAIN + ODD) -> dict[str, str]:
    """Return properties that ``properties.encode`` accepts."""
    result = {}
    for name in (props.TAGS, props.KEYS, props.UNIQ_KEY, props.WAIT, props.DELAY):
        if random.random() < 0.4:
            result[name] = text(random, 40, alphabet) or "x"
    for _ in range(random.choice((0, 0, 1, 2, 8))):
        result[text(random, 10, alphabet) or "n"] = text(random, 60, alphabet) or "v"
    return result


def odd_property_bytes(random: Random) -> bytes:
    """Return a property string that no encoder writes, but a store may contain.

    Empty names and values, missing, doubled and leading separators, ``\x01`` in values, duplicate
    names, malformed UTF-8.
    """
    pieces: list[bytes] = []
    for _ in range(random.randint(0, 12)):
        name = random.choice(("", "TAGS", "KEYS", "a", "a", "é", "😀", text(random, 6)))
        value = random.choice(
            ("", "", "x", "v\x01w", "\x01", "\x01\x01b", "日本", text(random, 20))
        )
        between = random.choice(("\x01", "\x01", "\x01", "\x01", "", "\x01\x01"))
        end = random.choice(("\x02", "\x02", "\x02", "\x02", "", "\x02\x02"))
        pieces.append((name + between + value + end).encode())
    for _ in range(random.choice((0, 0, 1, 5))):
        pieces.insert(random.randint(0, len(pieces)), random.choice(MALFORMED))
    data = b"".join(pieces)
    return data[: random.randint(0, len(data))] if random.random() < 0.3 else data


def host(random: Random, *, is_v6: bool) -> Host:
    """Return a host with a random address of its kind."""
    address = random.choice(
        (
            random.randbytes(16),
            bytes(16),
            bytes(15) + b"\1",
            bytes.fromhex("fe80") + bytes(6) + random.randbytes(8),
            bytes(12) + random.randbytes(4),
        )
        if is_v6
        else (random.randbytes(4), bytes(4), b"\x7f\0\0\1", b"\xff\xff\xff\xff")
    )
    return Host(address, random.choice((0, 1, 10911, 65535, random.randrange(65536))))


def body(random: Random) -> bytes:
    """Return a body, often empty or short."""
    size = random.choice((0, 0, 1, 10, 200, random.randrange(2_000)))
    data = random.randbytes(min(size, 64))
    return (data * (size // 64 + 1))[:size]


def number(random: Random, bits: int) -> int:
    """Return a signed number, often an extreme one."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return random.choice((0, 1, -1, low, high, random.randint(low, high), random.randrange(10_000)))


def message(
    random: Random, *, v6: bool = True, compressions: tuple[int, ...] = (), odd_bytes: bool = False
) -> StoredMessage:
    """Return a message with random fields.

    Args:
        random: Source of randomness.
        v6: Use IPv6 for half of the hosts.
        compressions: sysFlags of which some bodies are compressed.
        odd_bytes: Use property strings that no encoder writes for half of the messages.
    """
    born_host = host(random, is_v6=v6 and random.random() < 0.5)
    store_host = host(random, is_v6=v6 and random.random() < 0.5)
    sys_flag = random.choice((0, 0, number(random, 32)))
    sys_flag &= ~(flags.COMPRESSED | flags.BORN_HOST_V6 | flags.STORE_HOST_V6)
    sys_flag |= flags.BORN_HOST_V6 if born_host.is_v6 else 0
    sys_flag |= flags.STORE_HOST_V6 if store_host.is_v6 else 0
    stored_body = body(random)
    if compressions and stored_body and random.random() < 0.3:
        sys_flag &= ~flags.COMPRESSION_TYPE_MASK
        sys_flag |= random.choice(compressions)
        stored_body = bodies.compress(stored_body, sys_flag)
    if odd_bytes and random.random() < 0.5:
        property_bytes = odd_property_bytes(random)
    else:
        property_bytes = props.encode(properties(random), last_separator=random.random() < 0.5)
    return StoredMessage(
        topic=topic(random),
        body=stored_body,
        queue_id=number(random, 32),
        queue_offset=number(random, 64),
        physical_offset=number(random, 64),
        born_timestamp=number(random, 64),
        born_host=born_host,
        store_timestamp=number(random, 64),
        store_host=store_host,
        flag=number(random, 32),
        sys_flag=sys_flag,
        reconsume_times=number(random, 32),
        prepared_transaction_offset=number(random, 64),
        body_crc=bodies.crc(stored_body),
        property_bytes=property_bytes,
    )


def stored(sample: StoredMessage) -> tuple[StoredMessage, bytes]:
    """Return the message as stored in its record, and the record."""
    record = records.encode(sample)
    return records.decode(record), record
