"""``reput transaction``: half messages that brokers have given up, and asking about them again."""

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

    Their producers were asked as often as transactionCheckMax says. Nobody has got these messages.
    Time, queue and offset, the topic it was sent to, the producer group, tags, keys, id, body; with
    --json a document a line.
    """

    async def work(client: "ClientConfig") -> None:
        count = 0
        async for one in _given_up(client):
            document = _document(one, body)
            columns = document["origin_topic"] or "-", document["producer_group"] or "-"
            messages.print_line(session, one, document, *columns)
            count += 1
            if count == limit:
                return

    session.run(work)


async def _given_up(client: "ClientConfig") -> "AsyncIterator[ReceivedMessage]":
    """Yield what is in the topics of all brokers; nothing if no broker has such a topic."""
    from reput.client.core.route_cache import NoRoute
    from reput.format import names

    async with messages.reader_of(client) as reader:
        try:
            queues = await reader.queues(names.CHECK_MAX_TIME_TOPIC)
        except NoRoute:
            return
        ranges = {
            queue: (await reader.begin_offset(queue), await reader.end_offset(queue))
            for queue in queues
        }
        async for one in messages.in_order(reader, ranges):
            yield one


def _document(one: "ReceivedMessage", body: Body) -> Document:
    from reput.format import properties as props

    properties = one.stored.properties
    return {
        "origin_topic": properties.get(props.REAL_TOPIC),
        "producer_group": properties.get(props.PRODUCER_GROUP),
        **messages.message_document(one, body),
    }


@command("yes", *CLUSTER)
def resume(
    session: Session,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Any id of the message; see `transaction list`.")
    ],
) -> View:
    """Have the producers of a half message asked again, as often as at first.

    Without --yes it only shows the message. It stays in the list: resuming it twice may deliver it
    twice.
    """

    async def find(client: "ClientConfig") -> "ReceivedMessage":
        async for one in _given_up(client):
            if message_id in (one.message_id, one.offset_message_id):
                return one
        raise NotInStore(f"no half message that was given up has id {message_id}")

    found = session.run(find)
    if session.is_done:
        session.ask(lambda admin: admin.resume_check(found))
    document = _document(found, Body.NONE)
    return View(
        {"is_done": session.is_done, "message": document},
        Fields(
            {
                "asked again" if session.is_done else "would ask again": found.message_id,
                "topic": document["origin_topic"],
                "producer group": document["producer_group"],
            }
        ),
    )


COMMANDS = {"list": list_given_up, "resume": resume}
