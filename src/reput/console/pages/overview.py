"""The overview: problems first, then what goes in and out."""

from dataclasses import dataclass

from reput.console import history
from reput.console.access import User
from reput.console.cluster import WatchedCluster
from reput.console.listing import Listing
from reput.console.page import Page, Query, View
from reput.console.pages.brokers import BrokerRow, rows_of
from reput.console.rows import NOT_CONSUMED, GroupRow
from reput.html.texts import time_text

SHOWN = 8
"""Rows of each list on the overview."""
DISK_SHARE_WARN = 0.75
"""Used share of a disk above which it is a problem."""


@dataclass(frozen=True, slots=True)
class OverviewProblem:
    """A problem, with the page about it."""

    text: str
    names: tuple[str, ...]
    """Parts of the path of the page about it."""


async def page(view: View) -> Page:
    """Return the overview."""
    cluster = view.parts.cluster
    topics, groups = cluster.rows.topics(), cluster.rows.groups()
    topic_counts = topics.choose(Query({}), view.user.topics, view.user.sees_topic).counts
    choice = groups.choose(Query({}), view.user.groups, view.user.sees_group)
    user_groups = groups.of(choice.names)
    lagging = _largest(groups, "lag", view.user)
    dead = _largest(groups, "dead_letters", view.user)
    cluster.note_viewed(groups=[row.name for row in (*lagging, *dead)])
    brokers = rows_of(cluster, view.now_ms)
    data = {
        "namesrv": view.parts.namesrv,
        "listed_ms": cluster.snapshot.listed_ms,
        "problems": _problems(cluster, brokers, user_groups),
        "brokers": brokers,
        "topic_count": topic_counts["user"],
        "group_count": len(user_groups),
        "lagging": [row.seen_by(view.user) for row in lagging],
        "dead": [row.seen_by(view.user) for row in dead],
        "series": {name: _sum_of(cluster, name, view.now_ms) for name in ("in", "out")},
        "step_ms": history.FINE_MS,
    }
    return Page("overview.html.j2", "Overview", data)


def _largest(groups: Listing[GroupRow], field: str, user: User) -> list[GroupRow]:
    """Return the groups of applications with the largest values of a field, without zeros."""
    query = Query({"sort": [f"-{field}"]})
    names = groups.choose(query, user.groups, user.sees_group).names[:SHOWN]
    rows = groups.of(names)
    return [row for row in rows if isinstance(value := getattr(row, field), int) and value]


def _problems(
    cluster: WatchedCluster, brokers: list[BrokerRow], groups: list[GroupRow]
) -> list[OverviewProblem]:
    """Return the problems, the worst first."""
    snapshot = cluster.snapshot
    problems = []
    if snapshot.name_server_problem:
        problems.append(
            OverviewProblem(f"Name servers: {snapshot.name_server_problem}", ("brokers",))
        )
    elif not snapshot.brokers and snapshot.listed_ms:
        problems.append(OverviewProblem("No broker is registered", ("brokers",)))
    for row in brokers:
        place = ("brokers", row.name)
        if row.state == "silent":
            since = time_text(row.answer_ms, "seconds") if row.answer_ms else "its start here"
            problems.append(
                OverviewProblem(f"{row.name} ({row.address}) is silent since {since}", place)
            )
        elif row.state == "gone":
            problems.append(OverviewProblem(f"{row.name} is no longer registered", place))
        elif row.state == "refuses":
            problems.append(OverviewProblem(f"{row.name} refuses: {row.problem}", place))
        if isinstance(row.disk_share, float) and row.disk_share >= DISK_SHARE_WARN:
            text = f"The disk of {row.name} is {100 * row.disk_share:.0f} % full"
            problems.append(OverviewProblem(text, place))
    growing = sorted(row.name for row in groups if row.trend == "growing")
    problems += [
        OverviewProblem(f"The lag of group {name} is growing", ("groups", name))
        for name in growing[:SHOWN]
    ]
    if len(growing) > SHOWN:
        text = f"The lags of {len(growing) - SHOWN} more groups are growing"
        problems.append(OverviewProblem(text, ("groups",)))
    return problems + _not_consumed([row.name for row in groups if row.trend == NOT_CONSUMED])


def _not_consumed(groups: list[str]) -> list[OverviewProblem]:
    """Return one line about all groups that have messages to consume, and no members."""
    if not groups:
        return []
    if len(groups) == 1:
        text = f"Group {groups[0]} is not consumed: it has a lag, and no members"
        return [OverviewProblem(text, ("groups", groups[0]))]
    shown = ", ".join(sorted(groups)[:SHOWN])
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    text = f"{len(groups)} groups are not consumed: {shown}{more} have a lag, and no members"
    return [OverviewProblem(text, ("groups",))]


def _sum_of(cluster: WatchedCluster, series: str, now_ms: int) -> list[float | None]:
    """Return the total rates of all masters; None where a rate is unknown."""
    hours = [
        cluster.history.hour((series, facts.place.name), now_ms)
        for facts in cluster.snapshot.masters()
    ]
    totals: list[float | None] = []
    for values in zip(*hours, strict=True):
        known = [value for value in values if value is not None]
        totals.append(sum(known) if len(known) == len(values) else None)
    return totals
