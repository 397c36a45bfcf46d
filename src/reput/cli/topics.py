"""``reput topic``: topics, their brokers, their queues and their settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import producers, statistics
from reput.cli.connecting import CommandFailed, all_masters, kind_in, masters
from reput.cli.options import (
    CLUSTER,
    MASTERS,
    OfClusterOption,
    Session,
    TopicArgument,
    command,
    parse_pairs,
)
from reput.cli.printing import Computed, Document, Fields, Table, View, print_note
from reput.errors import InvalidOption
from reput.format.codes import PERM_READ, PERM_WRITE
from reput.format.names import ORDER_TOPIC_CONFIG

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.core.route_cache import TopicRoute
    from reput.format.bodies import TopicConfigData


# --- list ---------------------------------------------------------------------------------------


@command(*CLUSTER)
def list_topics(
    session: Session,
    everything: Annotated[
        bool, typer.Option("--all", help="Include retry, dead-letter and system topics.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Show brokers, queues and permission.")
    ] = False,
    cluster: OfClusterOption = None,
) -> View:
    """List the topics of the name servers.

    With --long, each broker is queried for the settings of its topics.
    """
    topics = session.ask(lambda admin: _list(admin, cluster, everything, long))
    columns = "topic kind brokers #read #write perm" if long else "topic kind"
    return View({"topics": topics}, Table(columns, topics, computed=_OF_BROKERS))


def _total(key: str) -> Callable[[Document], object]:
    return lambda topic: sum(broker[key] for broker in topic["brokers"])


_OF_BROKERS: Computed = {
    "brokers": lambda topic: [broker["broker_name"] for broker in topic["brokers"]],
    "read": _total("read_queue_count"),
    "write": _total("write_queue_count"),
    "perm": lambda topic: "/".join(sorted(map(_perm_text, topic["brokers"]))),
}


async def _list(
    admin: "Admin", cluster: str | None, everything: bool, long: bool
) -> list[Document]:
    info = await admin.clusters()
    topics: list[Document] = []
    for topic in await admin.topics(cluster=cluster):
        kind = kind_in(info, topic)
        if everything or kind in ("user", "light"):
            topics.append({"topic": topic, "kind": kind})
    if long:
        names = all_masters(info) if cluster is None else masters(info, cluster, None)
        tables = {name: await admin.topic_configs(name) for name in names}
        for document in topics:
            document["brokers"] = [
                {"broker_name": name, **_settings(table[document["topic"]])}
                for name, table in tables.items()
                if document["topic"] in table
            ]
    return topics


def _settings(config: "TopicConfigData") -> Document:
    return {
        "read_queue_count": config.read_queue_nums,
        "write_queue_count": config.write_queue_nums,
        "perm": config.perm,
        "order": config.order,
        "attributes": config.attributes or {},
    }


# --- show ---------------------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def show(session: Session, topic: TopicArgument) -> View:
    """Show the brokers of a topic, the offsets of its queues, and its consumer groups."""
    document = session.ask(lambda admin: _describe(admin, topic))
    return View(
        document,
        Fields.of("topic kind messages=message_count groups", document),
        Table(
            "broker=broker_name cluster addresses #read=read_queue_count #write=write_queue_count "
            "perm",
            document["brokers"],
            computed={
                "addresses": lambda broker: list(map("=".join, broker["addresses"].items())),
                "perm": _perm_text,
            },
        ),
        Table(
            "broker=broker_name #queue=queue_id #min=min_offset #max=max_offset "
            "#messages=message_count @last_stored=last_store_timestamp",
            document["queues"],
        ),
    )


async def _describe(admin: "Admin", topic: str) -> Document:
    from reput.format.names import kind_of

    route = await admin.topic_route(topic)
    queues = [
        {
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": offsets.min_offset,
            "max_offset": offsets.max_offset,
            "message_count": offsets.max_offset - offsets.min_offset,
            "last_store_timestamp": offsets.last_update_timestamp or None,
        }
        for queue, offsets in (await admin.topic_status(topic)).items()
    ]
    return {
        "topic": topic,
        "kind": kind_of(topic),
        "message_count": sum(int(queue["message_count"] or 0) for queue in queues),
        "groups": await admin.groups_of_topic(topic),
        "brokers": _brokers(route),
        "queues": queues,
    }


def _brokers(route: "TopicRoute") -> list[Document]:
    clusters = {broker.broker_name: broker.cluster for broker in route.data.broker_datas}
    return [
        {
            "broker_name": queues.broker_name,
            "cluster": clusters.get(queues.broker_name),
            "addresses": {
                str(broker_id): address
                for broker_id, address in sorted(route.brokers.get(queues.broker_name, {}).items())
            },
            "read_queue_count": queues.read_queue_nums,
            "write_queue_count": queues.write_queue_nums,
            "perm": queues.perm,
        }
        for queues in sorted(route.data.queue_datas, key=lambda queues: queues.broker_name)
    ]


# --- create, update, delete ---------------------------------------------------------------------

PermOption = Annotated[
    str | None, typer.Option(metavar="PERM", help="Permission of clients: r, w, rw or none.")
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="NAME=VALUE", help="Attribute of RocketMQ 5 brokers; repeatable."
    ),
]


@command(*MASTERS)
def create(
    session: Session,
    topic: TopicArgument,
    queues: Annotated[int, typer.Option(min=1, help="Queues on each broker.")] = 8,
    write_queues: Annotated[
        int | None, typer.Option(min=1, help="Queues to write to, if different.")
    ] = None,
    perm: PermOption = "rw",
    order: Annotated[bool, typer.Option("--order", help="Mark it as an ordered topic.")] = False,
    attribute: AttributeOption = None,
) -> View:
    """Create a topic on the brokers of a cluster, or on one broker.

    A topic that exists is refused. Waits until the name servers have the topic.
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
        names = await session.masters(admin)
        for name in names:
            if topic in await admin.topic_configs(name):
                exists = f"topic {topic} already exists on {name}"
                raise CommandFailed(f"{exists}; `reput topic update` changes it")
        if order:
            await _mark_ordered(admin, topic, dict.fromkeys(names, write_count))
        done = [await _put(admin, topic, name, wanted) for name in names]
        await _wait_until_known(admin, topic, session.timeout_s)
        return done

    return _receipt(topic, session.ask(work))


@command(*MASTERS)
def update(
    session: Session,
    topic: TopicArgument,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Queues on each broker, to read and to write.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=1, help="Queues to write to, if different.")
    ] = None,
    perm: PermOption = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Whether it is an ordered topic.")
    ] = None,
    attribute: AttributeOption = None,
) -> View:
    """Change a topic on the brokers that have it.

    Settings without an option remain unchanged.
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
        raise typer.BadParameter("give one of --queues, --write-queues, --perm and --order")

    async def work(admin: "Admin") -> list[Document]:
        from reput.client.core.route_cache import NoRoute

        changes = {}
        for name in await session.masters(admin):
            table = await admin.topic_configs(name)
            if topic in table:
                changes[name] = _settings(table[topic]) | {"attributes": {}} | wanted
        if not changes:
            raise NoRoute(topic)
        if any(settings["order"] for settings in changes.values()):
            counts = {name: settings["write_queue_count"] for name, settings in changes.items()}
            await _mark_ordered(admin, topic, counts)
        elif order is False:
            await admin.delete_kv(ORDER_TOPIC_CONFIG, topic)
        return [await _put(admin, topic, name, settings) for name, settings in changes.items()]

    return _receipt(topic, session.ask(work))


async def _mark_ordered(admin: "Admin", topic: str, queue_counts: dict[str, int]) -> None:
    """Register a topic as ordered at the name servers, from which brokers take the setting.

    Source: rocketmq 4.9.8 ``UpdateTopicSubCommand``, ``MQAdminImpl.createOrUpdateOrderConf``.
    """
    current = await admin.kv(ORDER_TOPIC_CONFIG, topic) or ""
    parts = dict(part.split(":", 1) for part in current.split(";") if ":" in part)
    parts |= {name: str(count) for name, count in queue_counts.items()}
    await admin.put_kv(ORDER_TOPIC_CONFIG, topic, ";".join(map(":".join, parts.items())))


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

    from reput.client.core.route_cache import NoRoute

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await admin.topic_route(topic)
                except NoRoute:
                    await asyncio.sleep(_RETRY_S)
                else:
                    return
    except TimeoutError:
        print_note(f"name servers do not have topic {topic} yet")


_RETRY_S = 0.05


def _receipt(topic: str, brokers: list[Document]) -> View:
    columns = "topic broker=broker_name #read=read_queue_count #write=write_queue_count perm order"
    computed: Computed = {"topic": lambda _: topic, "perm": _perm_text}
    return View({"topic": topic, "brokers": brokers}, Table(columns, brokers, computed=computed))


@command("yes", *CLUSTER)
def delete(session: Session, topic: TopicArgument, cluster: OfClusterOption = None) -> View:
    """Delete a topic with all of its messages.

    Without --yes it only shows the topic.
    """

    async def work(admin: "Admin") -> Document:
        document = await _describe(admin, topic)
        if session.is_done:
            await admin.delete_topic(topic, cluster=cluster)
            if await admin.kv(ORDER_TOPIC_CONFIG, topic) is not None:
                await admin.delete_kv(ORDER_TOPIC_CONFIG, topic)
        return document

    document = session.ask(work)
    label = "deleted" if session.is_done else "would_delete"
    keys = ("topic", "message_count", "groups", "brokers")
    return View(
        {"is_deleted": session.is_done, **{key: document[key] for key in keys}},
        Fields.of(
            f"{label}=topic messages=message_count brokers groups",
            document,
            {"brokers": lambda _: [broker["broker_name"] for broker in document["brokers"]]},
        ),
    )


# --- ordered topics -----------------------------------------------------------------------------


@command(*CLUSTER)
def order_config(
    session: Session,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic; without it, all topics.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="BROKER:COUNT", help="Number of queues on a broker; repeatable."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Make it unordered.")] = False,
) -> View:
    """Show or change the queues of ordered topics.

    Name servers keep this list, and producers and consumers use exactly these queues, even while a
    broker is down. `reput topic create --order` sets it for all brokers of a topic.
    """
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
            await admin.put_kv(ORDER_TOPIC_CONFIG, topic, ";".join(set_))
        if topic is not None and delete:
            await admin.delete_kv(ORDER_TOPIC_CONFIG, topic)
        return await admin.kv_of_namespace(ORDER_TOPIC_CONFIG)

    topics = [
        {"topic": name, "broker_name": part.rpartition(":")[0], "queue_count": int(count)}
        for name, value in sorted(session.ask(work).items())
        for part in value.split(";")
        if topic in (None, name) and (count := part.rpartition(":")[2]).isdecimal()
    ]
    columns = "topic broker=broker_name #queues=queue_count"
    return View({"topics": topics}, Table(columns, topics))


# --- permissions --------------------------------------------------------------------------------


def _parse_perm(text: str) -> int:
    names = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE, "none": 0}
    perm = names.get(text.lower())
    if text.isdigit() and int(text) in names.values():
        perm = int(text)
    if perm is None:
        raise InvalidOption("--perm", text, "r, w, rw, none, or 0, 2, 4, 6")
    return perm


def _perm_text(config: Document) -> str:
    perm = config["perm"]
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "none"


COMMANDS = {
    "list": list_topics,
    "show": show,
    "create": create,
    "update": update,
    "delete": delete,
    "stats": statistics.topic_stats,
    "order": order_config,
    "send": producers.send,
}
