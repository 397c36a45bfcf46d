"""Attributes of topics and groups (5.x): their values, and changes by requests.

A request gives each name with a sign: ``+message.type`` sets it, ``-message.type`` removes it.
Java: ``AttributeParser``, ``AttributeUtil``, ``TopicAttributes``, ``SubscriptionGroupAttributes``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from reput.broker import limits
from reput.config import JAVA_LONG_MAX
from reput.errors import RequestRefused
from reput.format import names
from reput.format.codes import ResponseCode

MESSAGE_TYPE = "message.type"
MIXED = "MIXED"
_DIGITS_MAX = 19
"""Digits of a Java long."""


class Values(Protocol):
    """The allowed values of an attribute."""

    def allows(self, value: str) -> bool:
        """Return True if a value is allowed."""

    @property
    def violation(self) -> str:
        """RocketMQ's text about an invalid value, which lists the allowed values."""


@dataclass(frozen=True, slots=True)
class _Choice:
    words: tuple[str, ...]

    def allows(self, value: str) -> bool:
        return value in self.words

    @property
    def violation(self) -> str:
        return f"value is not in set: [{', '.join(self.words)}]"


@dataclass(frozen=True, slots=True)
class _Number:
    low: int
    high: int

    def allows(self, value: str) -> bool:
        digits = value.removeprefix("-")
        if len(digits) > _DIGITS_MAX:
            return False
        return digits.isascii() and digits.isdigit() and self.low <= int(value) <= self.high

    @property
    def violation(self) -> str:
        return f"value is not in range({self.low}, {self.high})"


class _Text:
    def allows(self, value: str) -> bool:
        return value.isprintable()

    @property
    def violation(self) -> str:
        return "value has control characters"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute."""

    values: Values
    is_changeable: bool = True
    """True if it can be set or removed after creation."""


OF_TOPICS: Mapping[str, Attribute] = {
    "queue.type": Attribute(_Choice(("BatchCQ", "SimpleCQ")), is_changeable=False),
    # Java's topics may be compacted, which is not supported here.
    "cleanup.policy": Attribute(_Choice(("DELETE",)), is_changeable=False),
    MESSAGE_TYPE: Attribute(
        _Choice(
            ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")
        )
    ),
    "reserve.time": Attribute(_Number(-1, JAVA_LONG_MAX)),
    "lite.topic.expiration": Attribute(_Number(-1, 43_200)),
}
OF_GROUPS: Mapping[str, Attribute] = {
    "priority.factor": Attribute(_Number(0, 100)),
    "lite.bind.topic": Attribute(_Text()),
    "lite.sub.model": Attribute(_Choice(("Shared", "Exclusive"))),
    "lite.sub.reset.offset.exclusive": Attribute(_Choice(("true", "false"))),
    "lite.sub.reset.offset.unsubscribe": Attribute(_Choice(("true", "false"))),
    "lite.sub.client.quota": Attribute(_Number(-1, JAVA_LONG_MAX)),
    "lite.sub.client.max.event.cnt": Attribute(_Number(10, JAVA_LONG_MAX)),
    "lite.sub.wildcard": Attribute(_Text()),
}


def parse(text: str | None) -> dict[str, str]:
    """Return the changes of ``+name=value,-name``, each with its sign.

    Raises:
        RequestRefused: The text has another form.
    """
    changes: dict[str, str] = {}
    pairs = text.split(",") if text else []
    limits.ATTRIBUTES.check(len(pairs))
    for pair in pairs:
        name, is_set, value = pair.partition("=")
        if is_set and "+" not in name:
            raise _refused(f"add/alter attribute format is wrong: {name}")
        if not is_set and "-" not in name:
            raise _refused(f"delete attribute format is wrong: {name}")
        if name in changes:
            raise _refused(f"key duplication: {name}")
        changes[name] = value
    return changes


def changed(
    known: Mapping[str, str] | None, changes: Mapping[str, str], all_: Mapping[str, Attribute]
) -> tuple[tuple[str, str], ...]:
    """Return the sorted attributes of a topic or group after a change.

    Args:
        known: Current attributes; None if it is new.
        changes: Name with its sign -> new value, which is ignored for a removal.
        all_: All existing attributes.

    Raises:
        RequestRefused: A change is not allowed; the message lists allowed values.
    """
    merged = dict(known or {})
    seen = set()
    limits.ATTRIBUTES.check(len(changes))
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name:
            raise _refused("kv string format wrong.")
        if name in seen:
            raise _refused(f"alter duplication key. key: {name}")
        seen.add(name)
        if known is None and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {name}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {name}")
        if sign == "-" and name not in merged:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
        _check(name, value, all_, is_new=known is None, is_set=sign == "+")
        if sign == "+":
            merged[name] = value
        else:
            del merged[name]
    return tuple(sorted(merged.items()))


def _check(
    name: str, value: str, all_: Mapping[str, Attribute], *, is_new: bool, is_set: bool
) -> None:
    attribute = all_.get(name)
    if attribute is None:
        raise _refused(
            f"unsupported key: {names.printable(name)}; allowed: {', '.join(sorted(all_))}"
        )
    if not is_new and not attribute.is_changeable:
        raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
    limits.ATTRIBUTE_BYTES.check(len(value.encode("utf-8", "surrogatepass")), name)
    if is_set and not attribute.values.allows(value):
        raise _refused(f"{name}: {attribute.values.violation}, it is {value!r}")


def _refused(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, why)
