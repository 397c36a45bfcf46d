"""A message as the command line shows it: a document, whole for people, or one line.

The keys of the document are those of ``--json``; times are ms since the epoch, sizes bytes.
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
    """How bodies are shown."""

    AUTO = "auto"
    TEXT = "text"
    HEX = "hex"
    JSON = "json"
    NONE = "none"


def document(one: "StoredMessage", body: Body) -> Document:
    """Describe a message.

    Args:
        one: The message.
        body: ``auto`` (text if it is text, else hex), ``text``, ``hex``, ``json`` (parsed where it
            can be) or ``none``.
    """
    from reput.format import body as bodies, message_id, sys_flag as flags

    found = {
        "topic": one.topic,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset,
        "physical_offset": one.physical_offset,
        "store_size": one.store_size,
        "message_id": message_id.message_id(one),
        "offset_id": message_id.offset_id(one),
        "unique_key": one.unique_key,
        "tags": one.tags,
        "keys": one.keys,
        "flag": one.flag,
        "sys_flag": one.sys_flag,
        "transaction": {
            flags.TRANSACTION_NONE: "none",
            flags.TRANSACTION_PREPARED: "prepared",
            flags.TRANSACTION_COMMIT: "commit",
            flags.TRANSACTION_ROLLBACK: "rollback",
        }[flags.transaction_type(one.sys_flag)],
        "compression": bodies.compression_name(one.sys_flag),
        "born_timestamp": one.born_timestamp,
        "born_host": str(one.born_host),
        "store_timestamp": one.store_timestamp,
        "store_host": str(one.store_host),
        "reconsume_times": one.reconsume_times,
        "prepared_transaction_offset": one.prepared_transaction_offset,
        "body_crc": one.body_crc,
        "version": one.version,
        "properties": dict(one.properties),
        "stored_body_size": len(one.body),
    }
    return found if body is Body.NONE else found | _body(one, body)


def _body(one: "StoredMessage", wanted: Body) -> Document:
    from reput.errors import CorruptRecord

    problem = None
    try:
        data = one.plain_body()
    except CorruptRecord as error:
        data, problem = one.body, error.reason
    found: Document = {"body_size": len(data), "body_problem": problem}
    if wanted is Body.JSON:
        try:
            return found | {"body_encoding": "json", "body": json.loads(data)}
        except (ValueError, RecursionError):
            wanted = Body.AUTO
    if wanted is Body.TEXT or (wanted is Body.AUTO and _is_text(data)):
        text = data.decode("utf-8", "backslashreplace")
        return found | {"body_encoding": "text", "body": text}
    return found | {"body_encoding": "hex", "body": data.hex()}


def _is_text(data: bytes) -> bool:
    """Whether a body is UTF-8 without control characters but white space."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(one.isprintable() or one in "\t\r\n" for one in text)


def view(documents: list[Document], **others: object) -> printing.View:
    """Return messages as a view, each with all of its fields.

    Args:
        documents: The messages.
        **others: Entries of the JSON document, beside the messages.
    """
    blocks = [functools.partial(_print_whole, one) for one in documents]
    return printing.View({"messages": documents, **others}, *blocks)


def _print_whole(found: Document, clock: printing.Clock) -> None:
    """Print all of a message, one field a line, then its properties and its body."""
    fields = {
        ("@" if name.endswith("_timestamp") else "") + name.replace("_", " "): value
        for name, value in found.items()
        if name not in ("properties", "body", "body_problem", "keys")
    }
    printing.print_fields(fields | {"keys": found["keys"]}, clock)
    print("properties")
    properties = {f"  {name}": value for name, value in found["properties"].items()}
    printing.print_fields(properties, clock)
    if found.get("body_problem"):
        printing.print_note(f"shown as stored: {found['body_problem']}")
    if "body" in found:
        body = found["body"]
        if found["body_encoding"] == "json":
            body = json.dumps(body, ensure_ascii=False, indent=2)
        print("body")
        print(printing.printable_lines(body))


def line(found: Document, clock: printing.Clock, *places: str) -> str:
    """Return a message as one line, separated by tabs: time, places, tags, keys, id, body."""
    body = found.get("body")
    if body is not None and not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False)
    values = [
        clock.text(found["store_timestamp"]),
        *places,
        found["tags"] or "-",
        " ".join(found["keys"]) or "-",
        found["message_id"],
        *([] if body is None else [body]),
    ]
    return "\t".join(map(printing.printable, values))
