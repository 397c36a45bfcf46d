"""What an operator does to a cluster: write permission, cleaning up, and the key-value table."""

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.connecting import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    BrokerOption,
    ClusterOption,
    JsonOption,
    NamesrvOption,
    TimeoutOption,
    YesOption,
    ask,
    command_group,
    masters,
    print_preview_note,
)
from reput.errors import InvalidOption, NotInStore

if TYPE_CHECKING:
    from reput.client.admin import Admin

Document = dict[str, Any]
NamespaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Which part of the table.")
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]


def register(cluster: typer.Typer) -> None:
    """Add the commands to those of ``reput cluster``."""
    cluster.command("write-permission")(write_permission)
    cluster.command("clean")(clean)
    command_group(
        cluster,
        "kv",
        "The key-value table of name servers, which clients and brokers read.",
        {"list": kv_list, "set": kv_set, "delete": kv_delete},
    )


# --- write permission ---------------------------------------------------------------------------


class Switch(enum.StrEnum):
    """Whether something is so."""

    ON = "on"
    OFF = "off"


def write_permission(
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", help="The name of the broker, not its address.")
    ],
    switch: Annotated[
        Switch, typer.Argument(metavar="on|off", help="Whether producers may send to it.")
    ],
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Take a broker out of the routes of producers, or put it back.

    Name servers note it, until the broker registers a change of its topics; consumers go on. Before
    a broker is stopped: off, and wait until producers have fetched new routes (30 s).
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> int:
        known = (await admin.clusters()).broker_addr_table
        if broker not in known:
            raise InvalidOption("BROKER", broker, ", ".join(sorted(known)) or "none is registered")
        tell = admin.wipe_write_perm if switch is Switch.OFF else admin.add_write_perm
        return await tell(broker)

    count = ask(namesrv, timeout, work)
    found = {"broker_name": broker, "write_permission": str(switch), "topic_count": count}
    if json:
        printing.print_json(found)
    else:
        printing.print_fields({"broker": broker, "write permission": switch, "topics": count})


# --- cleaning up --------------------------------------------------------------------------------


class Waste(enum.StrEnum):
    """What can be cleaned."""

    QUEUES = "queues"
    TOPICS = "topics"
    LOG = "log"


def clean(
    what: Annotated[
        Waste,
        typer.Argument(
            metavar="queues|topics|log",
            help="Queues whose messages have all expired, queues of topics that are gone, or log "
            "files past their time.",
        ),
    ],
    yes: YesOption = False,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Let brokers delete now what they would delete by themselves at some time, or never.

    queues: those whose messages have all expired. topics: queues of topics that are gone. log:
    files older than fileReservedTime, whatever deleteWhen says. Without --yes it only names the
    brokers.
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> list[str]:
        names = masters(await admin.clusters(), cluster, broker)
        if yes:
            for name in names:
                await {
                    Waste.QUEUES: admin.clean_expired_queues,
                    Waste.TOPICS: admin.clean_unused_topics,
                    Waste.LOG: admin.delete_expired_log,
                }[what](broker=name)
        return names

    names = ask(namesrv, timeout, work)
    if json:
        printing.print_json({"is_done": yes, "what": str(what), "brokers": names})
    else:
        label = "cleaned" if yes else "would clean"
        printing.print_fields({label: what, "brokers": " ".join(names) or None})
    if not yes:
        print_preview_note()


# --- the key-value table ------------------------------------------------------------------------


def kv_list(
    namespace: NamespaceArgument,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only this key.")] = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show the keys and values of a namespace.

    ORDER_TOPIC_CONFIG is RocketMQ's own: topics whose order matters; see `reput topic order`.
    """
    from reput.cli import printing

    table = ask(namesrv, timeout, lambda admin: admin.kv_of_namespace(namespace))
    if key is not None:
        if key not in table:
            raise NotInStore(f"namespace {namespace} has no key {key}")
        table = {key: table[key]}
    if json:
        printing.print_json({"namespace": namespace, "table": dict(sorted(table.items()))})
    else:
        printing.print_table(["key", "value"], sorted(table.items()))


def kv_set(
    namespace: NamespaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value.")],
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Set a value at all name servers. Shows what it was and what it is."""

    async def work(admin: "Admin") -> tuple[str | None, str | None]:
        before = await admin.kv(namespace, key)
        await admin.put_kv(namespace, key, value)
        return before, await admin.kv(namespace, key)

    _print_change(namespace, key, *ask(namesrv, timeout, work), as_json=json)


def kv_delete(
    namespace: NamespaceArgument,
    key: KeyArgument,
    yes: YesOption = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Delete a key at all name servers. Without --yes it only shows it."""

    async def work(admin: "Admin") -> tuple[str | None, str | None]:
        before = await admin.kv(namespace, key)
        if before is None:
            raise NotInStore(f"namespace {namespace} has no key {key}")
        if yes:
            await admin.delete_kv(namespace, key)
        return before, await admin.kv(namespace, key)

    _print_change(namespace, key, *ask(namesrv, timeout, work), as_json=json)
    if not yes:
        print_preview_note()


def _print_change(
    namespace: str, key: str, before: str | None, after: str | None, *, as_json: bool
) -> None:
    from reput.cli import printing

    if as_json:
        found = {"namespace": namespace, "key": key, "before": before, "after": after}
        printing.print_json(found)
    else:
        printing.print_table(["key", "before", "after"], [[key, before, after]])
