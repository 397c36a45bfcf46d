"""Arguments of the store's commands: words of a script -> times, hosts, settings, messages."""

import dataclasses
from typing import Any, NewType

from reput.format import message as record, properties as props, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.format.message import Host
from reput.store.config import StoreConfig
from reput.store.writing.incoming import IncomingMessage
from scripts import runner
from store_fixture import START_MS

Text = NewType("Text", str)
"""``x*100`` is 100 letters, ``%RETRY%~x*100`` the same after a prefix."""
Moment = NewType("Moment", int)
"""``+5s`` after the start of the script, ``-1h`` before it, or milliseconds since the epoch."""
_FLAGS = {
    "prepared": flags.TRANSACTION_PREPARED,
    "committed": flags.TRANSACTION_COMMIT,
    "rolled-back": flags.TRANSACTION_ROLLBACK,
    "none": flags.TRANSACTION_NONE,
}
_PROPERTY_OF = {"tags": props.TAGS, "keys": props.KEYS, "id": props.UNIQ_KEY}
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(StoreConfig)}


def text(word: str) -> str:
    """Return text; see ``Text``."""
    prefix, _, repeated = word.rpartition("~")
    return prefix + runner.data(repeated).decode()


def moment(word: str) -> int:
    """Return a time in milliseconds since the epoch; see ``Moment``."""
    if word[0] in "+-" and not word[1:].isdigit():
        return START_MS + (1 if word[0] == "+" else -1) * runner.milliseconds(word[1:])
    return int(word)


def setting(name: str, word: str) -> Any:
    """Return the value of a setting of ``StoreConfig``."""
    return runner.CONVERTERS.get(type(_DEFAULTS[name]), str)(word)


def flag_bits(word: str) -> int:
    """Return ``sysFlag``: the name of a transaction's state, or a number."""
    return _FLAGS[word] if word in _FLAGS else int(word, 0)


def host(word: str) -> Host:
    """Return a host: ``10.0.0.1:1234``, or an address in hex for IPv6."""
    address, port = word.rsplit(":", 1)
    if "." in address:
        return Host(bytes(map(int, address.split("."))), int(port))
    return Host(bytes.fromhex(address), int(port))


class Message:
    """Arguments of the commands that put: body, properties and other fields of a message."""

    def __init__(self, arguments: dict[str, str]) -> None:
        self._arguments = arguments

    def make(self, topic: str, queue_id: int, number: int = 0) -> IncomingMessage:
        """Return a message; ``{n}`` in a value is its number."""
        given = {name: word.replace("{n}", str(number)) for name, word in self._arguments.items()}
        size = int(given.pop("size", 0))
        body = runner.data(given.pop("body", "hello"))
        fields: dict[str, Any] = {"born_timestamp": START_MS - 5}
        for name in ("flag", "reconsume_times", "prepared_transaction_offset"):
            if name in given:
                fields[name] = int(given.pop(name))
        for name, convert in (
            ("born_timestamp", moment),
            ("born_host", host),
            ("store_host", host),
            ("sys_flag", flag_bits),
            ("waits", runner.boolean),
        ):
            if name in given:
                fields[name] = convert(given.pop(name))  # type: ignore[operator]
        property_bytes = self._property_bytes(given)
        if size:
            fixed = record.FIXED_BYTES_V1 + len(topic.encode()) + len(property_bytes)
            body = b"x" * (size - fixed)
        return IncomingMessage(topic, body, queue_id, property_bytes, **fields)

    @staticmethod
    def _property_bytes(given: dict[str, str]) -> bytes:
        raw = given.pop("properties", None)
        if raw is not None:
            return raw.replace(":", "\x01").replace(";", "\x02").encode()
        named = {_PROPERTY_OF.get(name, name): text(word) for name, word in given.items()}
        # Not by the codec, which refuses properties that the tested store must refuse.
        return "".join(f"{name}\x01{value}\x02" for name, value in named.items()).encode()


def inner(word: str) -> InnerMessage:
    """Return a message of a batch: ``body;keys=k1;flag=2``."""
    body, *given = word.split(";")
    message = Message({"body": body} | dict(pair.split("=", 1) for pair in given)).make("T", 0)
    return InnerMessage(message.flag, message.body, message.property_bytes)


runner.CONVERTERS[Text] = text
runner.CONVERTERS[Moment] = moment
