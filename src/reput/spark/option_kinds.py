"""Kinds of option values of ``format("rocketmq")``: parsing and validation.

Pure. A kind describes its allowed values, for errors and for the reference page.
"""

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from reput.format import names
from reput.format.message import Host
from reput.secret import Secret

EARLIEST: Final = -2
LATEST: Final = -1

QueueOffsets = dict[str, dict[str, dict[int, int]]]
"""topic -> broker -> queue id -> number, as in JSON options."""

_INT64_MAX = (1 << 63) - 1
_EPOCH = datetime.fromtimestamp(0, UTC)
_NAMESPACE_LENGTH_MAX = names.TOPIC_LENGTH_MAX - len("%T")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_VIEWS_INSTEAD = {
    "delay": f"topic={names.SCHEDULE_TOPIC}; resolveTopics=true shows where messages are going",
    "half": f"topic={names.HALF_TOPIC}; resolveTopics=true shows where messages are going",
    "dlq": f"subscribePattern={names.DLQ_PREFIX}.*",
}


class Refused(ValueError):
    """Error of a text that a kind does not allow, with the allowed values."""


@dataclass(frozen=True)
class Kind:
    """A kind of values."""

    allowed: str
    decode: Callable[[str], Any]
    """Parser of a text; returns None for the default. Raises ``ValueError``, or ``Refused`` with a
    more specific text than ``allowed``.
    """


def number(least: int = 0, most: int = _INT64_MAX) -> Kind:
    """Return the kind of integers within bounds."""

    def decode(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,19}", text) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return Kind(f"a whole number from {least} to {most}", decode)


def choice(*allowed: str) -> Kind:
    """Return the kind of a choice of words, ignoring case."""
    by_name = {word.lower(): word for word in allowed}

    def decode(text: str) -> str:
        if text.lower() not in by_name:
            raise ValueError(text)
        return by_name[text.lower()]

    return Kind(", ".join(allowed), decode)


def only(word: str, allowed: str) -> Kind:
    """Return the kind of a single word, with a text for all others."""

    def decode(text: str) -> str:
        if text.lower() != word.lower():
            raise Refused(allowed)
        return word

    return Kind(word, decode)


def words(allowed: str, separator: str = ",", *, everything: str = "") -> Kind:
    """Return the kind of a list of words, at least one, or a word for no restriction."""

    def decode(text: str) -> frozenset[str] | None:
        if everything and text == everything:
            return None
        chosen = frozenset(word.strip() for word in text.split(separator) if word.strip())
        if not chosen:
            raise ValueError(text)
        return chosen

    return Kind(allowed, decode)


def matching(pattern: str, allowed: str) -> Kind:
    """Return the kind of texts that match a regular expression."""

    def decode(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return Kind(allowed, decode)


def statuses(*allowed: str) -> Kind:
    """Return the kind of a list of words, possibly empty."""
    several = words("")

    def decode(text: str) -> frozenset[str]:
        chosen = frozenset(word.upper() for word in several.decode(text))
        if chosen == {"NONE"}:
            return frozenset()
        if not chosen <= {*allowed}:
            raise ValueError(text)
        return chosen

    return Kind(f"{', '.join(allowed)}, or none", decode)


def bound(*allowed: str) -> Kind:
    """Return the kind of the start or end of a read: (word, group, queue offsets)."""
    shape = 'group:NAME or JSON {"topic": {"broker": {"0": 23}}}'

    def decode(text: str) -> tuple[str, str | None, QueueOffsets]:
        if text.startswith("{"):
            chosen = _queue_offsets(text, EARLIEST)
            if "earliest" not in allowed and EARLIEST in numbers_of(chosen):
                raise Refused(f"offsets from 0, or {LATEST} for latest")
            return allowed[0], None, chosen
        if text.startswith("group:"):
            if not text.removeprefix("group:"):
                raise Refused("group:NAME")
            return allowed[0], text.removeprefix("group:"), {}
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower(), None, {}

    return Kind(f"{', '.join(allowed)}, {shape}", decode)


def is_word(yes: str, no: str) -> Kind:
    """Return the kind of two words, one of which means True."""
    both = choice(yes, no)
    return Kind(both.allowed, lambda text: both.decode(text) == yes)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)b?", text.lower())
    if not match or int(match[1]) == 0:
        raise ValueError(text)
    return int(match[1]) << (10 * " kmgt".index(match[2] or " "))


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d)", text.lower())
    if not match:
        raise ValueError(text)
    return int(match[1]) * _DURATION_MS[match[2]]


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return _whole(text)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise Refused(f"{_TIME}; this time has no zone: append Z for UTC, or an offset as +08:00")
    time_ms = (time - _EPOCH) // timedelta(milliseconds=1)
    if time_ms < 0:
        raise ValueError(text)
    return time_ms


def _servers(text: str) -> str:
    servers = ";".join(re.findall(r"[^\s;,]+", text))
    if not servers:
        raise ValueError(text)
    return servers


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise Refused(f"a regular expression ({error})") from None
    return text


def _charset(text: str) -> str:
    try:
        b" ".decode(text, "replace")
    except LookupError as error:
        raise ValueError(text) from error
    return text


def _view(text: str) -> str:
    instead = _VIEWS_INSTEAD.get(text.lower())
    if instead is not None:
        raise Refused(f"messages, with {instead}")
    view = _VIEWS.decode(text)
    assert isinstance(view, str)
    return view


def _live_view(text: str) -> str:
    view = _view(text)
    if view not in _LIVE_VIEWS:
        raise Refused(f"{', '.join(_LIVE_VIEWS)}, where nameServer is set: the others are of files")
    return view


def _paths(text: str) -> tuple[str, ...]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise ValueError(text)
    return tuple(paths)


def _local_folder(text: str) -> str:
    path = text.removeprefix("file://")
    if not path or "://" in path:
        raise ValueError(text)
    if not path.rstrip("/").startswith("/"):
        raise Refused("an absolute path: workers have other working folders")
    return path.rstrip("/")


def _host(text: str) -> Host:
    address, _, port = text.rpartition(":")
    packed = ipaddress.ip_address(address.strip("[]")).packed
    if not 0 < int(port) < 1 << 16:
        raise ValueError(text)
    return Host(packed, int(port))


def _namespace(text: str) -> str | None:
    if not re.fullmatch(rf"[a-zA-Z0-9_|-]{{0,{_NAMESPACE_LENGTH_MAX}}}", text):
        raise ValueError(text)
    return text or None


def _topic(text: str) -> str:
    if not names.is_legal_topic(text):
        raise ValueError(text)
    return text


# --- JSON ----------------------------------------------------------------------------------------


def numbers_of(offsets: QueueOffsets) -> list[int]:
    """Return the numbers of all queues."""
    each = (queues for brokers in offsets.values() for queues in brokers.values())
    return [number for queues in each for number in queues.values()]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(value)
    return value


def _whole(value: Any, least: int = 0) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value, is_number = int(value), True
    if not is_number or not least <= value <= _INT64_MAX:
        raise ValueError(value)
    return int(value)


def _assign(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    assigned: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, brokers in _object(json.loads(text)).items():
        for broker, queues in _object(brokers).items():
            if not isinstance(queues, list):
                raise ValueError(text)
            assigned.setdefault(topic, {})[broker] = tuple(map(_whole, queues))
        assigned.setdefault(topic, {})
    return assigned


def _queue_offsets(text: str, least: int) -> QueueOffsets:
    return _queue_numbers(text, lambda value: _whole(value, least), _QUEUE_NUMBERS)


def _queue_numbers(text: str, number: Callable[[Any], int], allowed: str) -> QueueOffsets:
    try:
        return {
            topic: {
                broker: {_whole(q): number(n) for q, n in _object(queues).items()}
                for broker, queues in _object(brokers).items()
            }
            for topic, brokers in _object(json.loads(text)).items()
            if not topic.startswith("$")  # of a position in a checkpoint
        }
    except Refused:
        raise
    except ValueError:
        raise Refused(allowed) from None


def _time_of(value: Any) -> int:
    is_iso = isinstance(value, str) and not value.isdecimal()
    return _time_ms(value) if is_iso else _whole(value)


_QUEUE_NUMBERS = 'JSON {"topic": {"broker": {"queue id": number}}}'
_TIME = "milliseconds since the epoch, or an ISO 8601 time as 2026-11-21T02:44:00Z"
_QUEUE_TIMES = (
    'JSON {"topic": {"broker": {"queue id": time}}}, times in ms or as 2026-11-21T02:44:00Z'
)
_VIEWS = choice(
    *("messages", "consumequeue", "index", "files"),
    *("gaps", "offsets", "topics", "checkpoint"),
)
_LIVE_VIEWS = ("messages", "offsets", "topics")

FLAG = Kind("true or false", is_word("true", "false").decode)
SIZE = Kind("a size such as 67108864, 64k, 128m or 1g", _size)
DURATION = Kind("a duration such as 500ms, 30s, 15m or 1h", _duration_ms)
TEXT = Kind("text", str)
NAME = Kind("a name", lambda text: text or None)
SECRET = Kind("a text that is not empty; never shown", lambda text: Secret(text) if text else None)
NAMESPACE = Kind(f"1 to {_NAMESPACE_LENGTH_MAX} characters of a-z A-Z 0-9 _ - |", _namespace)
NAMES = words("names separated by ','")
TAGS = words("TagA, TagA || TagB, or *", "||", everything="*")
COLUMNS = Kind(
    "names separated by ','",
    lambda text: tuple(word.strip() for word in text.split(",") if word.strip()),
)
SERVERS = Kind("host:port, several separated by ;", _servers)
PATTERN = Kind("a regular expression", _pattern)
CHARSET = Kind("a character set Python knows, such as utf-8", _charset)
VIEW = Kind(_VIEWS.allowed, _view)
LIVE_VIEW = Kind(", ".join(_LIVE_VIEWS), _live_view)
TOPIC = Kind(f"1 to {names.TOPIC_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |", _topic)
ASSIGN = Kind('JSON {"topic": {"broker": [queue id, ...]}}', _assign)
TIME = Kind(_TIME, _time_ms)
TIMES = Kind(
    _QUEUE_TIMES,
    lambda text: _queue_numbers(text, _time_of, _QUEUE_TIMES) if text else None,
)
PATHS = Kind("a JSON array of store folders, without path", _paths)
FOLDERS = Kind(
    "store folders, several separated by ','",
    lambda text: tuple(part.strip() for part in text.split(",") if part.strip()) or None,
)
LOCAL_FOLDER = Kind("a folder of a file system that is mounted", _local_folder)
HOST = Kind("ADDRESS:PORT, as in 192.0.2.1:10911", _host)
