"""``reput dlq``: messages that consumer groups have given up on, and how to hand them out again."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import messages
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.message_view import Body
from reput.cli.options import (
    CLUSTER,
    BodyOption,
    GroupArgument,
    LimitOption,
    Session,
    command,
)
from reput.cli.printing import Computed, Document, Fields, Table, View
from reput.errors import InvalidOption, NotInStore, ReputError
from reput.format import names, properties as props

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import Message, ReceivedMessage
    from reput.client.producer import Producer

IdOption = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only this message, by any id of it; repeatable."),
]
BeginOption = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Only given up at this time or later.")
]
EndOption = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Only given up before this time.")
]


# --- list ---------------------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def list_groups(
    session: Session,
) -> View:
    """List the groups that have dead letters, and how many."""
    groups = session.ask(_groups)
    columns = "group topic #messages=message_count @last_given_up=last_store_timestamp"
    return View({"groups": groups}, Table(columns, groups))


async def _groups(admin: "Admin") -> list[Document]:
    found = []
    for topic in await admin.topics():
        if not names.is_dlq_topic(topic):
            continue
        queues = (await admin.topic_status(topic)).values()
        found.append(
            {
                "group": topic.removeprefix(names.DLQ_PREFIX),
                "topic": topic,
                "message_count": sum(one.max_offset - one.min_offset for one in queues),
                "last_store_timestamp": max(
                    (one.last_update_timestamp for one in queues), default=0
                )
                or None,
            }
        )
    return found


# --- which ones ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """Which dead letters of a group are meant."""

    group: str
    ids: frozenset[str]
    begin_ms: int | None
    end_ms: int | None
    limit: int | None

    def takes(self, one: "ReceivedMessage") -> bool:
        stored_ms = one.store_timestamp_ms
        if self.begin_ms is not None and stored_ms < self.begin_ms:
            return False
        if self.end_ms is not None and stored_ms >= self.end_ms:
            return False
        return not self.ids or not self.ids.isdisjoint(_ids(one))


def _choice(
    session: Session,
    group: str,
    ids: list[str] | None,
    begin: str | None,
    end: str | None,
    limit: int | None,
) -> _Choice:
    return _Choice(
        group,
        frozenset(ids or ()),
        session.time_ms("--from", begin),
        session.time_ms("--to", end),
        limit,
    )


def _ids(one: "ReceivedMessage") -> set[str]:
    """Return what a dead letter is known by: its producer's id, its first place, and its place."""
    found = {one.message_id, one.offset_message_id}
    if origin := one.stored.properties.get(props.ORIGIN_MESSAGE_ID):
        found.add(origin)
    return found


async def _chosen(client: "ClientConfig", choice: _Choice) -> "AsyncIterator[ReceivedMessage]":
    """Yield dead letters, oldest first: those that are there now.

    Raises:
        NotInStore: An id that was asked for is none of a dead letter of the group.
    """
    left = set(choice.ids)
    count = 0
    async with messages.reader_of(client) as reader:
        ranges = {
            queue: (await reader.begin_offset(queue), await reader.end_offset(queue))
            for queue in await reader.queues(names.dlq_topic(choice.group))
        }
        async for one in messages.in_order(reader, ranges):
            if not choice.takes(one):
                continue
            yield one
            left -= _ids(one)
            count += 1
            if count == choice.limit or (choice.ids and not left):
                return
    if left:
        missing = " ".join(sorted(left))
        raise NotInStore(f"no dead letter of group {choice.group} has id {missing}")


def _document(one: "ReceivedMessage", body: Body) -> Document:
    """Return a dead letter as ``--json`` prints it: a message, and where it came from."""
    properties = one.stored.properties
    return {
        "origin_topic": properties.get(props.RETRY_TOPIC),
        "origin_message_id": properties.get(props.ORIGIN_MESSAGE_ID),
        **messages.message_document(one, body),
    }


# --- show and export ----------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def show(
    session: Session,
    group: GroupArgument,
    id: IdOption = None,  # noqa: A002 - the option's name
    begin: BeginOption = None,
    end: EndOption = None,
    limit: LimitOption = None,
    body: BodyOption = Body.AUTO,
) -> None:
    """Print the dead letters of a group, oldest first, one message a line.

    Time, queue and offset, the topic it was sent to, how often it was retried, tags, keys, id,
    body; with --json a document a line.
    """
    choice = _choice(session, group, id, begin, end, limit)

    async def work(client: "ClientConfig") -> None:
        async for one in _chosen(client, choice):
            document = _document(one, body)
            columns = document["origin_topic"] or "-", str(document["reconsume_times"])
            messages.print_line(session, one, document, *columns)

    session.run(work)


@command(*CLUSTER, "utc")
def export(
    session: Session,
    group: GroupArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to; one that is there stays as it is.")
    ],
    id: IdOption = None,  # noqa: A002 - the option's name
    begin: BeginOption = None,
    end: EndOption = None,
    limit: LimitOption = None,
) -> View:
    """Write the dead letters of a group to a file: a JSON document a line, bodies in hex.

    The file appears when all of them are in it.
    """
    import json as codec

    from reput import small_file

    if file.exists():
        raise InvalidOption("FILE", str(file), "a name that is free")
    choice = _choice(session, group, id, begin, end, limit)

    async def work(client: "ClientConfig") -> list[str]:
        return [
            codec.dumps(_document(one, Body.HEX), ensure_ascii=False, separators=(",", ":")) + "\n"
            async for one in _chosen(client, choice)
        ]

    lines = session.run(work)
    small_file.replace_file(file, "".join(lines).encode())
    document = {"group": group, "file": str(file), "message_count": len(lines)}
    return View(document, Fields.of("group file messages=message_count", document))


# --- resend -------------------------------------------------------------------------------------


@dataclass
class _Resent:
    """What became of a dead letter."""

    message: "ReceivedMessage"
    to: str
    message_id: str | None = None
    problem: str | None = None


@command("yes", *CLUSTER, "utc")
def resend(
    session: Session,
    group: GroupArgument,
    id: IdOption = None,  # noqa: A002 - the option's name
    begin: BeginOption = None,
    end: EndOption = None,
    limit: LimitOption = None,
    to_origin: Annotated[
        bool,
        typer.Option(
            "--to-origin", help="To the topic it was sent to: all of its groups get it again."
        ),
    ] = False,
) -> View:
    """Send dead letters again, to the group that gave them up.

    A copy goes to the group's retry topic: its members get it, and nobody else, with as many tries
    as a new message. The dead letter stays where it is until the broker deletes its log file:
    sending it twice hands it out twice. Without --yes it shows what would be sent.

    A message that is not taken makes the exit code 1, and the others are sent nevertheless.
    """
    choice = _choice(session, group, id, begin, end, limit)

    async def work(client: "ClientConfig") -> list[_Resent]:
        from reput.client.producer import Producer

        found = []
        async for one in _chosen(client, choice):
            origin = one.stored.properties.get(props.RETRY_TOPIC)
            target = _Resent(one, (origin or "") if to_origin else names.retry_topic(group))
            if not target.to:
                target.problem = f"it does not say where it came from: no {props.RETRY_TOPIC}"
            found.append(target)
        if session.is_done and found:
            async with Producer(names.TOOLS_PRODUCER, client=client) as producer:
                for target in found:
                    if target.problem is None:
                        await send(producer, target)
        return found

    async def send(producer: "Producer", one: _Resent) -> None:
        try:
            sent = await producer.send(again(one.message, one.to))
        except ReputError as error:
            one.problem = str(error)
        else:
            one.message_id = sent.offset_message_id
            if sent.status != "SEND_OK":
                one.problem = f"stored, but {sent.status}"

    found = session.run(work)
    stored = "stored_as=message_id " if session.is_done else ""
    columns = f"@given_up id keys to {stored}problem"
    computed: Computed = {
        "given_up": lambda one: one.message.store_timestamp_ms,
        "id": lambda one: one.message.message_id,
        "keys": lambda one: list(one.message.keys),
        "to": lambda one: one.to or None,
    }
    documents = [
        {
            **_document(one.message, Body.NONE),
            "to_topic": one.to or None,
            "new_offset_id": one.message_id,
            "problem": one.problem,
        }
        for one in found
    ]
    is_failed = session.is_done and any(one.problem for one in found)
    return View(
        {"is_done": session.is_done, "group": group, "messages": documents},
        Table(columns, found, computed=computed),
        exit_code=EXIT_DAMAGE if is_failed else 0,
    )


def again(one: "ReceivedMessage", topic: str) -> "Message":
    """Return a dead letter as a message to be sent: what brokers noted of its first life is gone.

    Its id stays: whoever looks for it finds both.

    Raises:
        CorruptRecord: Its body cannot be unpacked.
    """
    from reput.client.message import Message

    stored = one.stored
    left_out = _OF_ITS_LIFE | (set() if names.is_retry_topic(topic) else _OF_ITS_GROUP)
    properties = {name: value for name, value in stored.properties.items() if name not in left_out}
    tags, keys = properties.pop(props.TAGS, None), properties.pop(props.KEYS, "")
    return Message(
        topic, stored.plain_body(), tags=tags, keys=keys, properties=properties, flag=stored.flag
    )


_OF_ITS_LIFE = {
    props.DELAY,
    props.WAIT,
    props.REAL_TOPIC,
    props.REAL_QUEUE_ID,
    props.CLUSTER,
    "MSG_REGION",
    "TRACE_ON",
    props.CRC32,
    "CONSUME_START_TIME",
    "MIN_OFFSET",
    "MAX_OFFSET",
    props.TRANSACTION_PREPARED,
    props.PRODUCER_GROUP,
    props.POP_CHECKPOINT,
    props.FIRST_POP_TIME,
    props.TIMER_DELAY_MS,
    props.TIMER_DELAY_SEC,
    props.TIMER_DELIVER_MS,
    props.TIMER_OUT_MS,
    props.TIMER_ENQUEUE_MS,
    props.TIMER_DEQUEUE_MS,
    props.TIMER_ROLL_TIMES,
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
    props.INNER_MULTI_DISPATCH,
    props.INNER_MULTI_QUEUE_OFFSET,
}
"""Properties that brokers and consumers write, and those that would delay the message again."""
_OF_ITS_GROUP = {props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID, props.ORIGIN_GROUP}
"""Properties of a retried message that the members of its group read."""


COMMANDS = {"list": list_groups, "show": show, "resend": resend, "export": export}
