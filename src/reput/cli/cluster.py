"""``reput cluster``: name servers, brokers, what brokers measure, and their settings."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import statistics, upkeep
from reput.cli.connecting import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    BrokerOption,
    JsonOption,
    NamesrvOption,
    TimeoutOption,
    ask,
    command_group,
    masters,
    parse_pairs,
)
from reput.errors import InvalidOption, RemotingError

if TYPE_CHECKING:
    from reput.client.admin import Admin

Document = dict[str, Any]
NameServersOption = Annotated[
    bool, typer.Option("--name-servers", help="The settings of name servers, not of a broker.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = command_group(
        app,
        "cluster",
        "Clusters: their brokers, how those are, and their settings.",
        {"show": show, "brokers": brokers, "counter": statistics.counter},
    )
    command_group(
        group,
        "config",
        "Settings of running brokers and name servers, under RocketMQ's names.",
        {"get": config_get, "set": config_set},
    )
    upkeep.register(group)


# --- show and brokers ---------------------------------------------------------------------------


def show(
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show name servers, clusters and brokers with their addresses.

    Only name servers are asked; `reput cluster brokers` asks the brokers.
    """
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: _describe(admin, namesrv))
    if json:
        printing.print_json(found)
        return
    printing.print_fields(
        {
            "name servers": " ".join(found["name_servers"]),
            "clusters": " ".join(one["cluster"] for one in found["clusters"]) or None,
            "brokers": sum(len(one["brokers"]) for one in found["clusters"]),
            "topics": found["topic_count"],
        }
    )
    rows = [
        [one["cluster"], broker["broker_name"], broker_id, address]
        for one in found["clusters"]
        for broker in one["brokers"]
        for broker_id, address in broker["addresses"].items()
    ]
    if rows:
        print()
        printing.print_table(["cluster", "broker", "#id", "address"], rows)


async def _describe(admin: "Admin", namesrv: str) -> Document:
    from reput.client.config import name_servers

    known = await admin.clusters()
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
                                known.broker_addr_table[name].broker_addrs.items()
                            )
                        },
                    }
                    for name in sorted(names)
                ],
            }
            for cluster, names in sorted(known.cluster_addr_table.items())
        ],
    }


def brokers(
    broker: Annotated[
        str | None,
        typer.Argument(metavar="[BROKER]", help="All that this one says of itself."),
    ] = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show how the brokers are: version, rates, messages today, disk.

    With the name or address of one broker: everything it measures of itself. A broker that does not
    answer is a row that says so, and makes the exit code 1.
    """
    from reput.cli import printing

    if broker is not None:
        status = ask(namesrv, timeout, lambda admin: admin.broker_status(broker))
        if json:
            printing.print_json({"broker": broker, "status": status})
        else:
            printing.print_fields(status)
        return
    found = ask(namesrv, timeout, _brokers)
    if json:
        printing.print_json({"brokers": found})
    else:
        _print_brokers(found)
    if any(one["problem"] for one in found):
        raise typer.Exit(1)


async def _brokers(admin: "Admin") -> list[Document]:
    import asyncio

    known = await admin.clusters()
    places = [
        (cluster, name, broker_id, address)
        for cluster, names in sorted(known.cluster_addr_table.items())
        for name in sorted(names)
        for broker_id, address in sorted(known.broker_addr_table[name].broker_addrs.items())
    ]

    async def status(address: str) -> dict[str, str] | RemotingError:
        try:
            return await admin.broker_status(address)
        except RemotingError as error:
            return error

    states = await asyncio.gather(*(status(address) for *_, address in places))
    return [
        {
            "cluster": cluster,
            "broker_name": name,
            "broker_id": broker_id,
            "address": address,
            **_status_document({} if isinstance(state, RemotingError) else state),
            "problem": str(state) if isinstance(state, RemotingError) else None,
        }
        for (cluster, name, broker_id, address), state in zip(places, states, strict=True)
    ]


def _status_document(status: dict[str, str]) -> Document:
    put_today = _difference(status, "msgPutTotalTodayNow", "msgPutTotalTodayMorning")
    got_today = _difference(status, "msgGetTotalTodayNow", "msgGetTotalTodayMorning")
    return {
        "version": status.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".") or None,
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
    """Return the first number of several, as brokers say rates: of 10 s, 60 s and 600 s."""
    words = (text or "").split()  # blanks only, of a broker that has just started
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _print_brokers(found: list[Document]) -> None:
    from reput.cli import printing

    clock = printing.Clock()
    printing.print_table(
        [
            "cluster",
            "broker",
            "#id",
            "address",
            "version",
            "#put/s",
            "#p99 ms",
            "#get/s",
            "#put today",
            "#got today",
            "#disk",
            "@up since",
            "problem",
        ],
        [
            [
                one["cluster"],
                one["broker_name"],
                one["broker_id"],
                one["address"],
                one["version"],
                _rate_text(one["put_tps"]),
                one["put_latency_99_ms"],
                _rate_text(one["get_tps"]),
                one["put_today_count"],
                one["got_today_count"],
                None if one["disk_ratio"] is None else f"{one['disk_ratio']:.0%}",
                clock.text(one["boot_timestamp"]),
                one["problem"] or "-",
            ]
            for one in found
        ],
    )


def _rate_text(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.1f}"


# --- settings -----------------------------------------------------------------------------------


def config_get(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings.")
    ] = None,
    broker: BrokerOption = None,
    name_servers: NameServersOption = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show the settings of a broker, or of a name server.

    --broker may be left out where there is but one.
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> tuple[str, dict[str, str]]:
        if name_servers:
            return "name server", await admin.name_server_config()
        name = await _one_broker(admin, broker)
        return name, await admin.broker_config(name)

    of, settings = ask(namesrv, timeout, work)
    for key in keys or ():
        if key not in settings:
            raise InvalidOption("KEY", key, f"a setting of {of} (without KEY they are all shown)")
    chosen = {key: settings[key] for key in keys or sorted(settings)}
    if json:
        printing.print_json({"of": of, "settings": chosen})
    else:
        printing.print_fields(chosen)


def config_set(
    pairs: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.")
    ],
    broker: BrokerOption = None,
    name_servers: NameServersOption = False,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Change settings of a running broker, or of all name servers.

    Shows what they were and what they are. A setting that the server does not take over is left at
    its old value, which is an error here.
    """
    from reput.cli import printing

    wanted = parse_pairs("KEY=VALUE", pairs)

    async def work(admin: "Admin") -> tuple[str, dict[str, str], dict[str, str]]:
        if name_servers:
            before = await admin.name_server_config()
            await admin.update_name_server_config(wanted)
            return "name servers", before, await admin.name_server_config()
        name = await _one_broker(admin, broker)
        before = await admin.broker_config(name)
        await admin.update_broker_config(name, wanted)
        return name, before, await admin.broker_config(name)

    of, before, after = ask(namesrv, timeout, work)
    rows = [(key, before.get(key), after.get(key)) for key in wanted]
    if json:
        settings = [{"key": key, "before": was, "after": now} for key, was, now in rows]
        printing.print_json({"of": of, "settings": settings})
    else:
        printing.print_table(["setting", "before", "after"], rows)
    refused = [key for key, value in wanted.items() if after.get(key) != value]
    if refused:
        raise InvalidOption("KEY=VALUE", " ".join(refused), f"settings that {of} can change now")


async def _one_broker(admin: "Admin", broker: str | None) -> str:
    """Return the broker that is meant: the one named, or the only one."""
    if broker is not None:
        return broker
    known = await admin.clusters()
    names = [name for one in sorted(known.cluster_addr_table) for name in masters(known, one, None)]
    if len(names) != 1:
        allowed = ", ".join(names) or "host:port: no broker is registered"
        raise InvalidOption("--broker", broker, allowed)
    return names[0]
