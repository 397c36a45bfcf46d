"""What brokers count and measure: ``topic stats``, ``cluster counter``, ``delay list``."""

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
    ask,
    command_group,
    masters,
)
from reput.errors import NotInStore

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.format.bodies import BrokerStats

Document = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the commands that are not of another group."""
    command_group(
        app,
        "delay",
        "Delayed messages: how many wait, and how long.",
        {"list": delay_list},
    )


# --- topics -------------------------------------------------------------------------------------


def topic_stats(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="This one; all but the system's if none."),
    ] = None,
    cluster: ClusterOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show how much goes into topics, and how much groups get out of them.

    Rates are of the last minute, counts of the last 24 hours; of all brokers together. The lag is
    what a group has not consumed yet.
    """
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: _topic_stats(admin, topic, cluster))
    if json:
        printing.print_json({"topics": found})
        return
    rows = []
    for one in found:
        put = [one["topic"], f"{one['put_tps']:.1f}", one["put_day_count"]]
        groups = one["groups"] or [None]
        for group in groups:
            got: list[object] = [None] * 4
            if group is not None:
                got = [
                    group["group"],
                    f"{group['get_tps']:.1f}",
                    group["got_day_count"],
                    group["lag"],
                ]
            rows.append([*put, *got])
    columns = ["topic", "#put/s", "#put 24 h", "group", "#get/s", "#got 24 h", "#lag"]
    printing.print_table(columns, rows)


async def _topic_stats(admin: "Admin", topic: str | None, cluster: str | None) -> list[Document]:
    from reput.format import names

    known = await admin.clusters()
    own = known.cluster_addr_table.keys() | known.broker_addr_table.keys()
    wanted = [topic] if topic is not None else await admin.topics(cluster=cluster)
    found = []
    for name in wanted:
        kind = names.kind_of(name)
        is_left_out = kind == "system" or name in own or name.endswith("_REPLY_TOPIC")
        if topic is None and is_left_out:
            continue
        brokers = sorted((await admin.topic_route(name)).brokers)
        tps, day_count = await _sums(admin, brokers, "TOPIC_PUT_NUMS", name)
        groups = []
        for group in await admin.groups_of_topic(name):
            get_tps, got_count = await _sums(admin, brokers, "GROUP_GET_NUMS", f"{name}@{group}")
            stats = await admin.consume_stats(group, name)
            groups.append(
                {
                    "group": group,
                    "get_tps": get_tps,
                    "got_day_count": got_count,
                    "lag": sum(one.lag for one in stats.queues if one.queue.topic == name),
                }
            )
        found.append(
            {
                "topic": name,
                "kind": kind,
                "put_tps": tps,
                "put_day_count": day_count,
                "groups": groups,
            }
        )
    return found


async def _sums(admin: "Admin", brokers: list[str], name: str, key: str) -> tuple[float, int]:
    """Return a counter's rate of the last minute and its sum of 24 hours, of brokers together."""
    tps, count = 0.0, 0
    for broker in brokers:
        stats = await admin.broker_stats(broker, name, key)
        if stats is not None:
            tps += stats.stats_minute.tps
            count += _day_count(stats)
    return tps, count


def _day_count(stats: "BrokerStats") -> int:
    """Return the sum of 24 hours: windows that are young have it first. As mqadmin statsAll."""
    for window in (stats.stats_day, stats.stats_hour, stats.stats_minute):
        if window.sum:
            return window.sum
    return 0


# --- counters -----------------------------------------------------------------------------------


def counter(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="TOPIC_PUT_NUMS, GROUP_GET_SIZE, ...")
    ],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A topic, TOPIC@GROUP, or the cluster.")
    ],
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show a counter of the brokers, under RocketMQ's names: sum, rate and size of its windows.

    The windows are the last minute, hour and day; they are sampled every 10 s, 10 min and 1 h.
    """
    from reput.cli import printing

    async def work(admin: "Admin") -> list[Document]:
        found = []
        for one in masters(await admin.clusters(), cluster, broker):
            stats = await admin.broker_stats(one, name, key)
            if stats is None:
                continue
            windows = {
                "minute": stats.stats_minute,
                "hour": stats.stats_hour,
                "day": stats.stats_day,
            }
            found += [
                {
                    "broker_name": one,
                    "window": window,
                    "sum": item.sum,
                    "tps": item.tps,
                    "average": item.avgpt,
                }
                for window, item in windows.items()
            ]
        return found

    found = ask(namesrv, timeout, work)
    if not found:
        raise NotInStore(f"no broker has counted {name} of {key} since it started")
    if json:
        printing.print_json({"name": name, "key": key, "windows": found})
        return
    printing.print_table(
        ["broker", "window", "#sum", "#a second", "#a time"],
        [
            [
                one["broker_name"],
                one["window"],
                one["sum"],
                f"{one['tps']:.2f}",
                f"{one['average']:.2f}",
            ]
            for one in found
        ],
    )


# --- delayed messages ---------------------------------------------------------------------------


def delay_list(
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show the delay levels that messages were sent with: how many wait, and were delivered."""
    from reput.cli import printing

    async def work(admin: "Admin") -> list[Document]:
        found = []
        for one in masters(await admin.clusters(), cluster, broker):
            found += await _levels(admin, one)
        return found

    found = ask(namesrv, timeout, work)
    if json:
        printing.print_json({"levels": found})
        return
    printing.print_table(
        ["broker", "#level", "delay", "#waiting", "#delivered"],
        [
            [
                one["broker_name"],
                one["level"],
                one["delay"],
                one["waiting_count"],
                one["delivered_count"],
            ]
            for one in found
        ],
    )


async def _levels(admin: "Admin", broker: str) -> list[Document]:
    """Return the delay levels of a broker that have had messages: level n is queue n - 1.

    What is delivered a broker says as ``scheduleMessageOffset_n``, some only after the first.
    """
    from reput.client.core.route_cache import NoRoute
    from reput.format import names

    try:
        queues = await admin.topic_status(names.SCHEDULE_TOPIC)
    except NoRoute:
        return []
    status = await admin.broker_status(broker)
    delays = (await admin.broker_config(broker)).get("messageDelayLevel", "").split()
    found = []
    for queue, one in queues.items():
        if queue.broker_name != broker or not one.max_offset:
            continue
        level = queue.queue_id + 1
        reached, _, _ = status.get(f"scheduleMessageOffset_{level}", "").partition(",")
        delivered_count = max(int(reached or 0), one.min_offset)
        found.append(
            {
                "broker_name": broker,
                "level": level,
                "delay": delays[level - 1] if level <= len(delays) else None,
                "waiting_count": one.max_offset - delivered_count,
                "delivered_count": delivered_count,
            }
        )
    return found
