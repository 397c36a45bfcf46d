"""Options of ``df.write.format("rocketmq")`` and ``df.writeStream``: from text to checked values.

Where the rows go decides who reads the rest: ``nameServer`` is for brokers and read here as a
whole, ``path`` is for a store folder. What both say of rows is in ``RowOptions``. Names, defaults
and meanings are in docs/reference/spark-options.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reput.errors import InvalidOption
from reput.format import names
from reput.spark.options import Texts, name_servers, refuse_not_yet

BATCH: Final = "batch"
SYNC: Final = "sync"
ASYNC: Final = "async"
ONEWAY: Final = "oneway"
SEND_MODES = (BATCH, SYNC, ASYNC, ONEWAY)

SKIP_NONE: Final = "none"
SKIP_DERIVED: Final = "derived"
SKIP_ALL: Final = "all"
SKIPS = (SKIP_DERIVED, SKIP_ALL, SKIP_NONE)

FAIL_STATUSES = ("FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
"""The answers of brokers that have a message, but not as safely as they should."""

_GROUP = "SPARK_SINK"
_WRITE_ID_BYTES_MAX = 255


@dataclass(frozen=True)
class RowOptions:
    """How rows become messages."""

    topic: str | None = None
    """Of all messages, whatever column ``topic`` says."""
    ignore_read_columns: bool = False
    """Leave out the columns of our own reads that say nothing about a message to be sent."""
    trusted_properties: frozenset[str] = frozenset()
    """Properties that brokers set, and that messages keep nevertheless."""


@dataclass(frozen=True)
class SendOptions:
    """How messages are sent to brokers."""

    rows: RowOptions
    name_server: str
    """``host:port``, several separated by ``;``."""
    brokers: frozenset[str] | None = None
    """Only to the brokers of these names."""
    producer_group: str = _GROUP
    mode: str = BATCH
    batch_bytes: int = 256 * 1024
    """About how large a request with several messages gets."""
    window_count: int = 256
    """Requests of a task that are on the way at a time."""
    timeout_ms: int = 3_000
    """How long an answer may take."""
    retry_count: int = 20
    """How often a request is made again that got no answer, or a no that may pass."""
    retry_interval_ms: int = 500
    fail_on: frozenset[str] = frozenset(FAIL_STATUSES)
    compress_over_bytes: int = 4096
    """Longer bodies go by themselves, compressed; 0: none."""
    max_message_bytes: int = 4 * 1024 * 1024
    idempotent: bool = True
    """Unique keys follow from what is written, so that a second time gives the same ones."""
    skip_present: str = SKIP_DERIVED
    """Leave out what brokers have already, by its key: none, those whose key the sink has derived
    and whose task is tried again, or all."""
    write_id: str | None = None
    """What a batch that is written again is known by."""


def goes_to_brokers(options: Mapping[str, str]) -> bool:
    """Return whether a write is to brokers; otherwise it is to a store folder.

    Raises:
        InvalidOption: Neither ``nameServer`` nor ``path`` is there, or both.
    """
    texts = Texts(options)
    path = texts.text("path")
    name_server = texts.text("nameServer", "rocketmq.namesrv.addr")
    if path is not None and name_server is not None:
        raise InvalidOption("path", path, "path (a store folder) or nameServer (brokers), not both")
    if path is None and name_server is None:
        raise InvalidOption(
            "nameServer", None, "host:port of a name server, to send; or path, to make a store"
        )
    return name_server is not None


def row_options(texts: Texts) -> RowOptions:
    """Return what a write says of rows, wherever they go. Raises ``InvalidOption``."""
    texts.text("checkpointLocation")  # Spark's own, which it passes on
    topic = texts.text("topic")
    if topic is not None and not names.is_legal_topic(topic):
        allowed = f"1 to {names.TOPIC_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |"
        raise InvalidOption("topic", topic, allowed)
    return RowOptions(topic=topic, ignore_read_columns=texts.flag("ignoreReadColumns", False))


def parse(options: Mapping[str, str]) -> SendOptions:
    """Return the options of a write to brokers.

    Raises:
        InvalidOption: A value is not allowed, or a name is not known.
    """
    texts = Texts(options)
    refuse_not_yet(texts)
    servers = name_servers(texts)
    if servers is None:
        raise InvalidOption("nameServer", None, "host:port, several separated by ;")
    mode_text = texts.text("sendMode")
    if mode_text is not None and mode_text.lower() == "transactional":
        raise InvalidOption(
            "sendMode",
            mode_text,
            f"{', '.join(SEND_MODES)}: messages in transactions are not supported yet",
        )
    mode = texts.choice("sendMode", SEND_MODES, BATCH)
    idempotent = texts.flag("idempotent", True)
    parsed = SendOptions(
        rows=row_options(texts),
        name_server=servers,
        brokers=texts.words("broker"),
        producer_group=texts.text("producerGroup") or _GROUP,
        mode=mode,
        batch_bytes=texts.size("batchBytes", SendOptions.batch_bytes),
        window_count=texts.bounded("maxInFlight", 1, 1 << 16, SendOptions.window_count),
        timeout_ms=texts.bounded("sendTimeoutMs", 1, (1 << 31) - 1, SendOptions.timeout_ms),
        retry_count=texts.bounded("send.numRetries", 0, 1 << 16, SendOptions.retry_count),
        retry_interval_ms=texts.bounded(
            "send.retryIntervalMs", 0, (1 << 31) - 1, SendOptions.retry_interval_ms
        ),
        fail_on=_fail_on(texts),
        compress_over_bytes=texts.bounded(
            "compressOverBytes", 0, (1 << 31) - 1, SendOptions.compress_over_bytes
        ),
        max_message_bytes=texts.size("maxMessageBytes", SendOptions.max_message_bytes),
        idempotent=idempotent,
        skip_present=texts.choice(
            "skipPresent", SKIPS, SKIP_DERIVED if idempotent and mode != ONEWAY else SKIP_NONE
        ),
        write_id=_write_id(texts),
    )
    texts.refuse_unknown()
    if parsed.skip_present == SKIP_DERIVED and not idempotent:
        allowed = f"{SKIP_ALL} or {SKIP_NONE}, where idempotent=false: no key is derived"
        raise InvalidOption("skipPresent", SKIP_DERIVED, allowed)
    if parsed.skip_present != SKIP_NONE and mode == ONEWAY:
        allowed = f"{SKIP_NONE}, where sendMode=oneway: nobody says what has arrived"
        raise InvalidOption("skipPresent", parsed.skip_present, allowed)
    if parsed.write_id is not None and not idempotent:
        raise InvalidOption("writeId", parsed.write_id, "left out, where idempotent=false")
    return parsed


def _fail_on(texts: Texts) -> frozenset[str]:
    words = texts.words("failOn")
    if words is None:
        return frozenset(FAIL_STATUSES)
    found = frozenset(word.upper() for word in words)
    if found == {"NONE"}:
        return frozenset()
    for word in sorted(found - frozenset(FAIL_STATUSES)):
        raise InvalidOption("failOn", word, f"{', '.join(FAIL_STATUSES)}, or none")
    return found


def _write_id(texts: Texts) -> str | None:
    text = texts.text("writeId")
    if text is not None and not re.fullmatch(rf"[\x21-\x7e]{{1,{_WRITE_ID_BYTES_MAX}}}", text):
        allowed = f"1 to {_WRITE_ID_BYTES_MAX} visible ASCII characters"
        raise InvalidOption("writeId", text, allowed)
    return text
