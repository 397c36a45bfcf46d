"""``reput transaction``: half messages that brokers have given up; list and resume them."""

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import messages
from reput.cli.message_view import Body
from reput.cli.options import CLUSTER, BodyOption, LimitOption, Session, command
from reput.cli.printing import Document, Fields, View
from reput.errors import NotInStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reput.client.config import ClientConfig
    from reput.client.message import ReceivedMessage


@command(*CLUSTER, "utc")
def list_given_up(
    session: Session, limit: LimitOption = None, body: BodyOption = Body.AUTO
) -> None:
    """Print the half messages that brokers have given up, oldest first, one a line.

    Their producers did not decide them in transactionCheckMax checks, so they were not delivered.
    Columns: time, queue and offset, original topic, producer group, tags, keys, id, body; with
    --json one document a line.
    """

    async def work(client: "ClientConfig") -> None:
        count = 0
        async for message in _given_up(client):
            document = _document(message, body)
            columns = document["origin_topic"] or "-", document["producer_group"] or "-"
            messages.print_line(session, message, document, *columns)
            count += 1
            if count == limit:
                return

    session.run(work)


async def _given_up(client: "ClientConfig") -> "AsyncIterator[ReceivedMessage]":
    """Yield the abandoned half messages of all brokers that have the topic for them."""
    from reput.client.core.route_cache import NoRoute
    from reput.format import names

    async with messages.range_reader(client) as reader:
        try:
            queues = await reader.queues(names.CHECK_MAX_TIME_TOPIC)
        except NoRoute:
            return
        async with contextlib.aclosing(messages.in_order(reader, queues)) as present:
            async for message in present:
                yield message


def _document(message: "ReceivedMessage", body: Body) -> Document:
    from reput.format import properties as props

    properties = message.stored.properties
    return {
        "origin_topic": properties.get(props.REAL_TOPIC),
        "producer_group": properties.get(props.PRODUCER_GROUP),
        **messages.message_document(message, body),
    }


@command("yes", *CLUSTER)
def resume(
    session: Session,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Any id of the message; see `transaction list`.")
    ],
) -> View:
    """Make the broker check a half message with its producers again, with all attempts.

    Without --yes it only shows the message. It remains in the list: resuming it twice may deliver
    it twice.
    """

    async def find(client: "ClientConfig") -> "ReceivedMessage":
        async for message in _given_up(client):
            if message_id in (message.message_id, message.offset_message_id):
                return message
        raise NotInStore(f"no given-up half message has id {message_id}")

    message = session.run(find)
    if session.is_done:
        session.ask(lambda admin: admin.resume_check(message))
    document = _document(message, Body.NONE)
    return View(
        {"is_done": session.is_done, "message": document},
        Fields(
            {
                "asked again" if session.is_done else "would ask again": message.message_id,
                "topic": document["origin_topic"],
                "producer group": document["producer_group"],
            }
        ),
    )


COMMANDS = {"list": list_given_up, "resume": resume}
