"""``reput group``: consumer groups, how far they are, and who is in them."""

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.connecting import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    BrokerOption,
    ClusterOption,
    CommandFailed,
    JsonOption,
    NamesrvOption,
    TimeoutOption,
    UtcOption,
    YesOption,
    ask,
    command_group,
    masters,
    print_preview_note,
    version_text,
)
from reput.format import names

if TYPE_CHECKING:
    from reput.client.admin import Admin, ConsumeStats, QueueProgress
    from reput.format.bodies import ConsumerConnection, SubscriptionGroupConfig

Document = dict[str, Any]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command_group(
        app,
        "group",
        "Consumer groups: list, show their lag, create, update, delete them, see their members.",
        {
            "list": list_groups,
            "show": show,
            "create": create,
            "update": update,
            "delete": delete,
            "members": members,
            "mode": mode,
        },
    )


# --- list and show ------------------------------------------------------------------------------


def list_groups(
    everything: Annotated[bool, typer.Option("--all", help="System groups, too.")] = False,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Of this cluster.")] = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """List the consumer groups that brokers know, with their settings."""
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: admin.groups(cluster=cluster, broker=broker))
    groups = [
        {"group": name, **_settings(one)}
        for name, one in found.items()
        if everything or not names.is_system_group(name)
    ]
    if json:
        printing.print_json({"groups": groups})
    else:
        _print_settings("group", groups)


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


def _print_settings(what: str, rows: list[Document]) -> None:
    from reput.cli import printing

    printing.print_table(
        [what, "may consume", "may broadcast", "#retries", "#retry queues", "#reads from"],
        [
            [
                one[what],
                one["consume_enable"],
                one["broadcast_enable"],
                one["retry_count_max"],
                one["retry_queue_count"],
                one["read_from_broker_id"],
            ]
            for one in rows
        ],
    )


def show(
    group: GroupArgument,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic.")] = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Show how far a group is in each queue, and how much is left.

    Lag is the number of messages between the consumer offset and the end of the queue; the time is
    when the last consumed message was stored.
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> Document:
        stats = await admin.consume_stats(group, topic)
        return _progress(group, stats, await admin.consumer_connection(group))

    found = ask(namesrv, timeout, work)
    if json:
        printing.print_json(found)
        return
    clock = printing.Clock(utc)
    printing.print_fields(
        {
            "group": group,
            "members": found["member_count"],
            "consumes": f"{found['consume_tps']:.1f} messages a second",
            "lag": found["lag"],
        }
    )
    print()
    printing.print_table(
        ["topic", "broker", "#queue", "#broker offset", "#consumer offset", "#lag", "@last"],
        [
            [
                one["topic"],
                one["broker_name"],
                one["queue_id"],
                one["broker_offset"],
                one["consumer_offset"],
                one["lag"],
                clock.text(one["last_store_timestamp"]),
            ]
            for one in found["queues"]
        ],
    )


def _progress(
    group: str, stats: "ConsumeStats", connection: "ConsumerConnection | None"
) -> Document:
    return {
        "group": group,
        "member_count": len(connection.connection_set) if connection else 0,
        "consume_tps": stats.consume_tps,
        "lag": stats.lag,
        "queues": [_queue_progress(one) for one in stats.queues],
    }


def _queue_progress(one: "QueueProgress") -> Document:
    return {
        "topic": one.queue.topic,
        "broker_name": one.queue.broker_name,
        "queue_id": one.queue.queue_id,
        "broker_offset": one.broker_offset,
        "consumer_offset": one.consumer_offset,
        "lag": one.lag,
        "last_store_timestamp": one.last_timestamp_ms or None,
    }


# --- create, update, delete ---------------------------------------------------------------------

ConsumeOption = Annotated[
    bool | None, typer.Option("--consume/--no-consume", help="Whether it may consume at all.")
]
BroadcastOption = Annotated[
    bool | None,
    typer.Option("--broadcast/--no-broadcast", help="Whether its members may broadcast."),
]
FromMinOption = Annotated[
    bool | None,
    typer.Option("--from-min/--no-from-min", help="Whether it may begin with old messages."),
]
RetriesOption = Annotated[
    int | None, typer.Option(min=-1, help="Retries before a message becomes a dead letter.")
]
RetryQueuesOption = Annotated[
    int | None, typer.Option(min=0, help="Queues of its retry topic, on each broker.")
]
ReadFromOption = Annotated[
    int | None, typer.Option(min=0, metavar="BROKER_ID", help="Whom to read from; 0: masters.")
]


def create(
    group: GroupArgument,
    consume: ConsumeOption = None,
    broadcast: BroadcastOption = None,
    from_min: FromMinOption = None,
    retries: RetriesOption = None,
    retry_queues: RetryQueuesOption = None,
    read_from: ReadFromOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Create a consumer group on the brokers of a cluster, or on one broker.

    One that is there already is refused. What is not named is as brokers have it: consume and
    broadcast allowed, 16 retries, one retry queue.
    """
    changes = _changes(consume, broadcast, from_min, retries, retry_queues, read_from)

    async def work(admin: "Admin") -> list[Document]:
        from reput.format.bodies import SubscriptionGroupConfig

        targets = masters(await admin.clusters(), cluster, broker)
        for name in targets:
            if group in await admin.groups(broker=name):
                known = f"group {group} is on {name} already"
                raise CommandFailed(f"{known}; `reput group update` changes it")
        config = SubscriptionGroupConfig(group_name=group)
        return [await _put(admin, name, config, changes) for name in targets]

    _print_receipt(group, ask(namesrv, timeout, work), as_json=json)


def update(
    group: GroupArgument,
    consume: ConsumeOption = None,
    broadcast: BroadcastOption = None,
    from_min: FromMinOption = None,
    retries: RetriesOption = None,
    retry_queues: RetryQueuesOption = None,
    read_from: ReadFromOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Change a consumer group, on the brokers that know it.

    What is not named stays as it is.
    """
    changes = _changes(consume, broadcast, from_min, retries, retry_queues, read_from)
    if not changes:
        raise typer.BadParameter("name what to change, such as --retries or --no-consume")

    async def work(admin: "Admin") -> list[Document]:
        done = []
        for name in masters(await admin.clusters(), cluster, broker):
            table = await admin.groups(broker=name)
            if group in table:
                done.append(await _put(admin, name, table[group], changes))
        if not done:
            raise CommandFailed(f"no broker knows group {group}; `reput group list` shows them")
        return done

    _print_receipt(group, ask(namesrv, timeout, work), as_json=json)


def _changes(
    consume: bool | None,
    broadcast: bool | None,
    from_min: bool | None,
    retries: int | None,
    retry_queues: int | None,
    read_from: int | None,
) -> Document:
    """Return the settings that were named, as ``SubscriptionGroupConfig`` calls them."""
    named = {
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
        "consume_from_min_enable": from_min,
        "retry_max_times": retries,
        "retry_queue_nums": retry_queues,
        "broker_id": read_from,
    }
    return {name: value for name, value in named.items() if value is not None}


async def _put(
    admin: "Admin", broker: str, config: "SubscriptionGroupConfig", changes: Document
) -> Document:
    import msgspec

    changed = msgspec.structs.replace(config, **changes)
    await admin.create_group(changed, broker=broker)
    return {"broker_name": broker, **_settings(changed)}


def _print_receipt(group: str, done: list[Document], *, as_json: bool) -> None:
    from reput.cli import printing

    if as_json:
        printing.print_json({"group": group, "brokers": done})
    else:
        _print_settings("broker_name", done)


def delete(
    group: GroupArgument,
    keep_offsets: Annotated[
        bool,
        typer.Option("--keep-offsets", help="A group of this name goes on where it was."),
    ] = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Delete a consumer group with its offsets.

    Without --yes it only says what would go.
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> Document:
        targets = masters(await admin.clusters(), cluster, broker)
        brokers = [name for name in targets if group in await admin.groups(broker=name)]
        if not brokers:
            raise CommandFailed(f"no broker knows group {group}; `reput group list` shows them")
        connection = await admin.consumer_connection(group)
        if yes:
            for name in brokers:
                await admin.delete_group(group, has_offsets_removed=not keep_offsets, broker=name)
        return {
            "is_deleted": yes,
            "group": group,
            "brokers": brokers,
            "member_count": len(connection.connection_set) if connection else 0,
            "keeps_offsets": keep_offsets,
        }

    found = ask(namesrv, timeout, work)
    if json:
        printing.print_json(found)
    else:
        printing.print_fields(
            {
                "deleted" if yes else "would delete": group,
                "brokers": " ".join(found["brokers"]),
                "members": found["member_count"],
                "keeps offsets": keep_offsets,
            }
        )
    if not yes:
        print_preview_note()


# --- members ------------------------------------------------------------------------------------


def members(
    group: GroupArgument,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show the members of a group, and what they subscribe to.

    `reput consumer show` asks the members themselves what they are doing.
    """
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: _members(admin, group))
    if json:
        printing.print_json(found)
        return
    printing.print_fields(
        {
            "group": group,
            "members": len(found["members"]),
            "consumes": found["consume_type"],
            "model": found["message_model"],
            "new queues from": found["consume_from_where"],
        }
    )
    if not found["members"]:
        return
    print()
    printing.print_table(
        ["client", "address", "language", "version"],
        [
            [one["client_id"], one["address"], one["language"], one["version"]]
            for one in found["members"]
        ],
    )
    print()
    printing.print_table(
        ["topic", "expression", "type"],
        [
            [one["topic"], one["expression"], one["expression_type"]]
            for one in found["subscriptions"]
        ],
    )


async def _members(admin: "Admin", group: str) -> Document:
    found = await admin.consumer_connection(group)
    if found is None:
        return {
            "group": group,
            "consume_type": None,
            "message_model": None,
            "consume_from_where": None,
            "members": [],
            "subscriptions": [],
        }
    return {
        "group": group,
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "consume_from_where": found.consume_from_where,
        "members": [
            {
                "client_id": one.client_id,
                "address": one.client_addr,
                "language": one.language,
                "version": version_text(one.version),
            }
            for one in found.connection_set
        ],
        "subscriptions": [
            {
                "topic": one.topic,
                "expression": one.sub_string,
                "expression_type": one.expression_type,
            }
            for _, one in sorted(found.subscription_table.items())
        ],
    }


# --- how groups read topics ---------------------------------------------------------------------


class Mode(enum.StrEnum):
    """How a group reads a topic."""

    PULL = "PULL"
    POP = "POP"


def mode(
    group: GroupArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="What it reads; all topics if none.")
    ] = None,
    set_: Annotated[
        Mode | None,
        typer.Option("--set", metavar="PULL|POP", help="How it reads the topic from now on."),
    ] = None,
    share: Annotated[
        int,
        typer.Option(
            min=0, help="With POP: how many members share a queue besides its own; 0: all of them."
        ),
    ] = 0,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show or set how a group reads topics: PULL, as ever, or POP, where members share queues.

    For clients of 5.x that let the broker divide queues (clientRebalance=false); they hear of it
    within 20 s. What is not listed is PULL.
    """
    from reput.cli import printing

    if set_ is not None and topic is None:
        raise typer.BadParameter("--set takes a TOPIC")

    async def work(admin: "Admin") -> list[Document]:
        found = []
        for name in masters(await admin.clusters(), cluster, broker):
            if set_ is not None and topic is not None:
                await admin.set_request_mode(
                    group, topic, str(set_), share_count=share, broker=name
                )
            found += [
                {
                    "broker_name": name,
                    "topic": one.topic,
                    "mode": one.mode,
                    "share_count": one.pop_share_queue_num,
                }
                for one in await admin.request_modes(name, group)
                if topic in (None, one.topic)
            ]
        return found

    found = ask(namesrv, timeout, work)
    if json:
        printing.print_json({"group": group, "modes": found})
        return
    printing.print_table(
        ["broker", "topic", "mode", "#share"],
        [[one["broker_name"], one["topic"], one["mode"], one["share_count"]] for one in found],
    )
