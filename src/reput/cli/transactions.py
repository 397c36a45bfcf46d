"""``reput transaction``: half messages that brokers have given up, and asking about them again."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import messages
from reput.cli.connecting import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    JsonOption,
    NamesrvOption,
    TimeoutOption,
    UtcOption,
    YesOption,
    ask,
    command_group,
    print_preview_note,
    queue_text,
    run,
)
from reput.cli.message_view import Body
from reput.errors import NotInStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import ReceivedMessage

Document = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command_group(
        app,
        "transaction",
        "Transactions: half messages whose producers never said what became of them.",
        {"list": list_given_up, "resume": resume},
    )


def list_given_up(
    limit: Annotated[int | None, typer.Option(min=1, help="No more messages than this.")] = None,
    body: messages.BodyOption = Body.AUTO,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Print the half messages that brokers have given up, oldest first, one a line.

    Their producers were asked as often as transactionCheckMax says. Nobody has got these messages.
    Time, queue and offset, the topic it was sent to, the producer group, tags, keys, id, body; with
    --json a document a line.
    """
    from reput.cli import message_view, printing

    clock = printing.Clock(utc)

    async def work(client: "ClientConfig") -> None:
        count = 0
        async for one in _given_up(client):
            found = _document(one, body)
            if json:
                printing.print_json_line(found)
            else:
                place = f"{queue_text(one.queue)}:{one.queue_offset}"
                origin, group = found["origin_topic"] or "-", found["producer_group"] or "-"
                print(message_view.line(found, clock, place, origin, group))
            count += 1
            if count == limit:
                return

    run(namesrv, timeout, work)


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


def resume(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Any id of the message; see `transaction list`.")
    ],
    yes: YesOption = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Have the producers of a half message asked again, as often as at first.

    Without --yes it only shows the message. It stays in the list: resuming it twice may deliver it
    twice.
    """
    from reput.cli import printing

    async def find(client: "ClientConfig") -> "ReceivedMessage":
        async for one in _given_up(client):
            if message_id in (one.message_id, one.offset_message_id):
                return one
        raise NotInStore(f"no half message that was given up has id {message_id}")

    async def again(admin: "Admin") -> None:
        await admin.resume_check(found)

    found = run(namesrv, timeout, find)
    if yes:
        ask(namesrv, timeout, again)
    document = _document(found, Body.NONE)
    if json:
        printing.print_json({"is_done": yes, "message": document})
    else:
        printing.print_fields(
            {
                "asked again" if yes else "would ask again": found.message_id,
                "topic": document["origin_topic"],
                "producer group": document["producer_group"],
            }
        )
    if not yes:
        print_preview_note()
