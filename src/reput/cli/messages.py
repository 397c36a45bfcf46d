"""``reput message``: find messages, follow a topic, print what is in it."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from reput.cli import message_view
from reput.cli.connecting import CommandFailed, choose_queues, queue_text
from reput.cli.message_view import Body
from reput.cli.options import (
    CLUSTER,
    BeginOption,
    BodyOption,
    CountOption,
    EndOption,
    IdleOption,
    LimitOption,
    ProducerGroupOption,
    QueuesOption,
    Session,
    StartOption,
    TagsOption,
    TopicArgument,
    command,
)
from reput.cli.printing import Clock, Document, View, parse_time, print_json_line
from reput.cli.trace import trace
from reput.errors import InvalidOption, NotInStore
from reput.format.names import TOOLS_CONSUMER

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import ReceivedMessage
    from reput.client.pull_consumer import PullConsumer
    from reput.format.bodies import MessageQueue

M = TypeVar("M", bound="ReceivedMessage")

_AHEAD_COUNT = 256
"""Messages of one queue that wait for older ones of others."""
_SILENCE_S = 30
"""How long a queue that must have more messages may bring none."""


def message_document(one: "ReceivedMessage", body: Body) -> Document:
    """Return a message as ``--json`` prints it: as ``reput store`` does, and its broker's name."""
    return {"broker_name": one.broker_name, **message_view.document(one.stored, body)}


def print_message(session: Session, one: "ReceivedMessage", body: Body) -> None:
    """Print a message on one line, as soon as it is there."""
    print_line(session, one, message_document(one, body))


def print_line(session: Session, one: "ReceivedMessage", document: Document, *columns: str) -> None:
    """Print the document of a message on one line, with more columns after its queue offset."""
    if session.as_json:
        print_json_line(document)
    else:
        place = f"{queue_text(one.queue)}:{one.queue_offset}"
        print(message_view.line(document, session.clock, place, *columns), flush=True)


def _view(messages: "Sequence[ReceivedMessage]", body: Body) -> View:
    return message_view.view([message_document(one, body) for one in messages])


# --- taking back --------------------------------------------------------------------------------


@command("namesrv", "timeout")
def recall(
    session: Session,
    topic: TopicArgument,
    handle: Annotated[
        str, typer.Argument(metavar="HANDLE", help="As the message's producer was told.")
    ],
    group: ProducerGroupOption = "reput-cli",
) -> None:
    """Take back a message that waits for its time: it is not delivered.

    Prints its id. The broker's recallMessageEnable must be true.
    """

    async def work(client: "ClientConfig") -> None:
        from reput.client.config import ProducerConfig
        from reput.client.producer import Producer

        config = ProducerConfig(send_timeout_ms=client.request_timeout_ms)
        async with Producer(group, client=client, config=config) as producer:
            print(await producer.recall(topic, handle))

    session.run(work)


# --- by id and by key ---------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def get(
    session: Session,
    message_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="An offset id; or with --topic the id that its producer was told."
        ),
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where to look for a producer's id.")
    ] = None,
    body: BodyOption = Body.AUTO,
) -> View:
    """Show a message in full, by its id.

    An offset id says by itself where the message is. The id that a producer was told, the unique
    key, is looked up in the index of the topic's brokers.
    """

    async def work(admin: "Admin") -> "ReceivedMessage | None":
        if topic is not None:
            found = await admin.message_by_unique_key(topic, message_id)
            if found is not None:
                return found
        await _check_offset_id(admin, message_id)
        return await admin.message_by_offset_id(message_id)

    found = session.ask(work)
    if found is None:
        raise NotInStore(f"no message of id {message_id}: deleted by now, or never there")
    return _view([found], body)


async def _check_offset_id(admin: "Admin", message_id: str) -> None:
    """Check that an id leads to a broker of this cluster: a unique key leads anywhere."""
    from reput.format import message_id as ids

    allowed = "an offset id of this cluster; for the id that a producer was told, give --topic"
    try:
        address = str(ids.decode_offset_id(message_id).store_host)
    except ValueError as error:
        raise InvalidOption("ID", message_id, allowed) from error
    known = await admin.clusters()
    addresses = {
        one for data in known.broker_addr_table.values() for one in data.broker_addrs.values()
    }
    if address not in addresses:
        raise InvalidOption("ID", f"{message_id} (at {address}, no broker known)", allowed)


@command(*CLUSTER, "utc")
def by_key(
    session: Session,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One of the message's keys.")],
    begin: BeginOption = None,
    end: EndOption = None,
    limit: Annotated[int, typer.Option(min=1, help="No more messages of each broker.")] = 64,
    body: BodyOption = Body.AUTO,
) -> View:
    """Show the messages of a topic that have a key, oldest first.

    Brokers before 5.x give no more than 64, the newest.
    """
    bounds = {}
    if (begin_ms := session.time_ms("--from", begin)) is not None:
        bounds["begin_ms"] = begin_ms
    if (end_ms := session.time_ms("--to", end)) is not None:
        bounds["end_ms"] = end_ms - 1
    found = session.ask(lambda admin: admin.messages_by_key(topic, key, count_max=limit, **bounds))
    if not found:
        raise NotInStore(f"no message of topic {topic} has key {key}")
    return _view(found, body)


@command(*CLUSTER, "utc")
def by_unique_key(
    session: Session,
    topic: TopicArgument,
    unique_key: Annotated[
        str, typer.Argument(metavar="ID", help="The id that the message's producer was told.")
    ],
    body: BodyOption = Body.AUTO,
) -> View:
    """Show the message of a topic that has a unique key: the id of its producer's client."""
    found = session.ask(lambda admin: admin.message_by_unique_key(topic, unique_key))
    if found is None:
        raise NotInStore(f"no message of topic {topic} has unique key {unique_key}")
    return _view([found], body)


# --- following and dumping ----------------------------------------------------------------------


@command(*CLUSTER, "utc")
def tail(
    session: Session,
    topic: TopicArgument,
    begin: StartOption = "latest",
    count: CountOption = None,
    idle: IdleOption = None,
    tags: TagsOption = "*",
    queue: QueuesOption = None,
    body: BodyOption = Body.AUTO,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C.

    No group is involved: consumers do not notice. One message a line: time, queue and offset, tags,
    keys, id, body; with --json a document a line.
    """
    clock = session.clock

    async def work(client: "ClientConfig") -> None:
        async with reader_of(client) as reader:
            queues = choose_queues("--queue", await reader.queues(topic), queue)
            await reader.assign(queues, tags)
            for one in queues:
                reader.seek(one, await begin_of(reader, one, begin, clock))
            begin_ms = _begin_ms(begin, clock)
            async for message in received(reader.poll, count, idle):
                if message.store_timestamp_ms >= begin_ms:
                    print_message(session, message, body)

    session.run(work)


def _begin_ms(where: str, clock: Clock) -> int:
    """Return what no message is older than: up to 5.1.0 brokers may find the one before a time."""
    return 0 if where in ("earliest", "latest") else parse_time("--from", where, clock)


@command(*CLUSTER, "utc")
def dump(
    session: Session,
    topic: TopicArgument,
    begin: StartOption = "earliest",
    end: EndOption = None,
    limit: LimitOption = None,
    tags: TagsOption = "*",
    queue: QueuesOption = None,
    body: BodyOption = Body.AUTO,
) -> None:
    """Print what is in a topic, oldest first, one message a line.

    Ends at the messages that were there when it began. Lines are as those of `reput message tail`.
    """
    clock = session.clock
    end_ms = session.time_ms("--to", end)

    async def work(client: "ClientConfig") -> None:
        from reput.client.core import subscription

        wanted = subscription.tags(topic, tags, 0).tag_set
        shown_count = 0
        async with reader_of(client) as reader:
            queues = choose_queues("--queue", await reader.queues(topic), queue)
            ranges = {}
            for one in queues:
                start = await begin_of(reader, one, begin, clock)
                ranges[one] = (start, await reader.end_offset(one))
            begin_ms = _begin_ms(begin, clock)
            async for message in in_order(reader, ranges):
                stored_ms = message.store_timestamp_ms
                if stored_ms < begin_ms or (end_ms is not None and stored_ms >= end_ms):
                    continue
                if not wanted or message.tags in wanted:
                    print_message(session, message, body)
                    shown_count += 1
                    if shown_count == limit:
                        return

    session.run(work)


def reader_of(client: "ClientConfig") -> "PullConsumer":
    """Return who reads without being in a group, and commits nothing."""
    from reput.client.pull_consumer import PullConsumer

    return PullConsumer(TOOLS_CONSUMER, client=client, auto_commit=False)


async def begin_of(reader: "PullConsumer", queue: "MessageQueue", where: str, clock: Clock) -> int:
    """Return the queue offset that ``earliest``, ``latest`` or a time means in a queue.

    Raises:
        InvalidOption: It is none of these.
    """
    if where == "earliest":
        return await reader.begin_offset(queue)
    if where == "latest":
        return await reader.end_offset(queue)
    try:
        timestamp_ms = parse_time("--from", where, clock)
    except InvalidOption as error:
        allowed = "earliest, latest, a time like 2026-11-21T03:03, or ms since 1970"
        raise InvalidOption("--from", where, allowed) from error
    return await reader.offset_at(queue, timestamp_ms)


async def received(
    take: Callable[[int, int], Awaitable[Sequence[M]]], count: int | None, idle_s: float | None
) -> AsyncIterator[M]:
    """Yield what a consumer gets: so many messages, until none comes for so long, or for ever.

    Args:
        take: Asks it: for how many messages at most, and how long to wait for the first, ms.
        count: So many; None: all.
        idle_s: The end when none came for so long; None: never.
    """
    seen_count = 0
    while count is None or seen_count < count:
        room = _POLL_COUNT if count is None else min(_POLL_COUNT, count - seen_count)
        wait_ms = _POLL_MS if idle_s is None else max(1, round(idle_s * 1000))
        messages = await take(room, wait_ms)
        if not messages and idle_s is not None:
            return
        for one in messages:
            seen_count += 1
            yield one


_POLL_COUNT = 32
_POLL_MS = 60_000


async def in_order(
    reader: "PullConsumer", ranges: "dict[MessageQueue, tuple[int, int]]"
) -> "AsyncIterator[ReceivedMessage]":
    """Yield the messages of ranges of queues in the order in which they were stored.

    Raises:
        CommandFailed: A queue brings nothing though it must have messages.
    """
    import heapq

    open_ranges = {queue: at for queue, at in ranges.items() if at[0] < at[1]}
    await reader.assign(open_ranges)
    for queue, (start, _) in open_ranges.items():
        reader.seek(queue, start)
    waiting: dict[MessageQueue, deque[ReceivedMessage]] = {one: deque() for one in open_ranges}
    heads: list[tuple[int, MessageQueue]] = []
    unfinished = set(open_ranges)
    missing = set(open_ranges)  # unfinished, and nothing of it waits
    while heads or missing:
        while missing:
            messages = await reader.poll(_POLL_COUNT, _SILENCE_S * 1000)
            if not messages:
                await _drop_expired(reader, open_ranges, missing, unfinished)
                continue
            queue = messages[0].queue
            stop = open_ranges[queue][1]
            wanted = [one for one in messages if one.queue_offset < stop]
            if wanted and not waiting[queue]:
                heapq.heappush(heads, (wanted[0].store_timestamp_ms, queue))
            waiting[queue].extend(wanted)
            missing.discard(queue)
            if messages[-1].queue_offset >= stop - 1:
                unfinished.discard(queue)
                reader.pause([queue])
            elif len(waiting[queue]) >= _AHEAD_COUNT:
                reader.pause([queue])
        if not heads:
            return
        _, queue = heapq.heappop(heads)
        yield waiting[queue].popleft()
        if waiting[queue]:
            heapq.heappush(heads, (waiting[queue][0].store_timestamp_ms, queue))
        elif queue in unfinished:
            missing.add(queue)
            reader.resume([queue])


async def _drop_expired(
    reader: "PullConsumer",
    ranges: "dict[MessageQueue, tuple[int, int]]",
    missing: "set[MessageQueue]",
    unfinished: "set[MessageQueue]",
) -> None:
    """Give up queues whose messages were deleted meanwhile. Raises ``CommandFailed``."""
    gone = {one for one in missing if await reader.begin_offset(one) >= ranges[one][1]}
    if not gone:
        silent = " ".join(sorted(map(queue_text, missing)))
        raise CommandFailed(f"queues {silent} brought nothing for {_SILENCE_S} s")
    missing -= gone
    unfinished -= gone


COMMANDS = {
    "get": get,
    "by-key": by_key,
    "by-unique-key": by_unique_key,
    "trace": trace,
    "recall": recall,
    "tail": tail,
    "dump": dump,
}
