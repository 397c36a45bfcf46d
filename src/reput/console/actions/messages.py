"""Sends of messages: one message to a topic, from its page."""

from reput.client.message import Message, check_topic
from reput.console.access import Right
from reput.console.changes import Change, Preview, Receipt
from reput.console.page import RequestFailed, View
from reput.errors import ReputError
from reput.format.codes import PERM_WRITE
from reput.html import environment
from reput.html.texts import count_text, size_text

BODY_BYTES_MAX = 4 * 1024 * 1024
_LINES = str.maketrans("", "", "\n\t")
SENT_BY = "REPUT_SENT_BY"
"""Property with the user of the console who sent a message."""


def _message(view: View) -> Message:
    """Return the message of a form. Raises ``RequestFailed``."""
    topic, form = view.names["topic"], view.form
    try:
        check_topic(topic)
        text = form.get("body", "")
        if environment.without_controls(text.translate(_LINES)) != text.translate(_LINES):
            raise RequestFailed(400, "body: allowed is text without control characters")
        body = text.encode("utf-8", "surrogatepass")
        if not 1 <= len(body) <= BODY_BYTES_MAX:
            raise RequestFailed(400, f"body: {len(body)} bytes, allowed are 1 to {BODY_BYTES_MAX}")
        return Message(
            topic,
            body,
            tags=form.get("tags", "").strip() or None,
            keys=tuple(form.get("keys", "").split()),
            properties={**_properties(form.get("properties", "")), SENT_BY: view.user.name},
        )
    except RequestFailed:
        raise
    except ReputError as error:
        raise RequestFailed(400, str(error)) from error


def _properties(text: str) -> dict[str, str]:
    """Return the properties in lines of a form: ``name=value``."""
    properties = {}
    for line in text.splitlines():
        name, mark, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not mark or not name.strip() or not value.strip():
            raise RequestFailed(400, f"properties={line[:80]!r}: allowed are lines name=value")
        properties[name.strip()] = value.strip()
    return properties


async def preview_send(view: View) -> Preview:
    """Return the message that would be sent, and who reads the topic."""
    message = _message(view)
    topic, known = message.topic, view.parts.cluster
    holders = [facts for facts in known.snapshot.masters() if topic in facts.topics]
    if not any(facts.topics[topic].perm & PERM_WRITE for facts in holders):
        raise RequestFailed(409, f"no known broker has a writable topic {topic[:80]!r}")
    readers = known.rows.readers(topic)
    warnings = []
    if readers:
        seen = [group for group in readers if view.user.sees_group(group)][:10]
        warnings.append(f"{count_text(len(readers), 'group')} read it: {', '.join(seen)}")
    rows = [
        ("Topic", topic),
        ("Body", f"{size_text(len(message.body))}: {message.body[:200].decode(errors='replace')}"),
        ("Tag", message.tags),
        ("Keys", " ".join(message.keys) or None),
        *((f"Property {name}", value) for name, value in message.properties.items()),
    ]
    return Preview(
        title=f"Send a message to {topic}",
        button="Send it",
        columns=("Part", "Value"),
        rows=rows,
        state={},
        warnings=warnings,
    )


async def run_send(view: View, preview: Preview) -> Receipt:
    """Send the message; return its queue and queue offset."""
    message = _message(view)
    async with view.parts.cluster.live.producer() as producer:
        result = await producer.send(message)
    queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
    row = (result.message_id, result.offset_message_id, queue, result.queue_offset, result.status)
    is_safe = result.status == "SEND_OK"
    text = f"The message is in {queue} at queue offset {result.queue_offset}"
    return Receipt(
        "done" if is_safe else "partly",
        text if is_safe else f"{text}, but {result.status}",
        ("Message id", "Offset id", "Queue", "Queue offset", "Status"),
        [row],
        link=("messages", result.offset_message_id),
    )


SEND = Change("message.send", Right.OPERATE, preview_send, run_send, unrecorded=("body",))
