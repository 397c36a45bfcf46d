"""``reput message``: find messages, follow a topic, dump its contents."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from reput.cli import message_view
from reput.cli.connecting import choose_queues, queue_text
from reput.cli.message_view import Body
from reput.cli.options import (
    CLUSTER,
    CONNECTION,
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
from reput.cli.printing import Clock, Document, View, parse_time, print_json_line, print_note
from reput.cli.trace import trace
from reput.errors import InvalidOption, NotInStore
from reput.format.names import TOOLS_CONSUMER

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import ReceivedMessage
    from reput.client.pull_consumer import PullConsumer
    from reput.client.queue_ranges import Gap, RangeReader
    from reput.format.bodies import MessageQueue

M = TypeVar("M", bound="ReceivedMessage")

_NO_CLOCK = Clock()
_SILENCE_S = 30
"""Time for which a pull is repeated while the broker does not answer, or makes no progress."""


def message_document(message: "ReceivedMessage", body: Body) -> Document:
    """Return the document of a message: as of `reput store`, with the name of its broker."""
    return {"broker_name": message.broker_name, **message_view.document(message.stored, body)}


def print_message(session: Session, message: "ReceivedMessage", body: Body) -> None:
    """Print a message on one line, and flush."""
    print_line(session, message, message_document(message, body))


def print_line(
    session: Session, message: "ReceivedMessage", document: Document, *columns: str
) -> None:
    """Print the document of a message on one line, with more columns after its queue offset."""
    if session.as_json:
        print_json_line(document)
    else:
        position = f"{queue_text(message.queue)}:{message.queue_offset}"
        print(message_view.line(document, session.clock, position, *columns), flush=True)


def _view(messages: "Sequence[ReceivedMessage]", body: Body) -> View:
    return message_view.view([message_document(message, body) for message in messages])


# --- recalling ----------------------------------------------------------------------------------


@command(*CONNECTION)
def recall(
    session: Session,
    topic: TopicArgument,
    handle: Annotated[
        str, typer.Argument(metavar="HANDLE", help="The handle that its producer got.")
    ],
    group: ProducerGroupOption = "reput-cli",
) -> None:
    """Recall a pending delayed message, so that it is not delivered.

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
            metavar="ID", help="An offset id; with --topic also the unique key its producer got."
        ),
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The topic to search for a unique key.")
    ] = None,
    body: BodyOption = Body.AUTO,
) -> View:
    """Show a message in full, by its id; show each message of a batch that is stored as one record.

    An offset id contains the address and the physical offset of the message. A unique key, the id
    that the producer got, is looked up in the index of the topic's brokers.
    """

    async def work(admin: "Admin") -> "list[ReceivedMessage]":
        if topic is not None:
            messages = await admin.messages_by_unique_key(topic, message_id)
            if messages:
                return messages
        await _check_offset_id(admin, message_id)
        return await admin.messages_by_offset_id(message_id)

    messages = session.ask(work)
    if not messages:
        raise NotInStore(f"no message has id {message_id}; it may be deleted")
    return _view(messages, body)


async def _check_offset_id(admin: "Admin", message_id: str) -> None:
    """Check that an id has the address of a broker: a unique key decodes to any address."""
    from reput.format import message_id as ids

    allowed = "an offset id of this cluster; for a unique key, give --topic"
    try:
        address = str(ids.decode_offset_id(message_id).store_host)
    except ValueError as error:
        raise InvalidOption("ID", message_id, allowed) from error
    info = await admin.clusters()
    addresses = {
        broker_address
        for broker in info.broker_addr_table.values()
        for broker_address in broker.broker_addrs.values()
    }
    if address not in addresses:
        raise InvalidOption("ID", f"{message_id} (at {address}, which is no broker)", allowed)


@command(*CLUSTER, "utc")
def by_key(
    session: Session,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One of the message's keys.")],
    begin: BeginOption = None,
    end: EndOption = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number from each broker: the newest; all by default."),
    ] = None,
    body: BodyOption = Body.AUTO,
) -> View:
    """Show the messages of a topic that have a key, oldest first.

    All of them, although a broker returns 64: its index is searched by windows of time.
    """
    bounds = {}
    if (begin_ms := session.time_ms("--from", begin)) is not None:
        bounds["begin_ms"] = begin_ms
    if (end_ms := session.time_ms("--to", end)) is not None:
        bounds["end_ms"] = end_ms - 1
    messages = session.ask(
        lambda admin: admin.messages_by_key(topic, key, count_max=limit, **bounds)
    )
    if not messages and not messages.is_truncated:
        raise NotInStore(f"no message of topic {topic} has key {key}")
    documents = [message_document(message, body) for message in messages]
    if messages.is_truncated:
        print_note(
            f"{len(messages)} messages; there may be more in a second, of which brokers return 64: "
            "`reput message dump` reads all messages"
            if limit is None
            else f"the newest {len(messages)} messages; there may be more: --to shows older ones, "
            "and a larger --limit, or none, more of them"
        )
    document = {"is_truncated": messages.is_truncated, "messages": documents}
    return View(document, *message_view.view(documents).blocks)


@command(*CLUSTER, "utc")
def by_unique_key(
    session: Session,
    topic: TopicArgument,
    unique_key: Annotated[
        str, typer.Argument(metavar="ID", help="The unique key, which its producer got as the id.")
    ],
    body: BodyOption = Body.AUTO,
) -> View:
    """Show the message of a topic with a unique key; of a batch, each message."""
    messages = session.ask(lambda admin: admin.messages_by_unique_key(topic, unique_key))
    if not messages:
        raise NotInStore(f"no message of topic {topic} has unique key {unique_key}")
    return _view(messages, body)


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

    No group is involved, so consumers are not affected. One message a line: time, queue and offset,
    tags, keys, id, body; with --json one document a line.
    """
    clock = session.clock

    async def work(client: "ClientConfig") -> None:
        async with reader_of(client) as reader:
            queues = choose_queues("--queue", await reader.queues(topic), queue)
            await reader.assign(queues, tags)
            for assigned in queues:
                reader.seek(assigned, await begin_of(reader, assigned, begin, clock))
            begin_ms = _begin_ms(begin, clock)
            async for message in received(reader.poll, count, idle):
                if message.store_timestamp_ms >= begin_ms:
                    print_message(session, message, body)

    session.run(work)


def _begin_ms(where: str, clock: Clock) -> int:
    """Return the lower bound of store times: brokers up to 5.1.0 may find an older message."""
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
    """Print the messages of a topic, oldest first, one a line.

    Ends at the messages that were last when it started. Lines are as of `reput message tail`.
    """
    clock = session.clock
    end_ms = session.time_ms("--to", end)

    async def work(client: "ClientConfig") -> None:
        from reput.client.core import subscription

        tag_set = subscription.tags(topic, tags, 0).tag_set
        shown_count = 0
        begin_ms = _begin_ms(begin, clock)
        async with range_reader(client) as reader:
            queues = choose_queues("--queue", await reader.queues(topic), queue)
            async with contextlib.aclosing(in_order(reader, queues, begin, clock)) as present:
                async for message in present:
                    stored_ms = message.store_timestamp_ms
                    if stored_ms < begin_ms or (end_ms is not None and stored_ms >= end_ms):
                        continue
                    if not tag_set or message.tags in tag_set:
                        print_message(session, message, body)
                        shown_count += 1
                        if shown_count == limit:
                            return

    session.run(work)


def reader_of(client: "ClientConfig") -> "PullConsumer":
    """Return a consumer that is in no group, and commits no offsets."""
    from reput.client.pull_consumer import PullConsumer

    return PullConsumer(TOOLS_CONSUMER, client=client, auto_commit=False)


@contextlib.asynccontextmanager
async def range_reader(client: "ClientConfig") -> "AsyncIterator[RangeReader]":
    """Open a reader of ranges of queues, which is in no group."""
    from reput.client.admin import Admin
    from reput.client.queue_ranges import RangeReader

    async with Admin(client=client) as admin:
        yield RangeReader(admin.calls.instance, patience_ms=_SILENCE_S * 1000)


async def begin_of(
    reader: "PullConsumer | RangeReader", queue: "MessageQueue", where: str, clock: Clock
) -> int:
    """Return the queue offset of ``earliest``, ``latest`` or a time in a queue.

    Raises:
        InvalidOption: ``where`` is none of these.
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
    poll: Callable[[int, int], Awaitable[Sequence[M]]], count: int | None, idle_s: float | None
) -> AsyncIterator[M]:
    """Yield the messages of a consumer.

    Args:
        poll: Returns messages, given their maximum number and a timeout in ms.
        count: Number of messages after which to end; None: no limit.
        idle_s: Time without messages after which to end; None: no limit.
    """
    seen_count = 0
    while count is None or seen_count < count:
        room = _POLL_COUNT if count is None else min(_POLL_COUNT, count - seen_count)
        wait_ms = _POLL_MS if idle_s is None else max(1, round(idle_s * 1000))
        messages = await poll(room, wait_ms)
        if not messages and idle_s is not None:
            return
        for message in messages:
            seen_count += 1
            yield message


_POLL_COUNT = 32
_POLL_MS = 60_000


async def in_order(
    reader: "RangeReader",
    queues: "Sequence[MessageQueue]",
    begin: str = "earliest",
    clock: Clock = _NO_CLOCK,
) -> "AsyncGenerator[ReceivedMessage, None]":
    """Yield the present messages of queues in the order in which they were stored.

    Args:
        reader: Reads the queues.
        queues: The queues.
        begin: ``earliest``, ``latest`` or a time.
        clock: The format of times.

    Raises:
        InvalidOption: ``begin`` is none of these.
        RemotingError: A broker does not answer for ``_SILENCE_S``, or refuses.
    """
    ranges = {
        queue: (await begin_of(reader, queue, begin, clock), await reader.end_offset(queue))
        for queue in queues
    }
    async with contextlib.aclosing(reader.in_order(ranges, _note_gap)) as present:
        async for message in present:
            yield message


def _note_gap(queue: "MessageQueue", gap: "Gap") -> None:
    print_note(f"queue {queue_text(queue)}: {gap}")


COMMANDS = {
    "get": get,
    "by-key": by_key,
    "by-unique-key": by_unique_key,
    "trace": trace,
    "recall": recall,
    "tail": tail,
    "dump": dump,
}
