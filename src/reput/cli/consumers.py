"""``reput consumer``: list connected consumers, show their state, consume messages."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import messages
from reput.cli.connecting import check_group
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
    from reput.client.pop_consumer import PopConsumer
    from reput.client.popping import PoppedMessage
    from reput.client.pull_consumer import PullConsumer
    from reput.format.bodies import ConsumerRunningInfo


# --- consumers ----------------------------------------------------------------------------------


@command(*CLUSTER)
def list_consumers(session: Session) -> View:
    """List the consumer groups that have members, with their topics."""
    groups = session.ask(_consumers)
    columns = "group #members=member_count consumes=consume_type model=message_model topics"
    return View({"groups": groups}, Table(columns, groups))


async def _consumers(admin: "Admin") -> list[Document]:
    groups = []
    for group in await admin.groups():
        connection = await admin.consumer_connection(group)
        if connection is not None and connection.connection_set:
            groups.append(
                {
                    "group": group,
                    "member_count": len(connection.connection_set),
                    "consume_type": connection.consume_type,
                    "message_model": connection.message_model,
                    "topics": sorted(connection.subscription_table),
                }
            )
    return groups


@command(*CLUSTER, "utc")
def show(
    session: Session,
    group: GroupArgument,
    client: Annotated[
        str | None, typer.Option(metavar="CLIENT_ID", help="Only this member.")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Include the stacks of its threads.")
    ] = False,
) -> View:
    """Show the state of a group's members, as they report it: queues, offsets, rates.

    A member that does not answer is shown with the reason, and makes the exit code 1.
    """
    members = session.ask(lambda admin: _members(admin, group, client, has_stacks=stacks))
    if not members and not session.as_json:
        print_note(f"group {group} has no members")
    return View(
        {"group": group, "members": members},
        *(block for member in members for block in _member_blocks(member)),
        exit_code=EXIT_DAMAGE if any(member["problem"] for member in members) else 0,
    )


async def _members(
    admin: "Admin", group: str, client: str | None, *, has_stacks: bool
) -> list[Document]:
    connection = await admin.consumer_connection(group)
    if connection is None:
        await check_group(admin, group)
    ids = [member.client_id for member in connection.connection_set] if connection else []
    if client is not None and client not in ids:
        raise InvalidOption("--client", client, ", ".join(ids) or "none: the group has no members")
    documents: list[Document] = []
    for client_id in ids if client is None else [client]:
        try:
            running = await admin.consumer_running_info(group, client_id, has_stacks=has_stacks)
        except RemotingError as error:
            documents.append({"client_id": client_id, "problem": str(error)})
        else:
            documents.append({"client_id": client_id, "problem": None, **_running(running)})
    return documents


def _running(running: "ConsumerRunningInfo") -> Document:
    return {
        "properties": dict(sorted(running.properties.items())),
        "queues": [
            {
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "consumer_offset": state.commit_offset,
                "cached_count": state.cached_msg_count,
                "is_locked": state.locked,
                "last_pull_timestamp": state.last_pull_timestamp or None,
                "last_consume_timestamp": state.last_consume_timestamp or None,
            }
            for queue, state in sorted(running.mq_table.items())
        ],
        "popped": [
            {
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id if queue.queue_id >= 0 else None,
                "held_count": state.wait_ack_count,
                "last_pop_timestamp": state.last_pop_timestamp or None,
            }
            for queue, state in sorted(running.mq_pop_table.items())
        ],
        "topics": [
            {
                "topic": topic,
                "pull_tps": state.pull_tps,
                "consumed_tps": state.consume_ok_tps,
                "failed_tps": state.consume_failed_tps,
                "consume_ms": state.consume_rt,
            }
            for topic, state in sorted(running.status_table.items())
        ],
        "stacks": running.jstack,
    }


def _member_blocks(member: Document) -> list[Block]:
    if member["problem"] is not None:
        return [Fields.of("client=client_id problem", member)]
    properties = member["properties"]
    return [
        Fields(
            {
                "client": member["client_id"],
                "version": properties.get("PROP_CLIENT_VERSION"),
                "consumes": properties.get("PROP_CONSUME_TYPE"),
                "@since": _timestamp(properties.get("PROP_CONSUMER_START_TIMESTAMP")),
            }
        ),
        Table(
            "topic broker=broker_name #queue=queue_id #offset=consumer_offset "
            "#waiting=cached_count locked=is_locked @pulled=last_pull_timestamp "
            "@consumed=last_consume_timestamp",
            member["queues"],
        ),
        Table(
            "topic broker=broker_name popped_from #held=held_count @popped=last_pop_timestamp",
            member["popped"],
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
            member["topics"],
            is_optional=True,
        ),
        printable_lines(member["stacks"]) if member["stacks"] else None,
    ]


def _timestamp(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# --- consuming ----------------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def consume(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to consume.")],
    group: Annotated[
        str,
        typer.Option(metavar="GROUP", help="The consumer group: messages count as consumed."),
    ],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start in queues without a consumer offset: earliest, latest or a time.",
        ),
    ] = "latest",
    count: CountOption = None,
    idle: IdleOption = None,
    tags: TagsOption = "*",
    sql: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="SQL92 over properties, instead of --tags."),
    ] = None,
    pop: Annotated[
        bool, typer.Option("--pop", help="Pop from any queue; needs brokers from 5.0 on.")
    ] = False,
    body: BodyOption = Body.AUTO,
) -> None:
    """Consume messages as a member of a group, and print them, until Ctrl-C.

    The group divides the queues among its members, and continues at its consumer offsets. Lines
    are as of `reput message tail`, which reads without consuming. With --pop no member owns a
    queue, and each message is acknowledged when it is printed.
    """
    if pop and begin not in ("earliest", "latest"):
        raise InvalidOption("--from", begin, "earliest or latest, with --pop")
    config = consumer_config(begin, session.clock)

    async def work(client: "ClientConfig") -> None:
        from reput.client.pull_consumer import PullConsumer

        if pop:
            async for popped in _popped(client, group, config, topic, tags, sql, count, idle):
                messages.print_message(session, popped, body)
            return
        async with PullConsumer(group, client=client, config=config) as consumer:
            await consumer.queues(topic)  # Fail at once if the topic does not exist.
            await _subscribe(consumer, topic, tags, sql)
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
    """Yield popped messages; a message is acknowledged when the next one is requested."""
    from reput.client.admin import Admin
    from reput.client.pop_consumer import PopConsumer

    async with Admin(client=client) as admin:
        await admin.topic_route(topic)  # Fail at once if the topic does not exist.
    async with PopConsumer(group, client=client, config=config) as consumer:
        await _subscribe(consumer, topic, tags, sql)
        async for message in messages.received(consumer.pop, count, idle_s):
            yield message
            await consumer.ack(message)


async def _subscribe(
    consumer: "PullConsumer | PopConsumer", topic: str, tags: str, sql: str | None
) -> None:
    if sql is not None:
        await consumer.subscribe_sql(topic, sql)
    else:
        await consumer.subscribe(topic, tags)


def consumer_config(begin: str, clock: Clock) -> "ConsumerConfig":
    """Return the configuration of a group that starts at ``begin`` without a consumer offset.

    Raises:
        InvalidOption: ``begin`` is neither ``earliest``, ``latest`` nor a time.
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
