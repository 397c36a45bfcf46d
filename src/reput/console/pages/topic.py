"""A topic: its route and the health of it, its queues, its groups and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from reput.console import history
from reput.console.page import Page, RequestFailed, View
from reput.console.rows import Number
from reput.console.snapshot import BrokerFacts, Ends
from reput.console.sources.live import gather
from reput.console.unknown import Unknown
from reput.format.bodies import TopicConfigData
from reput.format.codes import PERM_READ, PERM_WRITE


@dataclass(frozen=True, slots=True)
class TopicQueueRow:
    """The row of a queue."""

    broker: str
    queue_id: int
    min_offset: Number
    """Queue offset of the first message that is kept."""
    max_offset: Number
    """Queue offset after the last message."""
    messages: Number
    last_ms: int | None
    """Store time of the last message; None if it is unknown or there is no message."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A group with offsets in the topic."""

    name: str
    lag: Number


async def page(view: View) -> Page:
    """Return the page of a topic."""
    cluster, topic = view.parts.cluster, view.names["topic"]
    holders = [facts for facts in cluster.snapshot.masters() if topic in facts.topics]
    if not holders:
        text = f"no broker has topic {topic[:80]!r}"
        silent = cluster.snapshot.silent()
        if silent:
            text += f"; not known of {', '.join(silent)}, which are silent"
        raise RequestFailed(404, text)
    ends = await gather(
        {
            facts.place.name: cluster.live.ends(facts.place.address, topic, view.now_ms)
            for facts in holders
            if not facts.is_silent
        }
    )
    for facts in holders:
        answer = ends.get(facts.place.name)
        if isinstance(answer, Ends):
            cluster.snapshot.put_ends(facts.place.address, topic, answer)
    cluster.note_viewed(topics=[topic])
    configs = {facts.place.name: facts.topics[topic] for facts in holders}
    groups = [group for group in cluster.rows.readers(topic) if view.user.sees_group(group)]
    row = cluster.rows.topics().rows[topic]
    counters = cluster.history.hour(("end", topic), view.now_ms)
    data = {
        "topic": row,
        "problems": _problems(configs, holders),
        "queues": [queue for facts in holders for queue in _queues(facts, topic, ends)],
        "groups": [Reader(group, cluster.rows.lag(topic, group)) for group in groups],
        "settings": {name: _settings(config) for name, config in configs.items()},
        "series": history.rates(counters, history.FINE_MS),
        "step_ms": history.FINE_MS,
    }
    return Page("topic.html.j2", topic, data)


def _queues(
    facts: BrokerFacts, topic: str, answers: Mapping[str, Ends | Unknown]
) -> list[TopicQueueRow]:
    """Return the queues on a broker, with their ends or the reason why these are unknown."""
    name = facts.place.name
    answer = answers.get(name, Unknown(f"{name} is silent: {facts.problem}"))
    if isinstance(answer, Unknown):
        count = facts.topics[topic].read_queue_nums
        return [
            TopicQueueRow(name, number, answer, answer, answer, None) for number in range(count)
        ]
    return [
        TopicQueueRow(
            name,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.message_count,
            queue.last_ms or None,
        )
        for queue in answer.queues
    ]


def _problems(configs: Mapping[str, TopicConfigData], holders: list[BrokerFacts]) -> list[str]:
    """Return the problems of the route."""
    problems = []
    for name, config in configs.items():
        if not config.perm & PERM_WRITE:
            problems.append(f"{name} is not writable")
        if not config.perm & PERM_READ:
            problems.append(f"{name} is not readable")
        if config.write_queue_nums > config.read_queue_nums:
            problems.append(
                f"{name} has {config.write_queue_nums} writable and {config.read_queue_nums} "
                "readable queues: consumers do not get all messages"
            )
    counts = {config.read_queue_nums for config in configs.values()}
    if len(counts) > 1:
        problems.append("brokers have different numbers of queues")
    problems += [
        f"{facts.place.name} is silent: {facts.problem}" for facts in holders if facts.is_silent
    ]
    return problems


def _settings(config: TopicConfigData) -> dict[str, object]:
    return {
        "read queues": config.read_queue_nums,
        "write queues": config.write_queue_nums,
        "readable": bool(config.perm & PERM_READ),
        "writable": bool(config.perm & PERM_WRITE),
        "ordered": config.order,
        "filter": config.topic_filter_type,
        **(config.attributes or {}),
    }
