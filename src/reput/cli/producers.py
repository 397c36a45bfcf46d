"""``reput producer``: list connected producers, send messages."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.connecting import all_masters, choose_queues, queue_text, version_text
from reput.cli.groups import member
from reput.cli.options import CLUSTER, ProducerGroupOption, Session, command, parse_pairs
from reput.cli.printing import Document, Table, View, print_json_line, print_note
from reput.errors import ReputError

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import Message, SendResult
    from reput.client.producer import Producer
    from reput.format.bodies import MessageQueue

PRODUCER_GROUP = "reput-cli"
_READ_BYTES = 64 * 1024
_WINDOW_COUNT = 64


@command(*CLUSTER, "utc")
def list_producers(
    session: Session,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only this group; needs --topic.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="A topic that the group sends to.")
    ] = None,
) -> View:
    """List the producers that are connected to brokers.

    Brokers before 4.9.3 list one group at a time: name the group, and a topic that it sends to.
    """
    if (group is None) != (topic is None):
        raise typer.BadParameter("give both of --group and --topic, or none")
    producers = session.ask(lambda admin: _producers(admin, group, topic))
    return View(
        {"producers": producers},
        Table(
            "group client=client_id address language version broker=broker_name "
            "@last_seen=last_seen_timestamp",
            producers,
        ),
    )


async def _producers(admin: "Admin", group: str | None, topic: str | None) -> list[Document]:
    if group is not None and topic is not None:
        return [
            {"group": group, **member(client), "broker_name": None, "last_seen_timestamp": None}
            for client in await admin.producer_connection(group, topic)
        ]
    return [
        {
            "group": group,
            "client_id": producer.client_id,
            "address": producer.remote_ip,
            "language": producer.language,
            "version": version_text(producer.version),
            "broker_name": name,
            "last_seen_timestamp": producer.last_update_timestamp,
        }
        for name in all_masters(await admin.clusters())
        for group, producers in (await admin.producers(name)).items()
        for producer in producers
    ]


# --- sending ------------------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def send(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to send to.")],
    body: Annotated[
        str | None,
        typer.Argument(metavar="[BODY]", help="The body; without it, each line of stdin is one."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Send the contents of a file, as one message."),
    ] = None,
    tags: Annotated[str | None, typer.Option(metavar="TAG", help="Its tag.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", metavar="KEY", help="A key to find it by; repeatable."),
    ] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; repeatable."),
    ] = None,
    delay: Annotated[
        int | None,
        typer.Option(min=1, metavar="LEVEL", help="Delay level: 1 is 1 s, 5 is 1 min, 18 is 2 h."),
    ] = None,
    after: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="SECONDS", help="Deliver it after this time; brokers from 5.0 on."
        ),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Deliver it at this time; brokers from 5.0 on."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="BROKER:ID", help="Send to this queue; lines keep their order."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of times to send it.")] = 1,
    group: ProducerGroupOption = PRODUCER_GROUP,
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Await no reply: the message may get lost.")
    ] = False,
) -> None:
    """Send messages: an argument, a file, or the lines of stdin.

    Prints one line for each message that the broker acknowledges: status, id, queue and queue
    offset; for a delayed message also the handle with which `reput message recall` recalls it. With
    --json one document a line. Empty lines are skipped.
    """
    if body is not None and file is not None:
        raise typer.BadParameter("give BODY or --file, not both")
    single = file.read_bytes() if file is not None else None if body is None else _encoded(body)
    if single is None and repeat > 1:
        raise typer.BadParameter("--repeat needs BODY or --file")
    properties = parse_pairs("--property", prop)
    if sum(option is not None for option in (delay, after, deliver_at)) > 1:
        raise typer.BadParameter("give one of --delay, --after and --at")
    deliver_at_ms = session.time_ms("--at", deliver_at or None) or 0

    async def work(client: "ClientConfig") -> None:
        from reput.client.config import ProducerConfig
        from reput.client.message import Message
        from reput.client.producer import Producer

        config = ProducerConfig(send_timeout_ms=client.request_timeout_ms)
        async with Producer(group, client=client, config=config) as producer:
            chosen = None
            if queue is not None:
                (chosen,) = choose_queues("--queue", await producer.queues(topic), [queue])
            bodies = _lines_of_stdin() if single is None else _repeated(single, repeat)
            await _send_all(
                producer,
                (
                    Message(
                        topic,
                        content,
                        tags,
                        key or (),
                        properties,
                        delay_level=delay or 0,
                        delay_ms=round((after or 0) * 1000),
                        deliver_at_ms=deliver_at_ms,
                    )
                    async for content in bodies
                ),
                chosen,
                is_oneway=one_way,
                as_json=session.as_json,
            )

    session.run(work)


def _encoded(text: str) -> bytes:
    """Return the bytes of an argument as the shell passed them, UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


async def _repeated(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _lines_of_stdin() -> AsyncIterator[bytes]:
    """Yield the lines of stdin without their ends, as they come; empty ones are skipped."""
    import sys

    empty_count = 0
    async for line in _lines(sys.stdin.fileno()):
        line = line.rstrip(b"\r\n")
        if line:
            yield line
        else:
            empty_count += 1
    if empty_count:
        print_note(f"{empty_count} empty lines skipped: a message needs a body")


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        await _until_readable(descriptor)
        data = _read(descriptor)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
        if not data:
            if rest:
                yield rest
            return


def _read(descriptor: int) -> bytes:
    import os

    return os.read(descriptor, _READ_BYTES)


async def _until_readable(descriptor: int) -> None:
    """Wait until reading does not block; reading a regular file never does."""
    import asyncio

    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, is_readable.set)
    except PermissionError:
        return
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def _send_all(
    producer: "Producer",
    source: "AsyncIterator[Message]",
    queue: "MessageQueue | None",
    *,
    is_oneway: bool,
    as_json: bool,
) -> None:
    """Send messages, many at a time unless they go to one queue; print the acknowledged ones.

    After a failure no more are sent; replies to those in flight are awaited.
    """
    import asyncio

    window: asyncio.Queue[asyncio.Task[SendResult | None] | None] = asyncio.Queue(_WINDOW_COUNT)

    async def feed() -> None:
        try:
            async for message in source:
                sending = asyncio.create_task(_send(producer, message, queue, is_oneway))
                await window.put(sending)
                if queue is not None:
                    await asyncio.wait([sending])
        finally:
            await window.put(None)

    feeding = asyncio.create_task(feed())
    failure: ReputError | None = None
    try:
        while (sending := await window.get()) is not None:
            try:
                result = await sending
            except ReputError as error:
                failure = failure or error
                feeding.cancel()
            else:
                _print_result(result, as_json=as_json)
    finally:
        feeding.cancel()
    if failure is not None:
        raise failure
    await feeding


async def _send(
    producer: "Producer", message: "Message", queue: "MessageQueue | None", is_oneway: bool
) -> "SendResult | None":
    if is_oneway:
        await producer.send_oneway(message, queue=queue)
        return None
    return await producer.send(message, queue=queue)


def _print_result(result: "SendResult | None", *, as_json: bool) -> None:
    if result is None:
        return
    if as_json:
        print_json_line(
            {
                "status": str(result.status),
                "message_id": result.message_id,
                "offset_message_id": result.offset_message_id,
                "broker_name": result.queue.broker_name,
                "queue_id": result.queue.queue_id,
                "queue_offset": result.queue_offset,
                "recall_handle": result.recall_handle,
            }
        )
    else:
        position = f"{queue_text(result.queue)}:{result.queue_offset}"
        handle = f"\t{result.recall_handle}" if result.recall_handle else ""
        print(f"{result.status}\t{result.message_id}\t{position}{handle}", flush=True)


COMMANDS = {"list": list_producers, "send": send}
