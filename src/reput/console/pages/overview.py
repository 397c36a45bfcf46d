"""The overview: problems first, then what goes in and out."""

from dataclasses import dataclass

from reput.console import history
from reput.console.cluster import WatchedCluster
from reput.console.page import Page, View
from reput.console.pages.brokers import BrokerRow, rows_of
from reput.console.rows import GroupRow
from reput.html.texts import time_text

SHOWN = 8
"""Rows of each list on the overview."""
DISK_SHARE_WARN = 0.75
"""Used share of a disk from which on it is a problem."""


@dataclass(frozen=True, slots=True)
class OverviewProblem:
    """Something that is wrong, and where to look."""

    text: str
    names: tuple[str, ...]
    """Parts of the path of the page about it."""


async def page(view: View) -> Page:
    """Return the overview."""
    cluster = view.parts.cluster
    topics = [row for name, row in cluster.rows.topics().items() if view.user.sees_topic(name)]
    groups = [row for name, row in cluster.rows.groups().items() if view.user.sees_group(name)]
    user_groups = [row for row in groups if row.kind == "user"]
    lagging = sorted(
        (row for row in user_groups if isinstance(row.lag, int) and row.lag),
        key=lambda row: (-row.lag if isinstance(row.lag, int) else 0, row.name),
    )[:SHOWN]
    dead = sorted(
        (row for row in user_groups if isinstance(row.dead_letters, int) and row.dead_letters),
        key=lambda row: (
            -row.dead_letters if isinstance(row.dead_letters, int) else 0,
            row.name,
        ),
    )[:SHOWN]
    cluster.look_at(groups=[row.name for row in (*lagging, *dead)])
    brokers = rows_of(cluster, view.now_ms)
    data = {
        "namesrv": view.parts.namesrv,
        "listed_ms": cluster.snapshot.listed_ms,
        "problems": _problems(cluster, brokers, user_groups),
        "brokers": brokers,
        "topic_count": sum(row.kind == "user" for row in topics),
        "group_count": len(user_groups),
        "lagging": lagging,
        "dead": dead,
        "series": {name: _sum_of(cluster, name, view.now_ms) for name in ("in", "out")},
        "step_ms": history.FINE_MS,
    }
    return Page("overview.html.j2", "Overview", data)


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
        OverviewProblem(f"Group {name} lags more and more", ("groups", name))
        for name in growing[:SHOWN]
    ]
    if len(growing) > SHOWN:
        problems.append(OverviewProblem(f"and {len(growing) - SHOWN} more groups", ("groups",)))
    return problems


def _sum_of(cluster: WatchedCluster, series: str, now_ms: int) -> list[float | None]:
    """Return the rates of all masters; None where one of them is not known."""
    hours = [
        cluster.history.hour((series, facts.place.name), now_ms)
        for facts in cluster.snapshot.masters()
    ]
    sums: list[float | None] = []
    for values in zip(*hours, strict=True):
        known = [value for value in values if value is not None]
        sums.append(sum(known) if len(known) == len(values) else None)
    return sums
