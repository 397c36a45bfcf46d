"""Maintenance of a cluster: write permission, cleaning up, and the key-value table."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.options import CLUSTER, MASTERS, Session, command
from reput.cli.printing import Fields, Table, View
from reput.errors import InvalidOption, NotInStore

if TYPE_CHECKING:
    from reput.client.admin import Admin

NamespaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="The namespace of the table.")
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]


# --- write permission ---------------------------------------------------------------------------


class Switch(enum.StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


@command(*CLUSTER)
def write_permission(
    session: Session,
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", help="The name of the broker, not its address.")
    ],
    switch: Annotated[
        Switch, typer.Argument(metavar="on|off", help="Whether producers may send to it.")
    ],
) -> View:
    """Remove a broker from the routes of producers, or restore it.

    Name servers keep the change until the broker registers a change of its topics. Consumers are
    not affected. Before stopping a broker, set it off and wait until producers have fetched new
    routes (30 s).
    """

    async def work(admin: "Admin") -> int:
        brokers = (await admin.clusters()).broker_addr_table
        if broker not in brokers:
            raise InvalidOption(
                "BROKER", broker, ", ".join(sorted(brokers)) or "none is registered"
            )
        change = admin.wipe_write_perm if switch is Switch.OFF else admin.add_write_perm
        return await change(broker)

    count = session.ask(work)
    document = {"broker_name": broker, "write_permission": str(switch), "topic_count": count}
    names = "broker=broker_name write_permission topics=topic_count"
    return View(document, Fields.of(names, document))


# --- cleaning up --------------------------------------------------------------------------------


class Waste(enum.StrEnum):
    """Kinds of data that brokers can clean."""

    QUEUES = "queues"
    TOPICS = "topics"
    LOG = "log"


@command("yes", *MASTERS)
def clean(
    session: Session,
    what: Annotated[
        Waste,
        typer.Argument(
            metavar="queues|topics|log",
            help="Queues whose messages have all expired, queues of deleted topics, or expired log "
            "files.",
        ),
    ],
) -> View:
    """Let brokers delete expired data now.

    queues: queues whose messages have all expired. topics: queues of deleted topics. log: files
    older than fileReservedTime, regardless of deleteWhen. Without --yes it only shows the brokers.
    """

    async def work(admin: "Admin") -> list[str]:
        names = await session.masters(admin)
        if session.is_done:
            for name in names:
                await {
                    Waste.QUEUES: admin.clean_expired_queues,
                    Waste.TOPICS: admin.clean_unused_topics,
                    Waste.LOG: admin.delete_expired_log,
                }[what](broker=name)
        return names

    names = session.ask(work)
    document = {"is_done": session.is_done, "what": str(what), "brokers": names}
    label = "cleaned" if session.is_done else "would_clean"
    return View(document, Fields.of(f"{label}=what brokers", document))


# --- the key-value table ------------------------------------------------------------------------


@command(*CLUSTER)
def kv_list(
    session: Session,
    namespace: NamespaceArgument,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only this key.")] = None,
) -> View:
    """Show the keys and values of a namespace.

    ORDER_TOPIC_CONFIG is RocketMQ's namespace of ordered topics; see `reput topic order`.
    """
    table = session.ask(lambda admin: admin.kv_of_namespace(namespace))
    if key is not None:
        if key not in table:
            raise NotInStore(f"namespace {namespace} has no key {key}")
        table = {key: table[key]}
    pairs = sorted(table.items())
    return View({"namespace": namespace, "table": dict(pairs)}, Table(["key", "value"], pairs))


@command(*CLUSTER)
def kv_set(
    session: Session,
    namespace: NamespaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value.")],
) -> View:
    """Set a value at all name servers. Shows the values before and after."""

    async def work(admin: "Admin") -> tuple[str | None, str | None]:
        before = await admin.kv(namespace, key)
        await admin.put_kv(namespace, key, value)
        return before, await admin.kv(namespace, key)

    return _change(namespace, key, *session.ask(work))


@command("yes", *CLUSTER)
def kv_delete(session: Session, namespace: NamespaceArgument, key: KeyArgument) -> View:
    """Delete a key at all name servers. Without --yes it only shows the value."""

    async def work(admin: "Admin") -> tuple[str | None, str | None]:
        before = await admin.kv(namespace, key)
        if before is None:
            raise NotInStore(f"namespace {namespace} has no key {key}")
        if session.is_done:
            await admin.delete_kv(namespace, key)
        return before, await admin.kv(namespace, key)

    return _change(namespace, key, *session.ask(work))


def _change(namespace: str, key: str, before: str | None, after: str | None) -> View:
    return View(
        {"namespace": namespace, "key": key, "before": before, "after": after},
        Table(["key", "before", "after"], [[key, before, after]]),
    )


COMMANDS = {
    "write-permission": write_permission,
    "clean": clean,
    "kv": (
        "Key-value table of the name servers, which clients and brokers read.",
        {"list": kv_list, "set": kv_set, "delete": kv_delete},
    ),
}
