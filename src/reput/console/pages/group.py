"""A consumer group: its progress by queue, its members, and problems of both."""

from collections.abc import Mapping
from dataclasses import dataclass

from reput.console import history
from reput.console.access import Right
from reput.console.page import Page, RequestFailed, View
from reput.console.rows import Number
from reput.console.snapshot import BrokerFacts
from reput.console.sources.live import gather
from reput.console.unknown import Unknown
from reput.format import codes
from reput.format.bodies import Connection, ConsumerConnection, ConsumeStats


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The progress of a group in a queue."""

    topic: str
    broker: str
    queue_id: int
    consumer_offset: int
    max_offset: int
    """Queue offset after the last message."""
    lag: Number
    last_ms: int | None
    """Store time of the last consumed message; None if there is none or it was deleted."""
    problem: str
    """The problem of the offset; empty without one."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]
    """Brokers to which it is connected."""


async def page(view: View) -> Page:
    """Return the page of a group."""
    cluster, group = view.parts.cluster, view.names["group"]
    holders = [
        facts
        for facts in cluster.snapshot.masters()
        if group in facts.groups or any(name == group for _, name in facts.consumed)
    ]
    if not holders:
        text = f"no broker knows group {group[:80]!r}"
        silent = cluster.snapshot.silent()
        if silent:
            text += f"; not known of {', '.join(silent)}, which are silent"
        raise RequestFailed(404, text)
    asked = [facts for facts in holders if not facts.is_silent]
    live = cluster.live
    answers = await gather(
        {
            f"{kind} {facts.place.name}": request(facts.place.address, group)
            for facts in asked
            for kind, request in (("stats", live.consume_stats), ("members", live.members))
        }
    )
    row = cluster.rows.groups().rows.get(group)
    if row is None:
        raise RequestFailed(404, f"no broker knows group {group[:80]!r}")
    cluster.note_viewed(row.topics, [group])
    stats = {facts.place.name: answers[f"stats {facts.place.name}"] for facts in asked}
    connections = {facts.place.name: answers[f"members {facts.place.name}"] for facts in asked}
    members, problems = _members(connections)
    problems += [
        f"{facts.place.name} is silent: its queues are not shown"
        for facts in holders
        if facts.is_silent
    ]
    queues = [
        queue
        for facts in asked
        for queue in _queues(facts, stats[facts.place.name], problems)
        if view.user.sees_topic(queue.topic)
    ]
    data = {
        "group": row.seen_by(view.user),
        "problems": problems,
        "queues": queues,
        "members": members,
        "may_read": view.user.may(Right.READ),
        "subscriptions": {
            topic: expression
            for topic, expression in _subscriptions(connections).items()
            if view.user.sees_topic(topic)
        },
        "settings": {facts.place.name: _settings(facts, group) for facts in holders},
        "series": {
            "lag": cluster.history.hour(("lag", group), view.now_ms),
            "week": cluster.history.week(("lag", group), view.now_ms),
        },
        "step_ms": history.FINE_MS,
    }
    return Page("group.html.j2", group, data)


def _queues(facts: BrokerFacts, stats: object, problems: list[str]) -> list[QueueRow]:
    """Return the queues on a broker; if they are unknown, add the reason to the problems."""
    if not isinstance(stats, ConsumeStats):
        if isinstance(stats, Unknown):
            problems.append(f"progress is not known: {stats.unknown}")
        return []
    rows = []
    for queue, offsets in sorted(stats.offset_table.items()):
        ends = facts.ends.get(queue.topic)
        kept = ends.queue(queue.queue_id) if ends is not None else None
        problem = ""
        if offsets.consumer_offset > offsets.broker_offset:
            problem = "the offset is after the end of the queue"
        elif kept is not None and offsets.consumer_offset < kept.min_offset:
            gone = kept.min_offset - offsets.consumer_offset
            problem = f"{gone:,} messages were deleted before they were consumed"
        rows.append(
            QueueRow(
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                consumer_offset=offsets.consumer_offset,
                max_offset=offsets.broker_offset,
                lag=max(0, offsets.broker_offset - offsets.consumer_offset),
                last_ms=offsets.last_timestamp if offsets.last_timestamp > 0 else None,
                problem=problem,
            )
        )
    return rows


def _members(connections: Mapping[str, object]) -> tuple[list[MemberRow], list[str]]:
    """Return the members, each once, and their problems."""
    places: dict[str, list[str]] = {}
    first: dict[str, Connection] = {}
    problems = []
    for name, connection in connections.items():
        if isinstance(connection, Unknown):
            problems.append(f"members are not known: {connection.unknown}")
        elif isinstance(connection, ConsumerConnection):
            for member in connection.connection_set:
                places.setdefault(member.client_id, []).append(name)
                first.setdefault(member.client_id, member)
    members = [
        MemberRow(
            client_id,
            member.client_addr,
            member.language,
            codes.version_desc(member.version),
            tuple(places[client_id]),
        )
        for client_id, member in sorted(first.items())
    ]
    kinds = {
        (connection.consume_type, connection.message_model)
        for connection in connections.values()
        if isinstance(connection, ConsumerConnection)
    }
    if len(kinds) > 1:
        problems.append("brokers disagree about the kind of consumer or the message model")
    return members, problems


def _subscriptions(connections: Mapping[str, object]) -> dict[str, str]:
    """Return the expressions of each topic: several where brokers disagree."""
    by_topic: dict[str, set[str]] = {}
    for connection in connections.values():
        if isinstance(connection, ConsumerConnection):
            for topic, data in connection.subscription_table.items():
                by_topic.setdefault(topic, set()).add(data.sub_string or "*")
    return {
        topic: " / ".join(sorted(expressions)) for topic, expressions in sorted(by_topic.items())
    }


def _settings(facts: BrokerFacts, group: str) -> dict[str, object]:
    config = facts.groups.get(group)
    if config is None:
        return {}
    return {
        "may consume": config.consume_enable,
        "broadcast allowed": config.consume_broadcast_enable,
        "ordered": config.consume_message_orderly,
        "retries at most": config.retry_max_times,
        "retry queues": config.retry_queue_nums,
    }
