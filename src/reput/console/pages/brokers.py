"""Brokers: their states, rates, disks and versions."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from reput.console.cluster import WatchedCluster
from reput.console.collector import first_rate
from reput.console.page import Page, View
from reput.console.paging import order_of, ordered
from reput.console.snapshot import BrokerFacts
from reput.console.unknown import Unknown
from reput.format.codes import MASTER_ID

FIELDS = ("name", "cluster", "put_rate", "get_rate", "disk_share", "put_p99_ms", "version")


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """The row of a broker."""

    name: str
    cluster: str
    broker_id: int
    address: str
    state: str
    """``ok``, ``silent``, ``refuses``, ``gone`` or ``new``: not asked yet."""
    problem: str
    """The last failure or refusal."""
    answer_ms: int | None
    """Time of the broker's last reply; None before the first."""
    version: str | Unknown
    boot_ms: int | Unknown
    put_rate: float | Unknown
    """Messages stored per second, over ten seconds."""
    get_rate: float | Unknown
    """Messages read per second, over ten seconds."""
    put_p99_ms: float | Unknown
    """99th percentile of the duration of puts; 4.x brokers do not report it."""
    disk_share: float | Unknown
    """Used share of the disk of the commit log."""
    today: int | Unknown
    """Messages stored since midnight."""
    put_history: list[float | None]
    """The rate over the last hour, by 30 s."""


async def page(view: View) -> Page:
    """Return the list of brokers."""
    cluster = view.parts.cluster
    order = order_of(view.query, FIELDS, "name")
    data = {
        "namesrv": view.parts.namesrv,
        "problem": cluster.snapshot.name_server_problem or None,
        "listed_ms": cluster.snapshot.listed_ms or None,
        "sort": order.parameter,
        "rows": ordered(rows_of(cluster, view.now_ms), order),
    }
    return Page("brokers.html.j2", "Brokers", data)


def rows_of(cluster: WatchedCluster, now_ms: int) -> list[BrokerRow]:
    """Return the rows of all brokers, by name and id."""
    places = sorted(
        cluster.snapshot.brokers.values(),
        key=lambda facts: (facts.place.cluster, facts.place.name, facts.place.broker_id),
    )
    return [row_of(cluster, facts, now_ms) for facts in places]


def row_of(cluster: WatchedCluster, facts: BrokerFacts, now_ms: int) -> BrokerRow:
    """Return the row of a broker."""
    place, status = facts.place, facts.status
    state, problem = _state(cluster, facts)
    why = Unknown(problem or "the broker has not been asked yet")
    put_rate, get_rate = first_rate(status, "putTps"), first_rate(status, "getTransferredTps")
    is_master = place.broker_id == MASTER_ID
    return BrokerRow(
        name=place.name,
        cluster=place.cluster,
        broker_id=place.broker_id,
        address=place.address,
        state=state,
        problem=problem,
        answer_ms=facts.answer_ms or None,
        version=status.get("brokerVersionDesc", why),
        boot_ms=_number(status, "bootTimestamp", why),
        put_rate=why if put_rate is None else put_rate,
        get_rate=why if get_rate is None else get_rate,
        put_p99_ms=_p99(status),
        disk_share=_share(status, why),
        today=_today(status, why),
        put_history=cluster.history.hour(("in", place.name), now_ms) if is_master else [],
    )


def _state(cluster: WatchedCluster, facts: BrokerFacts) -> tuple[str, str]:
    if facts.listed_ms < cluster.snapshot.listed_ms:
        return "gone", "the name servers have forgotten it"
    if facts.is_silent:
        return "silent", facts.problem
    if facts.refusals:
        kind, text = next(iter(facts.refusals.items()))
        return "refuses", f"{kind}: {text}"
    return ("ok", "") if facts.answer_ms else ("new", "")


def _number(status: Mapping[str, str], key: str, why: Unknown) -> int | Unknown:
    try:
        return int(status[key])
    except KeyError:
        return why
    except ValueError:
        return Unknown(f"{key} is {status[key][:40]!r}")


def _today(status: Mapping[str, str], why: Unknown) -> int | Unknown:
    now = _number(status, "msgPutTotalTodayNow", why)
    midnight = _number(status, "msgPutTotalTodayMorning", why)
    if isinstance(now, Unknown) or isinstance(midnight, Unknown):
        return now if isinstance(now, Unknown) else midnight
    return max(0, now - midnight)


def _share(status: Mapping[str, str], why: Unknown) -> float | Unknown:
    """Return the used share of a disk; brokers report a negative share if they cannot read it."""
    text = status.get("commitLogDiskRatio")
    if text is None:
        return why
    with contextlib.suppress(ValueError):
        share = float(text)
        if 0 <= share <= 1:
            return share
    return Unknown(f"commitLogDiskRatio is {text[:40]!r}")


def _p99(status: Mapping[str, str]) -> float | Unknown:
    """Return the 99th percentile of the duration of puts, as 5.x and reput report it."""
    text = status.get("putLatency99")
    if text is None:
        return Unknown("the broker does not say it")
    with contextlib.suppress(ValueError):
        return float(text)
    return Unknown(f"putLatency99 is {text[:40]!r}")
