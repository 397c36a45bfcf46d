"""``reput cluster``: name servers, brokers, their runtime info and their settings."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from reput import remote_settings
from reput.cli import draining, replication, statistics, upkeep
from reput.cli.connecting import all_masters
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import CLUSTER, BrokerOption, Session, command, parse_pairs
from reput.cli.printing import Document, Fields, Table, View, print_note
from reput.errors import InvalidOption, RemotingError

if TYPE_CHECKING:
    from reput.client.admin import Admin

NameServersOption = Annotated[
    bool, typer.Option("--name-servers", help="Settings of the name servers, not of a broker.")
]


# --- show and brokers ---------------------------------------------------------------------------


@command(*CLUSTER)
def show(session: Session) -> View:
    """Show name servers, clusters and brokers with their addresses.

    As the name servers have them; `reput cluster brokers` queries the brokers.
    """
    document = session.ask(lambda admin: _describe(admin, session.namesrv))
    clusters = document["clusters"]
    rows = [
        [cluster["cluster"], broker["broker_name"], broker_id, address]
        for cluster in clusters
        for broker in cluster["brokers"]
        for broker_id, address in broker["addresses"].items()
    ]
    return View(
        document,
        Fields(
            {
                "name servers": document["name_servers"],
                "clusters": [cluster["cluster"] for cluster in clusters],
                "brokers": sum(len(cluster["brokers"]) for cluster in clusters),
                "topics": document["topic_count"],
            }
        ),
        Table(["cluster", "broker", "#id", "address"], rows, is_optional=True),
    )


async def _describe(admin: "Admin", namesrv: str) -> Document:
    from reput.client.config import name_servers

    info = await admin.clusters()
    return {
        "name_servers": list(name_servers(namesrv)),
        "topic_count": len(await admin.topics()),
        "clusters": [
            {
                "cluster": cluster,
                "brokers": [
                    {
                        "broker_name": name,
                        "addresses": {
                            str(broker_id): address
                            for broker_id, address in sorted(
                                info.broker_addr_table[name].broker_addrs.items()
                            )
                        },
                    }
                    for name in sorted(names)
                ],
            }
            for cluster, names in sorted(info.cluster_addr_table.items())
        ],
    }


@command(*CLUSTER)
def brokers(
    session: Session,
    broker: Annotated[
        str | None,
        typer.Argument(metavar="[BROKER]", help="All runtime info of this broker."),
    ] = None,
) -> View:
    """Show the state of the brokers: version, rates, messages today, disk.

    With the name or address of one broker: all of its runtime info. A broker that does not answer
    is a row with the reason, and makes the exit code 1.
    """
    if broker is not None:
        status = session.ask(lambda admin: admin.broker_status(broker))
        return View({"broker": broker, "status": status}, Fields(status))
    brokers = session.ask(_brokers)
    return View(
        {"brokers": brokers},
        Table(
            "cluster broker=broker_name #id=broker_id address version reput=reput_version "
            "#put/s=put_tps:.1f #p99_ms=put_latency_99_ms #get/s=get_tps:.1f "
            "#put_today=put_today_count #got_today=got_today_count #disk=disk_ratio:.0% "
            "@up_since=boot_timestamp problem",
            brokers,
        ),
        exit_code=EXIT_DAMAGE if any(row["problem"] for row in brokers) else 0,
    )


async def _brokers(admin: "Admin") -> list[Document]:
    import asyncio

    info = await admin.clusters()
    members = [
        (cluster, name, broker_id, address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]

    async def status(address: str) -> dict[str, str] | RemotingError:
        try:
            return await admin.broker_status(address)
        except RemotingError as error:
            return error

    states = await asyncio.gather(*(status(address) for *_, address in members))
    return [
        {
            "cluster": cluster,
            "broker_name": name,
            "broker_id": broker_id,
            "address": address,
            **_status_document({} if isinstance(state, RemotingError) else state),
            "problem": str(state) if isinstance(state, RemotingError) else None,
        }
        for (cluster, name, broker_id, address), state in zip(members, states, strict=True)
    ]


def _status_document(status: dict[str, str]) -> Document:
    put_today = _difference(status, "msgPutTotalTodayNow", "msgPutTotalTodayMorning")
    got_today = _difference(status, "msgGetTotalTodayNow", "msgGetTotalTodayMorning")
    return {
        "version": status.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".") or None,
        "reput_version": status.get("reputVersion"),
        "put_tps": _first_number(status.get("putTps")),
        "get_tps": _first_number(status.get("getTransferedTps") or status.get("getTransferredTps")),
        "put_latency_99_ms": _first_number(status.get("putLatency99")),
        "put_today_count": put_today,
        "got_today_count": got_today,
        "disk_ratio": _first_number(status.get("commitLogDiskRatio")),
        "boot_timestamp": int(status["bootTimestamp"]) if "bootTimestamp" in status else None,
        "earliest_store_timestamp": _positive(status.get("earliestMessageTimeStamp")),
    }


def _difference(status: dict[str, str], now: str, before: str) -> int | None:
    if now not in status or before not in status:
        return None
    return int(status[now]) - int(status[before])


def _first_number(text: str | None) -> float | None:
    """Return the first number of a list, such as the rates of 10 s, 60 s and 600 s."""
    words = (text or "").split()  # only spaces if the broker has just started
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# --- settings -----------------------------------------------------------------------------------


@command(*CLUSTER)
def config_get(
    session: Session,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings.")
    ] = None,
    broker: BrokerOption = None,
    name_servers: NameServersOption = False,
) -> View:
    """Show the settings of a broker, or of a name server.

    --broker may be omitted if there is only one broker.
    """

    async def work(admin: "Admin") -> tuple[str, dict[str, str]]:
        if name_servers:
            return "name server", await admin.name_server_config()
        name = await _one_broker(admin, broker)
        return name, await admin.broker_config(name)

    server, settings = session.ask(work)
    for key in keys or ():
        if key not in settings:
            raise InvalidOption("KEY", key, f"a setting of {server} (no KEY: show them all)")
    chosen = {key: settings[key] for key in keys or sorted(settings)}
    return View({"of": server, "settings": chosen}, Fields(chosen))


@command(*CLUSTER)
def config_set(
    session: Session,
    pairs: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.")
    ],
    broker: BrokerOption = None,
    name_servers: NameServersOption = False,
) -> View:
    """Change settings of a running broker, or of all name servers.

    Shows the values before and after, and when the new ones are in force: now; now, lost at a
    restart; after a restart; or never, as the broker has no broker.conf. Unknown (-) for name
    servers and brokers of RocketMQ. It is an error if a server leaves a setting at its old
    value.
    """
    wanted = parse_pairs("KEY=VALUE", pairs)

    async def work(admin: "Admin") -> tuple[str, dict[str, str], dict[str, str], str]:
        if name_servers:
            before = await admin.name_server_config()
            await admin.update_name_server_config(wanted)
            return "name servers", before, await admin.name_server_config(), ""
        name = await _one_broker(admin, broker)
        before = await admin.broker_config(name)
        note = await admin.update_broker_config(name, wanted)
        return name, before, await admin.broker_config(name), note

    server, before, after, note = session.ask(work)
    is_known = not name_servers and remote_settings.KEY in before  # only brokers of reput have it
    settings = [
        {
            "key": key,
            "before": before.get(key),
            "after": after.get(key),
            "in_force": _in_force(key, note) if is_known else None,
        }
        for key in wanted
    ]
    refused = [key for key, value in wanted.items() if after.get(key) != value]
    allowed = f"settings that {server} can change now"
    if note:
        print_note(f"{server}: {note}")
    return View(
        {"of": server, "settings": settings, "note": note or None},
        Table("setting=key before after in_force", settings),
        failure=InvalidOption("KEY=VALUE", " ".join(refused), allowed) if refused else None,
    )


def _in_force(key: str, note: str) -> str:
    """Return when a changed setting is in force, from the note of a broker of reput."""
    late = re.search("in force after a restart: ([^;]+)", note)
    is_late = late is not None and key in late[1].split(", ")
    if "not written" in note:
        return "never" if is_late else "now, lost at a restart"
    return "after a restart" if is_late else "now"


async def _one_broker(admin: "Admin", broker: str | None) -> str:
    """Return the named broker, or the only one."""
    if broker is not None:
        return broker
    names = all_masters(await admin.clusters())
    if len(names) != 1:
        allowed = ", ".join(names) or "host:port: no broker is registered"
        raise InvalidOption("--broker", broker, allowed)
    return names[0]


COMMANDS = {
    "show": show,
    "brokers": brokers,
    "counter": statistics.counter,
    "config": (
        "Settings of running brokers and name servers, under RocketMQ's names.",
        {"get": config_get, "set": config_set},
    ),
    **replication.COMMANDS,
    **draining.COMMANDS,
    **upkeep.COMMANDS,
}
