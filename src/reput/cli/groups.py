"""``reput group``: consumer groups, their lag and their members."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.connecting import CommandFailed, check_group, version_text
from reput.cli.options import (
    CLUSTER,
    MASTERS,
    BrokerOption,
    GroupArgument,
    OfClusterOption,
    Options,
    Session,
    command,
    option,
    parse_pairs,
)
from reput.cli.printing import Document, Fields, Table, View
from reput.format import names

if TYPE_CHECKING:
    from reput.client.admin import Admin, ConsumeStats, QueueProgress
    from reput.format.bodies import Connection, ConsumerConnection, SubscriptionGroupConfig


# --- list and show ------------------------------------------------------------------------------


@command(*CLUSTER)
def list_groups(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Include system groups.")] = False,
    cluster: OfClusterOption = None,
    broker: BrokerOption = None,
) -> View:
    """List the consumer groups of the brokers, with their settings."""
    configs = session.ask(lambda admin: admin.groups(cluster=cluster, broker=broker))
    groups = [
        {"group": name, **_settings(config)}
        for name, config in configs.items()
        if everything or not names.is_system_group(name)
    ]
    return View({"groups": groups}, _settings_table("group", groups))


def _settings(config: "SubscriptionGroupConfig") -> Document:
    return {
        "consume_enable": config.consume_enable,
        "broadcast_enable": config.consume_broadcast_enable,
        "from_min_enable": config.consume_from_min_enable,
        "retry_count_max": config.retry_max_times,
        "retry_queue_count": config.retry_queue_nums,
        "read_from_broker_id": config.broker_id,
        "slow_read_from_broker_id": config.which_broker_when_consume_slowly,
        "orderly": config.consume_message_orderly,
    }


def _settings_table(key: str, rows: list[Document]) -> Table:
    columns = (
        f"{key} may_consume=consume_enable may_broadcast=broadcast_enable "
        "#retries=retry_count_max #retry_queues=retry_queue_count #reads_from=read_from_broker_id"
    )
    table = Table(columns, rows)
    table.headings[0] = key  # with its underscore: scripts may depend on it
    return table


@command(*CLUSTER, "utc")
def show(
    session: Session,
    group: GroupArgument,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic.")] = None,
) -> View:
    """Show the consumer offset and the lag of a group in each queue.

    Lag is the number of messages between the consumer offset and the end of the queue; the time is
    the store time of the last consumed message.
    """

    async def work(admin: "Admin") -> Document:
        stats = await admin.consume_stats(group, topic)
        connection = await admin.consumer_connection(group)
        if not stats.queues and connection is None:
            await check_group(admin, group)
        return _progress(group, stats, connection)

    document = session.ask(work)
    return View(
        document,
        Fields.of(
            "group members=member_count consumes lag",
            document,
            {"consumes": lambda _: f"{document['consume_tps']:.1f} messages a second"},
        ),
        Table(
            "topic broker=broker_name #queue=queue_id #broker_offset "
            "#consumer_offset #lag @last=last_store_timestamp",
            document["queues"],
        ),
    )


def _progress(
    group: str, stats: "ConsumeStats", connection: "ConsumerConnection | None"
) -> Document:
    return {
        "group": group,
        "member_count": len(connection.connection_set) if connection else 0,
        "consume_tps": stats.consume_tps,
        "lag": stats.lag,
        "queues": [_queue_progress(progress) for progress in stats.queues],
    }


def _queue_progress(progress: "QueueProgress") -> Document:
    return {
        "topic": progress.queue.topic,
        "broker_name": progress.queue.broker_name,
        "queue_id": progress.queue.queue_id,
        "broker_offset": progress.broker_offset,
        "consumer_offset": progress.consumer_offset,
        "lag": progress.lag,
        "last_store_timestamp": progress.last_timestamp_ms or None,
    }


# --- create, update, delete ---------------------------------------------------------------------

_SETTINGS: Options = {
    "consume": option(bool | None, "--consume/--no-consume", help="Whether it may consume."),
    "broadcast": option(
        bool | None, "--broadcast/--no-broadcast", help="Whether its members may broadcast."
    ),
    "from_min": option(
        bool | None,
        "--from-min/--no-from-min",
        help="Whether it may start at the oldest message.",
    ),
    "retries": option(int | None, min=-1, help="Retries before a message becomes a dead letter."),
    "retry_queues": option(int | None, min=0, help="Queues of its retry topic, on each broker."),
    "read_from": option(
        int | None, min=0, metavar="BROKER_ID", help="Broker to read from; 0: master."
    ),
    "attribute": option(
        list[str] | None, metavar="NAME=VALUE", help="Attribute of RocketMQ 5 brokers; repeatable."
    ),
}
_FIELDS = {
    "consume": "consume_enable",
    "broadcast": "consume_broadcast_enable",
    "from_min": "consume_from_min_enable",
    "retries": "retry_max_times",
    "retry_queues": "retry_queue_nums",
    "read_from": "broker_id",
    "attribute": "attributes",
}
"""Fields of ``SubscriptionGroupConfig`` by option."""


@command(*MASTERS, settings=_SETTINGS)
def create(session: Session, group: GroupArgument, settings: Document) -> View:
    """Create a consumer group on the brokers of a cluster, or on one broker.

    A group that exists is refused. Defaults are those of brokers: consume and broadcast allowed, 16
    retries, one retry queue.
    """
    changes = _changes(settings)

    async def work(admin: "Admin") -> list[Document]:
        from reput.format.bodies import SubscriptionGroupConfig

        targets = await session.masters(admin)
        for name in targets:
            if group in await admin.groups(broker=name):
                exists = f"group {group} already exists on {name}"
                raise CommandFailed(f"{exists}; `reput group update` changes it")
        config = SubscriptionGroupConfig(group_name=group)
        return [await _put(admin, name, config, changes) for name in targets]

    return _receipt(group, session.ask(work))


@command(*MASTERS, settings=_SETTINGS)
def update(session: Session, group: GroupArgument, settings: Document) -> View:
    """Change a consumer group on the brokers that have it.

    Settings without an option remain unchanged.
    """
    changes = _changes(settings)
    if not changes:
        raise typer.BadParameter("give an option to change, such as --retries or --no-consume")

    async def work(admin: "Admin", name: str) -> list[Document]:
        table = await admin.groups(broker=name)
        return [await _put(admin, name, table[group], changes)] if group in table else []

    brokers = session.ask_masters(work)
    if not brokers:
        raise _no_broker_has(group)
    return _receipt(group, brokers)


def _no_broker_has(group: str) -> CommandFailed:
    return CommandFailed(f"no broker has group {group}; `reput group list` shows the groups")


def _changes(settings: Document) -> Document:
    """Return the given settings, under their names in ``SubscriptionGroupConfig``."""
    changes = {_FIELDS[name]: value for name, value in settings.items() if value is not None}
    if settings["attribute"]:
        pairs = parse_pairs("--attribute", settings["attribute"])
        changes["attributes"] = {f"+{name}": value for name, value in pairs.items()}
    return changes


async def _put(
    admin: "Admin", broker: str, config: "SubscriptionGroupConfig", changes: Document
) -> Document:
    import msgspec

    # A request has changes of attributes, not all of them.
    changed = msgspec.structs.replace(config, **{"attributes": None, **changes})
    await admin.create_group(changed, broker=broker)
    return {"broker_name": broker, **_settings(changed)}


def _receipt(group: str, brokers: list[Document]) -> View:
    return View({"group": group, "brokers": brokers}, _settings_table("broker_name", brokers))


@command("yes", *MASTERS)
def delete(
    session: Session,
    group: GroupArgument,
    keep_offsets: Annotated[
        bool,
        typer.Option("--keep-offsets", help="Keep the offsets for a later group of this name."),
    ] = False,
) -> View:
    """Delete a consumer group with its offsets.

    Without --yes it only shows the group and its brokers.
    """

    async def work(admin: "Admin") -> Document:
        targets = await session.masters(admin)
        brokers = [name for name in targets if group in await admin.groups(broker=name)]
        if not brokers:
            raise _no_broker_has(group)
        connection = await admin.consumer_connection(group)
        if session.is_done:
            for name in brokers:
                await admin.delete_group(group, has_offsets_removed=not keep_offsets, broker=name)
        return {
            "is_deleted": session.is_done,
            "group": group,
            "brokers": brokers,
            "member_count": len(connection.connection_set) if connection else 0,
            "keeps_offsets": keep_offsets,
        }

    document = session.ask(work)
    label = "deleted" if session.is_done else "would_delete"
    names = f"{label}=group brokers members=member_count keeps_offsets"
    return View(document, Fields.of(names, document))


# --- members ------------------------------------------------------------------------------------


@command(*CLUSTER)
def members(session: Session, group: GroupArgument) -> View:
    """Show the members of a group and their subscriptions.

    `reput consumer show` queries the members for their state.
    """
    document = session.ask(lambda admin: _members(admin, group))
    return View(
        document,
        Fields.of(
            "group members consumes=consume_type model=message_model "
            "new_queues_from=consume_from_where",
            document,
            {"members": lambda _: len(document["members"])},
        ),
        Table(
            "client=client_id address language version",
            document["members"],
            is_optional=True,
        ),
        Table(
            "topic expression type=expression_type",
            document["subscriptions"],
            is_optional=not document["members"],
        ),
    )


async def _members(admin: "Admin", group: str) -> Document:
    connection = await admin.consumer_connection(group)
    if connection is None:
        await check_group(admin, group)
    fields = ("consume_type", "message_model", "consume_from_where")
    return {
        "group": group,
        **{name: getattr(connection, name, None) for name in fields},
        "members": [member(client) for client in connection.connection_set] if connection else [],
        "subscriptions": [
            {
                "topic": subscription.topic,
                "expression": subscription.sub_string,
                "expression_type": subscription.expression_type,
            }
            for _, subscription in sorted(
                connection.subscription_table.items() if connection else ()
            )
        ],
    }


def member(connection: "Connection") -> Document:
    """Describe a client that is connected to a broker."""
    return {
        "client_id": connection.client_id,
        "address": connection.client_addr,
        "language": connection.language,
        "version": version_text(connection.version),
    }


# --- request modes ------------------------------------------------------------------------------


class Mode(enum.StrEnum):
    """How a group reads a topic."""

    PULL = "PULL"
    POP = "POP"


@command(*MASTERS)
def mode(
    session: Session,
    group: GroupArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic; without it, all topics.")
    ] = None,
    set_: Annotated[
        Mode | None,
        typer.Option("--set", metavar="PULL|POP", help="New mode of the topic."),
    ] = None,
    share: Annotated[
        int,
        typer.Option(
            min=0, help="With POP: number of members that share a queue with its owner; 0: all."
        ),
    ] = 0,
) -> View:
    """Show or set how a group reads topics: PULL, the default, or POP, where members share queues.

    For clients of 5.x with rebalancing by the broker (clientRebalance=false); a change reaches them
    within 20 s. Topics that are not listed have PULL.
    """
    if set_ is not None and topic is None:
        raise typer.BadParameter("--set takes a TOPIC")

    async def work(admin: "Admin", name: str) -> list[Document]:
        if set_ is not None and topic is not None:
            await admin.set_request_mode(group, topic, str(set_), share_count=share, broker=name)
        return [
            {
                "broker_name": name,
                "topic": setting.topic,
                "mode": setting.mode,
                "share_count": setting.pop_share_queue_num,
            }
            for setting in await admin.request_modes(name, group)
            if topic in (None, setting.topic)
        ]

    modes = session.ask_masters(work)
    columns = "broker=broker_name topic mode #share=share_count"
    return View({"group": group, "modes": modes}, Table(columns, modes))


COMMANDS = {
    "list": list_groups,
    "show": show,
    "create": create,
    "update": update,
    "delete": delete,
    "members": members,
    "mode": mode,
}
