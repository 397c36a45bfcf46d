"""Messages on the command line: as a JSON document, in full for people, or on one line.

Times in the document are in ms since the epoch, sizes in bytes.
"""

import enum
import functools
import json
from typing import TYPE_CHECKING

from reput.cli import printing
from reput.cli.printing import Document

if TYPE_CHECKING:
    from reput.format.message import StoredMessage


class Body(enum.StrEnum):
    """Format of bodies."""

    AUTO = "auto"
    TEXT = "text"
    HEX = "hex"
    JSON = "json"
    NONE = "none"


def document(message: "StoredMessage", body: Body) -> Document:
    """Describe a message.

    Args:
        message: The message.
        body: ``auto`` (text if it is text, else hex), ``text``, ``hex``, ``json`` (parsed if it is
            valid) or ``none``.
    """
    from reput.format import body as bodies, message_id, sys_flag as flags

    fields = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "store_size": message.store_size,
        "message_id": message_id.message_id(message),
        "offset_id": message_id.offset_id(message),
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "transaction": {
            flags.TRANSACTION_NONE: "none",
            flags.TRANSACTION_PREPARED: "prepared",
            flags.TRANSACTION_COMMIT: "commit",
            flags.TRANSACTION_ROLLBACK: "rollback",
        }[flags.transaction_type(message.sys_flag)],
        "compression": bodies.compression_name(message.sys_flag),
        "born_timestamp": message.born_timestamp,
        "born_host": str(message.born_host),
        "store_timestamp": message.store_timestamp,
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "version": message.version,
        "properties": dict(message.properties),
        "stored_body_size": len(message.body),
    }
    return fields if body is Body.NONE else fields | _body(message, body)


def _body(message: "StoredMessage", wanted: Body) -> Document:
    from reput.errors import CorruptRecord

    problem = None
    try:
        data = message.plain_body()
    except CorruptRecord as error:
        data, problem = message.body, error.reason
    fields: Document = {"body_size": len(data), "body_problem": problem}
    if wanted is Body.JSON:
        try:
            return fields | {"body_encoding": "json", "body": json.loads(data)}
        except (ValueError, RecursionError):
            wanted = Body.AUTO
    if wanted is Body.TEXT or (wanted is Body.AUTO and _is_text(data)):
        text = data.decode("utf-8", "backslashreplace")
        return fields | {"body_encoding": "text", "body": text}
    return fields | {"body_encoding": "hex", "body": data.hex()}


def _is_text(data: bytes) -> bool:
    """Return whether a body is UTF-8 without control characters except white space."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def view(documents: list[Document], **others: object) -> printing.View:
    """Return a view of messages with all of their fields.

    Args:
        documents: The documents of the messages.
        **others: More entries of the view's JSON document.
    """
    blocks = [functools.partial(_print_whole, message) for message in documents]
    return printing.View({"messages": documents, **others}, *blocks)


def _print_whole(message: Document, clock: printing.Clock) -> None:
    """Print the fields of a message, one a line, then its properties and its body."""
    fields = {
        ("@" if name.endswith("_timestamp") else "") + name.replace("_", " "): value
        for name, value in message.items()
        if name not in ("properties", "body", "body_problem", "keys")
    }
    printing.print_fields(fields | {"keys": message["keys"]}, clock)
    print("properties")
    properties = {f"  {name}": value for name, value in message["properties"].items()}
    printing.print_fields(properties, clock)
    if message.get("body_problem"):
        printing.print_note(f"shown as stored: {message['body_problem']}")
    if "body" in message:
        body = message["body"]
        if message["body_encoding"] == "json":
            body = json.dumps(body, ensure_ascii=False, indent=2)
        print("body")
        print(printing.printable_lines(body))


def line(message: Document, clock: printing.Clock, *columns: str) -> str:
    """Return a message as one line of columns separated by tabs.

    Args:
        message: The document of the message.
        clock: The format of times.
        *columns: Columns between the time and tags, keys, id and body.
    """
    body = message.get("body")
    if body is not None and not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False)
    values = [
        clock.text(message["store_timestamp"]),
        *columns,
        message["tags"] or "-",
        " ".join(message["keys"]) or "-",
        message["message_id"],
        *([] if body is None else [body]),
    ]
    return "\t".join(map(printing.printable, values))
