"""Counters of brokers: ``reput topic stats`` and ``reput cluster counter``."""

from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.connecting import kind_in
from reput.cli.options import CLUSTER, MASTERS, OfClusterOption, Session, command
from reput.cli.printing import Document, Table, View
from reput.errors import NotInStore

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.format.bodies import BrokerStats


# --- topics -------------------------------------------------------------------------------------


@command(*CLUSTER)
def topic_stats(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="The topic; without it, all but system topics."),
    ] = None,
    cluster: OfClusterOption = None,
) -> View:
    """Show the rates at which producers put to topics and groups get from them.

    Rates are of the last minute, counts of the last 24 hours, over all brokers. The lag is the
    number of messages that a group has not consumed yet.
    """
    topics = session.ask(lambda admin: _topic_stats(admin, topic, cluster))
    return View(
        {"topics": topics},
        Table(
            "topic #put/s=put_tps:.1f #put_24_h=put_day_count group #get/s=get_tps:.1f "
            "#got_24_h=got_day_count #lag",
            [entry | group for entry in topics for group in entry["groups"] or [_NO_GROUP]],
        ),
    )


_NO_GROUP = dict.fromkeys(("group", "get_tps", "got_day_count", "lag"))


async def _topic_stats(admin: "Admin", topic: str | None, cluster: str | None) -> list[Document]:
    from reput.format import names

    info = await admin.clusters()
    selected = [topic] if topic is not None else await admin.topics(cluster=cluster)
    topics = []
    for name in selected:
        if topic is None and kind_in(info, name) == "system":
            continue
        brokers = sorted((await admin.topic_route(name)).brokers)
        tps, day_count = await _totals(admin, brokers, "TOPIC_PUT_NUMS", name)
        groups = []
        for group in await admin.groups_of_topic(name):
            get_tps, got_count = await _totals(admin, brokers, "GROUP_GET_NUMS", f"{name}@{group}")
            stats = await admin.consume_stats(group, name)
            groups.append(
                {
                    "group": group,
                    "get_tps": get_tps,
                    "got_day_count": got_count,
                    "lag": sum(queue.lag for queue in stats.queues if queue.queue.topic == name),
                }
            )
        topics.append(
            {
                "topic": name,
                "kind": names.kind_of(name),
                "put_tps": tps,
                "put_day_count": day_count,
                "groups": groups,
            }
        )
    return topics


async def _totals(admin: "Admin", brokers: list[str], name: str, key: str) -> tuple[float, int]:
    """Return a counter's rate of the last minute and its sum of 24 hours, over brokers."""
    tps, count = 0.0, 0
    for broker in brokers:
        stats = await admin.broker_stats(broker, name, key)
        if stats is not None:
            tps += stats.stats_minute.tps
            count += _day_count(stats)
    return tps, count


def _day_count(stats: "BrokerStats") -> int:
    """Return the count of the largest window so far, up to 24 hours, as mqadmin statsAll does."""
    for window in (stats.stats_day, stats.stats_hour, stats.stats_minute):
        if window.sum:
            return window.sum
    return 0


# --- counters -----------------------------------------------------------------------------------


@command(*MASTERS)
def counter(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="TOPIC_PUT_NUMS, GROUP_GET_SIZE, ...")
    ],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A topic, TOPIC@GROUP, or the cluster.")
    ],
) -> View:
    """Show a counter of the brokers, by RocketMQ's name: sum, rate and average of its windows.

    The windows are the last minute, hour and day; they are sampled every 10 s, 10 min and 1 h.
    """

    async def work(admin: "Admin", broker_name: str) -> list[Document]:
        stats = await admin.broker_stats(broker_name, name, key)
        if stats is None:
            return []
        windows = {
            "minute": stats.stats_minute,
            "hour": stats.stats_hour,
            "day": stats.stats_day,
        }
        return [
            {
                "broker_name": broker_name,
                "window": window,
                "sum": item.sum,
                "tps": item.tps,
                "average": item.avgpt,
            }
            for window, item in windows.items()
        ]

    windows = session.ask_masters(work)
    if not windows:
        raise NotInStore(f"no broker has counted {name} of {key} since it started")
    columns = "broker=broker_name window #sum #a_second=tps:.2f #a_time=average:.2f"
    return View({"name": name, "key": key, "windows": windows}, Table(columns, windows))
