"""``reput producer`` and ``reput consumer``: who is there, and being one."""

from collections.abc import AsyncIterator
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
    ask,
    choose_queues,
    command_group,
    masters,
    parse_pairs,
    queue_text,
    run,
    version_text,
)
from reput.cli.message_view import Body
from reput.errors import InvalidOption, RemotingError, ReputError

if TYPE_CHECKING:
    from reput.cli.printing import Clock
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig, ConsumerConfig
    from reput.client.message import Message, SendResult
    from reput.client.popping import PoppedMessage
    from reput.client.producer import Producer
    from reput.format.bodies import ConsumerRunningInfo, MessageQueue

Document = dict[str, Any]

PRODUCER_GROUP = "reput-cli"
_READ_BYTES = 64 * 1024
_WINDOW_COUNT = 64


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command_group(
        app,
        "producer",
        "Producers: who is connected, and sending messages.",
        {"list": list_producers, "send": send},
    )
    command_group(
        app,
        "consumer",
        "Consumers: who is connected, what they are doing, and consuming messages.",
        {"list": list_consumers, "show": show, "consume": consume},
    )


# --- producers ----------------------------------------------------------------------------------


def list_producers(
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only this group; needs --topic.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="A topic that the group sends to.")
    ] = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """List the producers that are connected to brokers.

    Brokers before 4.9.3 tell of one group at a time only: name it, and a topic it sends to.
    """
    from reput.cli import printing

    if (group is None) != (topic is None):
        raise typer.BadParameter("give both of --group and --topic, or none")
    found = ask(namesrv, timeout, lambda admin: _producers(admin, group, topic))
    if json:
        printing.print_json({"producers": found})
        return
    clock = printing.Clock(utc)
    printing.print_table(
        ["group", "client", "address", "language", "version", "broker", "@last seen"],
        [
            [
                one["group"],
                one["client_id"],
                one["address"],
                one["language"],
                one["version"],
                one["broker_name"],
                clock.text(one["last_seen_timestamp"]),
            ]
            for one in found
        ],
    )


async def _producers(admin: "Admin", group: str | None, topic: str | None) -> list[Document]:
    if group is not None and topic is not None:
        return [
            {
                "group": group,
                "client_id": one.client_id,
                "address": one.client_addr,
                "language": one.language,
                "version": version_text(one.version),
                "broker_name": None,
                "last_seen_timestamp": None,
            }
            for one in await admin.producer_connection(group, topic)
        ]
    known = await admin.clusters()
    names = [name for one in sorted(known.cluster_addr_table) for name in masters(known, one, None)]
    return [
        {
            "group": group,
            "client_id": one.client_id,
            "address": one.remote_ip,
            "language": one.language,
            "version": version_text(one.version),
            "broker_name": name,
            "last_seen_timestamp": one.last_update_timestamp,
        }
        for name in names
        for group, members in (await admin.producers(name)).items()
        for one in members
    ]


# --- sending ------------------------------------------------------------------------------------


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    body: Annotated[
        str | None,
        typer.Argument(metavar="[BODY]", help="The message; without, each line of stdin is one."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Send what is in a file, as one message."),
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
        typer.Option(
            min=1, metavar="LEVEL", help="Deliver it later: 1 is 1 s, 5 is 1 min, 18 is 2 h."
        ),
    ] = None,
    after: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="SECONDS", help="Deliver it after so long; brokers from 5.0 on."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Deliver it at a time; brokers from 5.0 on."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="BROKER:ID", help="To this queue; lines keep their order."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Send it so many times.")] = 1,
    group: Annotated[
        str, typer.Option(metavar="GROUP", help="The producer group.")
    ] = PRODUCER_GROUP,
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Wait for no answer: it may get lost.")
    ] = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Send messages: an argument, a file, or the lines of stdin.

    Prints one line for each that the broker has acknowledged: status, id, queue and queue offset,
    and of one that waits for its time the handle by which `reput message recall` takes it back;
    with --json a document a line. Empty lines are left out.
    """
    from reput.cli import printing

    if body is not None and file is not None:
        raise typer.BadParameter("give BODY or --file, not both")
    whole = file.read_bytes() if file is not None else None if body is None else _encoded(body)
    if whole is None and repeat > 1:
        raise typer.BadParameter("--repeat needs BODY or --file")
    properties = parse_pairs("--property", prop)
    if sum(one is not None for one in (delay, after, at)) > 1:
        raise typer.BadParameter("give one of --delay, --after and --at")
    deliver_at_ms = printing.parse_time("--at", at, printing.Clock(utc)) if at else 0

    async def work(client: "ClientConfig") -> None:
        from reput.client.config import ProducerConfig
        from reput.client.message import Message
        from reput.client.producer import Producer

        config = ProducerConfig(send_timeout_ms=client.request_timeout_ms)
        async with Producer(group, client=client, config=config) as producer:
            chosen = None
            if queue is not None:
                (chosen,) = choose_queues("--queue", await producer.queues(topic), [queue])
            bodies = _lines_of_stdin() if whole is None else _repeated(whole, repeat)
            await _send_all(
                producer,
                (
                    Message(
                        topic,
                        one,
                        tags,
                        key or (),
                        properties,
                        delay_level=delay or 0,
                        delay_ms=round((after or 0) * 1000),
                        deliver_at_ms=deliver_at_ms,
                    )
                    async for one in bodies
                ),
                chosen,
                is_oneway=one_way,
                as_json=json,
            )

    run(namesrv, timeout, work)


def _encoded(text: str) -> bytes:
    """Return an argument as the shell gave it, UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


async def _repeated(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _lines_of_stdin() -> AsyncIterator[bytes]:
    """Yield the lines of stdin without their ends, as they come; empty ones are left out."""
    import sys

    from reput.cli import printing

    empty_count = 0
    async for line in _lines(sys.stdin.fileno()):
        line = line.rstrip(b"\r\n")
        if line:
            yield line
        else:
            empty_count += 1
    if empty_count:
        printing.print_note(f"{empty_count} empty lines left out: a message needs a body")


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        await _until_readable(descriptor)
        data = _read(descriptor)
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line
        if not data:
            if rest:
                yield rest
            return


def _read(descriptor: int) -> bytes:
    import os

    return os.read(descriptor, _READ_BYTES)


async def _until_readable(descriptor: int) -> None:
    """Wait until reading does not block; of a regular file it never does."""
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
    """Send messages, many at a time unless they go to one queue; print what is acknowledged.

    After a failure no more are taken; those on the way are waited for.
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
    import sys

    from reput.cli import printing

    if result is None:
        return
    if as_json:
        printing.print_json_line(
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
        place = f"{queue_text(result.queue)}:{result.queue_offset}"
        handle = f"\t{result.recall_handle}" if result.recall_handle else ""
        print(f"{result.status}\t{result.message_id}\t{place}{handle}")
    sys.stdout.flush()


# --- consumers ----------------------------------------------------------------------------------


def list_consumers(
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """List the consumer groups that have members, with what they read."""
    from reput.cli import printing

    found = ask(namesrv, timeout, _consumers)
    if json:
        printing.print_json({"groups": found})
        return
    printing.print_table(
        ["group", "#members", "consumes", "model", "topics"],
        [
            [
                one["group"],
                one["member_count"],
                one["consume_type"],
                one["message_model"],
                " ".join(one["topics"]),
            ]
            for one in found
        ],
    )


async def _consumers(admin: "Admin") -> list[Document]:
    found = []
    for group in await admin.groups():
        connection = await admin.consumer_connection(group)
        if connection is not None and connection.connection_set:
            found.append(
                {
                    "group": group,
                    "member_count": len(connection.connection_set),
                    "consume_type": connection.consume_type,
                    "message_model": connection.message_model,
                    "topics": sorted(connection.subscription_table),
                }
            )
    return found


def show(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")],
    client: Annotated[
        str | None, typer.Option(metavar="CLIENT_ID", help="Only this member.")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="With the stacks of its threads.")
    ] = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Ask the members of a group what they are doing: queues, offsets, rates.

    A member that does not answer is shown with the reason, and makes the exit code 1.
    """
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: _members(admin, group, client, stacks))
    if json:
        printing.print_json({"group": group, "members": found})
    else:
        for number, one in enumerate(found):
            if number:
                print()
            _print_member(one, printing.Clock(utc))
        if not found:
            printing.print_note(f"group {group} has no members")
    if any(one["problem"] for one in found):
        raise typer.Exit(1)


async def _members(
    admin: "Admin", group: str, client: str | None, has_stacks: bool
) -> list[Document]:
    connection = await admin.consumer_connection(group)
    ids = [one.client_id for one in connection.connection_set] if connection else []
    if client is not None and client not in ids:
        raise InvalidOption("--client", client, ", ".join(ids) or "none: the group has no members")
    found: list[Document] = []
    for client_id in ids if client is None else [client]:
        try:
            running = await admin.consumer_running_info(group, client_id, has_stacks=has_stacks)
        except RemotingError as error:
            found.append({"client_id": client_id, "problem": str(error)})
        else:
            found.append({"client_id": client_id, "problem": None, **_running(running)})
    return found


def _running(running: "ConsumerRunningInfo") -> Document:
    return {
        "properties": dict(sorted(running.properties.items())),
        "queues": [
            {
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "consumer_offset": one.commit_offset,
                "cached_count": one.cached_msg_count,
                "is_locked": one.locked,
                "last_pull_timestamp": one.last_pull_timestamp or None,
                "last_consume_timestamp": one.last_consume_timestamp or None,
            }
            for queue, one in sorted(running.mq_table.items())
        ],
        "popped": [
            {
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id if queue.queue_id >= 0 else None,
                "held_count": one.wait_ack_count,
                "last_pop_timestamp": one.last_pop_timestamp or None,
            }
            for queue, one in sorted(running.mq_pop_table.items())
        ],
        "topics": [
            {
                "topic": topic,
                "pull_tps": one.pull_tps,
                "consumed_tps": one.consume_ok_tps,
                "failed_tps": one.consume_failed_tps,
                "consume_ms": one.consume_rt,
            }
            for topic, one in sorted(running.status_table.items())
        ],
        "stacks": running.jstack,
    }


def _print_member(one: Document, clock: "Clock") -> None:
    from reput.cli import printing

    if one["problem"] is not None:
        printing.print_fields({"client": one["client_id"], "problem": one["problem"]})
        return
    properties = one["properties"]
    printing.print_fields(
        {
            "client": one["client_id"],
            "version": properties.get("PROP_CLIENT_VERSION"),
            "consumes": properties.get("PROP_CONSUME_TYPE"),
            "since": clock.text(_timestamp(properties.get("PROP_CONSUMER_START_TIMESTAMP"))),
        }
    )
    print()
    printing.print_table(
        ["topic", "broker", "#queue", "#offset", "#waiting", "locked", "@pulled", "@consumed"],
        [
            [
                queue["topic"],
                queue["broker_name"],
                queue["queue_id"],
                queue["consumer_offset"],
                queue["cached_count"],
                queue["is_locked"],
                clock.text(queue["last_pull_timestamp"]),
                clock.text(queue["last_consume_timestamp"]),
            ]
            for queue in one["queues"]
        ],
    )
    if one["popped"]:
        print()
        printing.print_table(
            ["topic", "broker", "popped from", "#held", "@popped"],
            [
                [
                    popped["topic"],
                    popped["broker_name"],
                    "any queue" if popped["queue_id"] is None else popped["queue_id"],
                    popped["held_count"],
                    clock.text(popped["last_pop_timestamp"]),
                ]
                for popped in one["popped"]
            ],
        )
    if one["topics"]:
        print()
        printing.print_table(
            ["topic", "#pulled/s", "#consumed/s", "#failed/s", "#ms each"],
            [
                [
                    topic["topic"],
                    f"{topic['pull_tps']:.1f}",
                    f"{topic['consumed_tps']:.1f}",
                    f"{topic['failed_tps']:.1f}",
                    f"{topic['consume_ms']:.1f}",
                ]
                for topic in one["topics"]
            ],
        )
    if one["stacks"]:
        print()
        print(printing.printable_lines(one["stacks"]))


def _timestamp(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# --- consuming ----------------------------------------------------------------------------------


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to consume.")],
    group: Annotated[
        str,
        typer.Option(metavar="GROUP", help="The consumer group: messages count as consumed."),
    ],
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="earliest, latest or a time, where it never was."
        ),
    ] = "latest",
    count: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    idle: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="End when nothing came for so long."),
    ] = None,
    tags: messages.TagsOption = "*",
    sql: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="SQL92 over properties, not --tags.")
    ] = None,
    pop: Annotated[
        bool, typer.Option("--pop", help="Pop, from whichever queue; of brokers from 5.0 on.")
    ] = False,
    body: messages.BodyOption = Body.AUTO,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Consume messages as a member of a group, and print them, until Ctrl-C.

    The group shares the queues among its members, and goes on where it was: `reput message tail`
    looks without consuming. Lines are as there. With --pop nobody owns a queue, and each message
    is acknowledged when it is printed.
    """
    from reput.cli import printing

    clock = printing.Clock(utc)
    if pop and begin not in ("earliest", "latest"):
        raise InvalidOption("--from", begin, "earliest or latest, with --pop")
    config = consumer_config(begin, clock)

    async def work(client: "ClientConfig") -> None:
        from reput.client.pull_consumer import PullConsumer

        if pop:
            async for one in _popped(client, group, config, topic, tags, sql, count, idle):
                messages.print_message(one, body, clock, as_json=json)
            return
        async with PullConsumer(group, client=client, config=config) as consumer:
            await consumer.queues(topic)  # A topic that is not there is an error, not a long wait.
            if sql is not None:
                await consumer.subscribe_sql(topic, sql)
            else:
                await consumer.subscribe(topic, tags)
            async for message in messages.received(consumer.poll, count, idle):
                messages.print_message(message, body, clock, as_json=json)

    run(namesrv, timeout, work)


async def _popped(
    client: "ClientConfig",
    group: str,
    config: "ConsumerConfig",
    topic: str,
    tags: str,
    sql: str | None,
    count: int | None,
    idle_s: float | None,
) -> "AsyncIterator[PoppedMessage]":
    """Yield popped messages; one is acknowledged when the next is asked for."""
    from reput.client.admin import Admin
    from reput.client.pop_consumer import PopConsumer

    async with Admin(client=client) as admin:
        await admin.topic_route(topic)  # A topic that is not there is an error, not a long wait.
    async with PopConsumer(group, client=client, config=config) as consumer:
        if sql is not None:
            await consumer.subscribe_sql(topic, sql)
        else:
            await consumer.subscribe(topic, tags)
        async for message in messages.received(consumer.pop, count, idle_s):
            yield message
            await consumer.ack(message)


def consumer_config(begin: str, clock: "Clock") -> "ConsumerConfig":
    """Return how a group begins in queues where it never was.

    Raises:
        InvalidOption: It is neither ``earliest``, ``latest`` nor a time.
    """
    from reput.cli import printing
    from reput.client.config import ConsumeFromWhere, ConsumerConfig

    if begin == "earliest":
        return ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    if begin == "latest":
        return ConsumerConfig(consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    return ConsumerConfig(
        consume_from_where=ConsumeFromWhere.TIMESTAMP,
        consume_timestamp_ms=printing.parse_time("--from", begin, clock),
    )
