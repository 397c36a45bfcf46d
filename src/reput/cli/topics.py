"""``reput topic``: which topics there are, where they are, and how many queues they have."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import clients, statistics
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
    parse_pairs,
    print_preview_note,
)

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.core.route_cache import TopicRoute
    from reput.format.bodies import ClusterInfo, TopicConfigData

Document = dict[str, Any]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]

_PERMS = {"r": 4, "w": 2, "rw": 6, "none": 0}
_REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command_group(
        app,
        "topic",
        "Topics: list, show, create, update, delete them, and send to them.",
        {
            "list": list_topics,
            "show": show,
            "create": create,
            "update": update,
            "delete": delete,
            "stats": statistics.topic_stats,
            "order": order_config,
            "send": clients.send,
        },
    )


# --- list ---------------------------------------------------------------------------------------


def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="Retry, dead-letter and system topics, too.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="With brokers, queues and permission.")
    ] = False,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Of this cluster.")] = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """List the topics that name servers know.

    With --long each broker is asked for the settings of its topics.
    """
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: _list(admin, cluster, everything, long))
    if json:
        printing.print_json({"topics": found})
    elif long:
        rows = [
            [
                one["topic"],
                one["kind"],
                " ".join(broker["broker_name"] for broker in one["brokers"]),
                sum(broker["read_queue_count"] for broker in one["brokers"]),
                sum(broker["write_queue_count"] for broker in one["brokers"]),
                "/".join(sorted({_perm_text(broker["perm"]) for broker in one["brokers"]})),
            ]
            for one in found
        ]
        printing.print_table(["topic", "kind", "brokers", "#read", "#write", "perm"], rows)
    else:
        printing.print_table(["topic", "kind"], [[one["topic"], one["kind"]] for one in found])


async def _list(
    admin: "Admin", cluster: str | None, everything: bool, long: bool
) -> list[Document]:
    from reput.format.names import kind_of

    known = await admin.clusters()
    own_names = known.cluster_addr_table.keys() | known.broker_addr_table.keys()
    found: list[Document] = []
    for topic in await admin.topics(cluster=cluster):
        is_own = topic in own_names or topic.endswith(_REPLY_TOPIC_SUFFIX)
        kind = "system" if is_own else kind_of(topic)
        if everything or kind in ("user", "light"):
            found.append({"topic": topic, "kind": kind})
    if long:
        tables = await _tables(admin, known, cluster)
        for one in found:
            one["brokers"] = [
                {"broker_name": name, **_settings(table[one["topic"]])}
                for name, table in tables.items()
                if one["topic"] in table
            ]
    return found


async def _tables(
    admin: "Admin", known: "ClusterInfo", cluster: str | None
) -> "dict[str, dict[str, TopicConfigData]]":
    """Return, by broker name, the topics of all brokers with a master."""
    clusters = [cluster] if cluster is not None else sorted(known.cluster_addr_table)
    names = [name for one in clusters for name in masters(known, one, None)]
    return {name: await admin.topic_configs(name) for name in names}


def _settings(config: "TopicConfigData") -> Document:
    return {
        "read_queue_count": config.read_queue_nums,
        "write_queue_count": config.write_queue_nums,
        "perm": config.perm,
        "order": config.order,
        "attributes": config.attributes or {},
    }


# --- show ---------------------------------------------------------------------------------------


def show(
    topic: TopicArgument,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Show where a topic is, what is in its queues, and who reads it."""
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: _describe(admin, topic))
    if json:
        printing.print_json(found)
        return
    clock = printing.Clock(utc)
    printing.print_fields(
        {
            "topic": topic,
            "kind": found["kind"],
            "messages": found["message_count"],
            "groups": " ".join(found["groups"]) or None,
        }
    )
    print()
    printing.print_table(
        ["broker", "cluster", "addresses", "#read", "#write", "perm"],
        [
            [
                one["broker_name"],
                one["cluster"],
                " ".join(f"{broker_id}={at}" for broker_id, at in one["addresses"].items()),
                one["read_queue_count"],
                one["write_queue_count"],
                _perm_text(one["perm"]),
            ]
            for one in found["brokers"]
        ],
    )
    print()
    printing.print_table(
        ["broker", "#queue", "#min", "#max", "#messages", "@last stored"],
        [
            [
                one["broker_name"],
                one["queue_id"],
                one["min_offset"],
                one["max_offset"],
                one["message_count"],
                clock.text(one["last_store_timestamp"]),
            ]
            for one in found["queues"]
        ],
    )


async def _describe(admin: "Admin", topic: str) -> Document:
    from reput.format.names import kind_of

    route = await admin.topic_route(topic)
    queues = [
        {
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": one.min_offset,
            "max_offset": one.max_offset,
            "message_count": one.max_offset - one.min_offset,
            "last_store_timestamp": one.last_update_timestamp or None,
        }
        for queue, one in (await admin.topic_status(topic)).items()
    ]
    return {
        "topic": topic,
        "kind": kind_of(topic),
        "message_count": sum(int(one["message_count"] or 0) for one in queues),
        "groups": await admin.groups_of_topic(topic),
        "brokers": _brokers(route),
        "queues": queues,
    }


def _brokers(route: "TopicRoute") -> list[Document]:
    clusters = {one.broker_name: one.cluster for one in route.data.broker_datas}
    return [
        {
            "broker_name": one.broker_name,
            "cluster": clusters.get(one.broker_name),
            "addresses": {
                str(broker_id): address
                for broker_id, address in sorted(route.brokers.get(one.broker_name, {}).items())
            },
            "read_queue_count": one.read_queue_nums,
            "write_queue_count": one.write_queue_nums,
            "perm": one.perm,
        }
        for one in sorted(route.data.queue_datas, key=lambda one: one.broker_name)
    ]


# --- create, update, delete ---------------------------------------------------------------------

PermOption = Annotated[
    str | None, typer.Option(metavar="PERM", help="What clients may do: r, w, rw or none.")
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="NAME=VALUE", help="Attribute of RocketMQ 5 brokers; repeatable."
    ),
]


def create(
    topic: TopicArgument,
    queues: Annotated[int, typer.Option(min=1, help="Queues on each broker.")] = 8,
    write_queues: Annotated[
        int | None, typer.Option(min=1, help="Queues to write to, if not as many.")
    ] = None,
    perm: PermOption = "rw",
    order: Annotated[
        bool, typer.Option("--order", help="Mark it as a topic whose order matters.")
    ] = False,
    attribute: AttributeOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Create a topic on the brokers of a cluster, or on one broker.

    One that is there already is refused. Waits until name servers tell of it.
    """
    write_count = queues if write_queues is None else write_queues
    wanted = {
        "read_queue_count": queues,
        "write_queue_count": write_count,
        "perm": _parse_perm(perm or "rw"),
        "order": order,
        "attributes": parse_pairs("--attribute", attribute),
    }

    async def work(admin: "Admin") -> list[Document]:
        names = masters(await admin.clusters(), cluster, broker)
        for name in names:
            if topic in await admin.topic_configs(name):
                known = f"topic {topic} is on {name} already"
                raise CommandFailed(f"{known}; `reput topic update` changes it")
        if order:
            await _mark_ordered(admin, topic, dict.fromkeys(names, write_count))
        done = [await _put(admin, topic, name, wanted) for name in names]
        await _wait_until_known(admin, topic, timeout)
        return done

    _print_receipt(topic, ask(namesrv, timeout, work), as_json=json)


def update(
    topic: TopicArgument,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Queues on each broker, to read and to write.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=1, help="Queues to write to, if not as many.")
    ] = None,
    perm: PermOption = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Whether its order matters.")
    ] = None,
    attribute: AttributeOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Change a topic, on the brokers that have it.

    What is not named stays as it is.
    """
    wanted: Document = {}
    if queues is not None:
        wanted |= {"read_queue_count": queues, "write_queue_count": queues}
    if write_queues is not None:
        wanted["write_queue_count"] = write_queues
    if perm is not None:
        wanted["perm"] = _parse_perm(perm)
    if order is not None:
        wanted["order"] = order
    if attribute:
        wanted["attributes"] = parse_pairs("--attribute", attribute)
    if not wanted:
        raise typer.BadParameter("name what to change: --queues, --write-queues, --perm, --order")

    async def work(admin: "Admin") -> list[Document]:
        from reput.client.core.route_cache import NoRoute

        changes = {}
        for name in masters(await admin.clusters(), cluster, broker):
            table = await admin.topic_configs(name)
            if topic in table:
                changes[name] = _settings(table[topic]) | {"attributes": {}} | wanted
        if not changes:
            raise NoRoute(topic)
        if any(one["order"] for one in changes.values()):
            counts = {name: one["write_queue_count"] for name, one in changes.items()}
            await _mark_ordered(admin, topic, counts)
        elif order is False:
            await admin.delete_kv(_ORDERED_TOPICS, topic)
        return [await _put(admin, topic, name, one) for name, one in changes.items()]

    _print_receipt(topic, ask(namesrv, timeout, work), as_json=json)


async def _mark_ordered(admin: "Admin", topic: str, queue_counts: dict[str, int]) -> None:
    """Tell name servers that a topic is ordered: brokers take over what those say.

    Source: rocketmq 4.9.8 ``UpdateTopicSubCommand``, ``MQAdminImpl.createOrUpdateOrderConf``.
    """
    known = await admin.kv(_ORDERED_TOPICS, topic) or ""
    parts = dict(part.split(":", 1) for part in known.split(";") if ":" in part)
    parts |= {name: str(count) for name, count in queue_counts.items()}
    await admin.put_kv(_ORDERED_TOPICS, topic, ";".join(map(":".join, parts.items())))


_ORDERED_TOPICS = "ORDER_TOPIC_CONFIG"


async def _put(admin: "Admin", topic: str, broker: str, settings: Document) -> Document:
    await admin.create_topic(
        topic,
        queue_count=settings["read_queue_count"],
        write_queue_count=settings["write_queue_count"],
        perm=settings["perm"],
        is_ordered=settings["order"],
        broker=broker,
        attributes=settings["attributes"],
    )
    return {"broker_name": broker, **settings}


async def _wait_until_known(admin: "Admin", topic: str, timeout_s: float) -> None:
    import asyncio

    from reput.cli import printing
    from reput.client.core.route_cache import NoRoute

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await admin.topic_route(topic)
                except NoRoute:
                    await asyncio.sleep(_LOOK_AGAIN_S)
                else:
                    return
    except TimeoutError:
        printing.print_note(f"name servers do not tell of topic {topic} yet")


_LOOK_AGAIN_S = 0.05


def _print_receipt(topic: str, done: list[Document], *, as_json: bool) -> None:
    from reput.cli import printing

    if as_json:
        printing.print_json({"topic": topic, "brokers": done})
        return
    printing.print_table(
        ["topic", "broker", "#read", "#write", "perm", "order"],
        [
            [
                topic,
                one["broker_name"],
                one["read_queue_count"],
                one["write_queue_count"],
                _perm_text(one["perm"]),
                one["order"],
            ]
            for one in done
        ],
    )


def delete(
    topic: TopicArgument,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Delete a topic with all of its messages.

    Without --yes it only says what would go.
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> Document:
        found = await _describe(admin, topic)
        if yes:
            await admin.delete_topic(topic, cluster=cluster)
            if await admin.kv(_ORDERED_TOPICS, topic) is not None:
                await admin.delete_kv(_ORDERED_TOPICS, topic)
        return found

    found = ask(namesrv, timeout, work)
    if json:
        keys = ("topic", "message_count", "groups", "brokers")
        printing.print_json({"is_deleted": yes, **{key: found[key] for key in keys}})
    else:
        brokers = " ".join(one["broker_name"] for one in found["brokers"])
        fields = {
            "deleted" if yes else "would delete": topic,
            "messages": found["message_count"],
            "brokers": brokers,
            "groups": " ".join(found["groups"]) or None,
        }
        printing.print_fields(fields)
    if not yes:
        print_preview_note()


# --- the order of ordered topics ----------------------------------------------------------------


def order_config(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Of this topic; of all if none.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="BROKER:COUNT", help="Its brokers with their queues; repeatable."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Its order matters no longer.")] = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show or change which queues topics have whose order matters.

    Name servers keep it, and producers and consumers use exactly these queues, also while a broker
    is away. `reput topic create --order` sets it for all brokers of a topic.
    """
    from reput.cli import printing
    from reput.errors import InvalidOption

    if topic is None and (set_ or delete):
        raise typer.BadParameter("--set and --delete take a TOPIC")
    if set_ and delete:
        raise typer.BadParameter("give one of --set and --delete")
    for text in set_ or ():
        broker, colon, count = text.rpartition(":")
        if not colon or not broker or not count.isascii() or not count.isdigit():
            raise InvalidOption("--set", text, "BROKER:COUNT, such as broker-a:8")

    async def work(admin: "Admin") -> dict[str, str]:
        if topic is not None and set_:
            await admin.put_kv(_ORDERED_TOPICS, topic, ";".join(set_))
        if topic is not None and delete:
            await admin.delete_kv(_ORDERED_TOPICS, topic)
        return await admin.kv_of_namespace(_ORDERED_TOPICS)

    table = ask(namesrv, timeout, work)
    found = [
        {"topic": name, "broker_name": part.rpartition(":")[0], "queue_count": int(count)}
        for name, value in sorted(table.items())
        for part in value.split(";")
        if topic in (None, name) and (count := part.rpartition(":")[2]).isdecimal()
    ]
    if json:
        printing.print_json({"topics": found})
    else:
        rows = [[one["topic"], one["broker_name"], one["queue_count"]] for one in found]
        printing.print_table(["topic", "broker", "#queues"], rows)


# --- permissions --------------------------------------------------------------------------------


def _parse_perm(text: str) -> int:
    from reput.errors import InvalidOption

    perm = int(text) if text in ("0", "2", "4", "6") else _PERMS.get(text.lower())
    if perm is None:
        raise InvalidOption("--perm", text, "r, w, rw, none, or 0, 2, 4, 6")
    return perm


def _perm_text(perm: int) -> str:
    return ("r" if perm & 4 else "") + ("w" if perm & 2 else "") or "none"
