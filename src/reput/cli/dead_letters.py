"""``reput dlq``: messages that consumer groups have given up on, and how to hand them out again."""

from dataclasses import dataclass
from pathlib import Path
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
from reput.errors import NotInStore, ReputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reput.cli.printing import Clock
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import Message, ReceivedMessage
    from reput.client.producer import Producer

Document = dict[str, Any]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The consumer group that gave them up.")
]
IdOption = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only this message, by any id of it; repeatable."),
]
BeginOption = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Given up then or later.")
]
EndOption = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Given up before that.")
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="No more messages than this.")]

PRODUCER_GROUP = "TOOLS_PRODUCER"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command_group(
        app,
        "dlq",
        "Dead letters: messages that a consumer group has given up on. See them, send them again.",
        {"list": list_groups, "show": show, "resend": resend, "export": export},
    )


# --- list ---------------------------------------------------------------------------------------


def list_groups(
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """List the groups that have dead letters, and how many."""
    from reput.cli import printing

    found = ask(namesrv, timeout, _groups)
    if json:
        printing.print_json({"groups": found})
        return
    clock = printing.Clock(utc)
    printing.print_table(
        ["group", "topic", "#messages", "@last given up"],
        [
            [
                one["group"],
                one["topic"],
                one["message_count"],
                clock.text(one["last_store_timestamp"]),
            ]
            for one in found
        ],
    )


async def _groups(admin: "Admin") -> list[Document]:
    from reput.format import names

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
    group: str,
    ids: list[str] | None,
    begin: str | None,
    end: str | None,
    limit: int | None,
    clock: "Clock",
) -> _Choice:
    from reput.cli import printing

    return _Choice(
        group,
        frozenset(ids or ()),
        None if begin is None else printing.parse_time("--from", begin, clock),
        None if end is None else printing.parse_time("--to", end, clock),
        limit,
    )


def _ids(one: "ReceivedMessage") -> set[str]:
    """Return what a dead letter is known by: its producer's id, its first place, and its place."""
    from reput.format import properties as props

    found = {one.message_id, one.offset_message_id}
    if origin := one.stored.properties.get(props.ORIGIN_MESSAGE_ID):
        found.add(origin)
    return found


async def _chosen(client: "ClientConfig", choice: _Choice) -> "AsyncIterator[ReceivedMessage]":
    """Yield dead letters, oldest first: those that are there now.

    Raises:
        NotInStore: An id that was asked for is none of a dead letter of the group.
    """
    from reput.format import names

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
    from reput.format import properties as props

    properties = one.stored.properties
    return {
        "origin_topic": properties.get(props.RETRY_TOPIC),
        "origin_message_id": properties.get(props.ORIGIN_MESSAGE_ID),
        **messages.message_document(one, body),
    }


# --- show and export ----------------------------------------------------------------------------


def show(
    group: GroupArgument,
    id: IdOption = None,  # noqa: A002 - the option's name
    begin: BeginOption = None,
    end: EndOption = None,
    limit: LimitOption = None,
    body: messages.BodyOption = Body.AUTO,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Print the dead letters of a group, oldest first, one message a line.

    Time, queue and offset, the topic it was sent to, how often it was retried, tags, keys, id,
    body; with --json a document a line.
    """
    from reput.cli import message_view, printing

    clock = printing.Clock(utc)
    choice = _choice(group, id, begin, end, limit, clock)

    async def work(client: "ClientConfig") -> None:
        async for one in _chosen(client, choice):
            found = _document(one, body)
            if json:
                printing.print_json_line(found)
                continue
            place = f"{queue_text(one.queue)}:{one.queue_offset}"
            origin, times = found["origin_topic"] or "-", str(found["reconsume_times"])
            print(message_view.line(found, clock, place, origin, times))

    run(namesrv, timeout, work)


def export(
    group: GroupArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to; one that is there stays as it is.")
    ],
    id: IdOption = None,  # noqa: A002 - the option's name
    begin: BeginOption = None,
    end: EndOption = None,
    limit: LimitOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Write the dead letters of a group to a file: a JSON document a line, bodies in hex.

    The file appears when all of them are in it.
    """
    import json as codec

    from reput import small_file
    from reput.cli import printing
    from reput.errors import InvalidOption

    if file.exists():
        raise InvalidOption("FILE", str(file), "a name that is free")
    choice = _choice(group, id, begin, end, limit, printing.Clock(utc))

    async def work(client: "ClientConfig") -> list[str]:
        return [
            codec.dumps(_document(one, Body.HEX), ensure_ascii=False, separators=(",", ":")) + "\n"
            async for one in _chosen(client, choice)
        ]

    lines = run(namesrv, timeout, work)
    small_file.replace_file(file, "".join(lines).encode())
    found = {"group": group, "file": str(file), "message_count": len(lines)}
    if json:
        printing.print_json(found)
    else:
        printing.print_fields({"group": group, "file": file, "messages": len(lines)})


# --- resend -------------------------------------------------------------------------------------


@dataclass
class _Resent:
    """What became of a dead letter."""

    message: "ReceivedMessage"
    to: str
    message_id: str | None = None
    problem: str | None = None


def resend(
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
    yes: YesOption = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Send dead letters again, to the group that gave them up.

    A copy goes to the group's retry topic: its members get it, and nobody else, with as many tries
    as a new message. The dead letter stays where it is until the broker deletes its log file:
    sending it twice hands it out twice. Without --yes it shows what would be sent.

    A message that is not taken makes the exit code 1, and the others are sent nevertheless.
    """
    from reput.cli import printing
    from reput.format import names

    clock = printing.Clock(utc)
    choice = _choice(group, id, begin, end, limit, clock)

    async def work(client: "ClientConfig") -> list[_Resent]:
        from reput.client.producer import Producer
        from reput.format import properties as props

        found = []
        async for one in _chosen(client, choice):
            origin = one.stored.properties.get(props.RETRY_TOPIC)
            target = _Resent(one, (origin or "") if to_origin else names.retry_topic(group))
            if not target.to:
                target.problem = f"it does not say where it came from: no {props.RETRY_TOPIC}"
            found.append(target)
        if yes and found:
            async with Producer(PRODUCER_GROUP, client=client) as producer:
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

    found = run(namesrv, timeout, work)
    if json:
        printing.print_json(
            {
                "is_done": yes,
                "group": group,
                "messages": [
                    {
                        **_document(one.message, Body.NONE),
                        "to_topic": one.to or None,
                        "new_offset_id": one.message_id,
                        "problem": one.problem,
                    }
                    for one in found
                ],
            }
        )
    else:
        _print_resent(found, clock, is_done=yes)
    if not yes:
        print_preview_note()
    elif any(one.problem for one in found):
        raise typer.Exit(1)


def again(one: "ReceivedMessage", topic: str) -> "Message":
    """Return a dead letter as a message to be sent: what brokers noted of its first life is gone.

    Its id stays: whoever looks for it finds both.

    Raises:
        CorruptRecord: Its body cannot be unpacked.
    """
    from reput.client.message import Message
    from reput.format import names, properties as props

    stored = one.stored
    left_out = _OF_ITS_LIFE | (set() if names.is_retry_topic(topic) else _OF_ITS_GROUP)
    properties = {name: value for name, value in stored.properties.items() if name not in left_out}
    tags, keys = properties.pop(props.TAGS, None), properties.pop(props.KEYS, "")
    return Message(
        topic, stored.plain_body(), tags=tags, keys=keys, properties=properties, flag=stored.flag
    )


_OF_ITS_LIFE = {
    "DELAY", "WAIT", "REAL_TOPIC", "REAL_QID", "CLUSTER", "MSG_REGION", "TRACE_ON", "__CRC32#",
    "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET", "TRAN_MSG", "PGROUP",
    "POP_CK", "1ST_POP_TIME",
    "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID",
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
}  # fmt: skip
"""What brokers and consumers write, and what would hold it back again."""
_OF_ITS_GROUP = {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "ORIGIN_GROUP"}
"""What members of its group read of a retried message."""


def _print_resent(found: list[_Resent], clock: "Clock", *, is_done: bool) -> None:
    from reput.cli import printing

    printing.print_table(
        ["@given up", "id", "keys", "to", "problem"]
        if not is_done
        else ["@given up", "id", "keys", "to", "stored as", "problem"],
        [
            [
                clock.text(one.message.store_timestamp_ms),
                one.message.message_id,
                " ".join(one.message.keys) or None,
                one.to or None,
                *([one.message_id] if is_done else []),
                one.problem,
            ]
            for one in found
        ],
    )
