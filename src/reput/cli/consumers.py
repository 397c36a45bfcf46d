"""``reput consumer``: which consumers are connected, what they do, and consuming messages."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import messages
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.message_view import Body
from reput.cli.options import (
    CLUSTER,
    BodyOption,
    CountOption,
    GroupArgument,
    IdleOption,
    Session,
    TagsOption,
    command,
)
from reput.cli.printing import (
    Block,
    Clock,
    Document,
    Fields,
    Table,
    View,
    parse_time,
    print_note,
    printable_lines,
)
from reput.errors import InvalidOption, RemotingError

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig, ConsumerConfig
    from reput.client.popping import PoppedMessage
    from reput.format.bodies import ConsumerRunningInfo


# --- consumers ----------------------------------------------------------------------------------


@command(*CLUSTER)
def list_consumers(
    session: Session,
) -> View:
    """List the consumer groups that have members, with what they read."""
    groups = session.ask(_consumers)
    columns = "group #members=member_count consumes=consume_type model=message_model topics"
    return View({"groups": groups}, Table(columns, groups))


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


@command(*CLUSTER, "utc")
def show(
    session: Session,
    group: GroupArgument,
    client: Annotated[
        str | None, typer.Option(metavar="CLIENT_ID", help="Only this member.")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="With the stacks of its threads.")
    ] = False,
) -> View:
    """Ask the members of a group what they are doing: queues, offsets, rates.

    A member that does not answer is shown with the reason, and makes the exit code 1.
    """
    members = session.ask(lambda admin: _members(admin, group, client, stacks))
    if not members and not session.as_json:
        print_note(f"group {group} has no members")
    return View(
        {"group": group, "members": members},
        *(block for one in members for block in _member_blocks(one)),
        exit_code=EXIT_DAMAGE if any(one["problem"] for one in members) else 0,
    )


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


def _member_blocks(one: Document) -> list[Block]:
    if one["problem"] is not None:
        return [Fields.of("client=client_id problem", one)]
    properties = one["properties"]
    return [
        Fields(
            {
                "client": one["client_id"],
                "version": properties.get("PROP_CLIENT_VERSION"),
                "consumes": properties.get("PROP_CONSUME_TYPE"),
                "@since": _timestamp(properties.get("PROP_CONSUMER_START_TIMESTAMP")),
            }
        ),
        Table(
            "topic broker=broker_name #queue=queue_id #offset=consumer_offset "
            "#waiting=cached_count locked=is_locked @pulled=last_pull_timestamp "
            "@consumed=last_consume_timestamp",
            one["queues"],
        ),
        Table(
            "topic broker=broker_name popped_from #held=held_count @popped=last_pop_timestamp",
            one["popped"],
            computed={
                "popped_from": lambda popped: (
                    "any queue" if popped["queue_id"] is None else popped["queue_id"]
                )
            },
            is_optional=True,
        ),
        Table(
            "topic #pulled/s=pull_tps:.1f #consumed/s=consumed_tps:.1f #failed/s=failed_tps:.1f "
            "#ms_each=consume_ms:.1f",
            one["topics"],
            is_optional=True,
        ),
        printable_lines(one["stacks"]) if one["stacks"] else None,
    ]


def _timestamp(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# --- consuming ----------------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def consume(
    session: Session,
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
    count: CountOption = None,
    idle: IdleOption = None,
    tags: TagsOption = "*",
    sql: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="SQL92 over properties, not --tags.")
    ] = None,
    pop: Annotated[
        bool, typer.Option("--pop", help="Pop, from whichever queue; of brokers from 5.0 on.")
    ] = False,
    body: BodyOption = Body.AUTO,
) -> None:
    """Consume messages as a member of a group, and print them, until Ctrl-C.

    The group shares the queues among its members, and goes on where it was: `reput message tail`
    looks without consuming. Lines are as there. With --pop nobody owns a queue, and each message
    is acknowledged when it is printed.
    """
    if pop and begin not in ("earliest", "latest"):
        raise InvalidOption("--from", begin, "earliest or latest, with --pop")
    config = consumer_config(begin, session.clock)

    async def work(client: "ClientConfig") -> None:
        from reput.client.pull_consumer import PullConsumer

        if pop:
            async for one in _popped(client, group, config, topic, tags, sql, count, idle):
                messages.print_message(session, one, body)
            return
        async with PullConsumer(group, client=client, config=config) as consumer:
            await consumer.queues(topic)  # A topic that is not there is an error, not a long wait.
            if sql is not None:
                await consumer.subscribe_sql(topic, sql)
            else:
                await consumer.subscribe(topic, tags)
            async for message in messages.received(consumer.poll, count, idle):
                messages.print_message(session, message, body)

    session.run(work)


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


def consumer_config(begin: str, clock: Clock) -> "ConsumerConfig":
    """Return how a group begins in queues where it never was.

    Raises:
        InvalidOption: It is neither ``earliest``, ``latest`` nor a time.
    """
    from reput.client.config import ConsumeFromWhere, ConsumerConfig

    if begin == "earliest":
        return ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    if begin == "latest":
        return ConsumerConfig(consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    return ConsumerConfig(
        consume_from_where=ConsumeFromWhere.TIMESTAMP,
        consume_timestamp_ms=parse_time("--from", begin, clock),
    )


COMMANDS = {"list": list_consumers, "show": show, "consume": consume}
