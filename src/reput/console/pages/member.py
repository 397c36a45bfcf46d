"""A member of a group, as it describes itself: settings, queues, rates, stacks of its threads."""

import asyncio
from dataclasses import dataclass

from reput.console.page import Page, RequestFailed, Unknown, View
from reput.console.sources.live import DEADLINE_S
from reput.errors import ReputError
from reput.format.bodies import ConsumerRunningInfo

STACKS_LETTERS_MAX = 512 * 1024
"""Characters of stacks on the page, which reports a cut."""


@dataclass(frozen=True, slots=True)
class OwnedQueue:
    """A queue of a member."""

    topic: str
    broker: str
    queue_id: int
    consumer_offset: int
    cached: int
    """Messages that wait in the member."""
    last_pull_ms: int | None
    last_consume_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Measurements of a member for a topic."""

    topic: str
    pulled_per_s: float
    consumed_per_s: float
    failed_per_s: float
    consume_ms: float


async def page(view: View) -> Page:
    """Return the page of a member. Its stacks are asked for with ``stacks=1``."""
    group, client_id = view.names["group"], view.names["client"]
    has_stacks = bool(view.query.text("stacks"))
    admin = view.parts.cluster.live.admin
    problem = running = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            connection = await admin.consumer_connection(group)
            ids = {member.client_id for member in connection.connection_set} if connection else ()
            if client_id not in ids:
                raise RequestFailed(404, f"{client_id[:80]!r} is no member of group {group[:80]!r}")
            running = await admin.consumer_running_info(group, client_id, has_stacks=has_stacks)
    except TimeoutError:
        problem = f"the member did not answer in {DEADLINE_S:g} s"
    except RequestFailed:
        raise
    except ReputError as error:
        problem = str(error)
    stacks = _stacks(running, problem) if has_stacks else None
    data = {
        "group": group,
        "client_id": client_id,
        "problem": problem,
        "properties": dict(sorted(running.properties.items())) if running else {},
        "queues": _queues(view, running) if running else [],
        "rates": _rates(view, running) if running else [],
        "stacks": stacks[:STACKS_LETTERS_MAX] if isinstance(stacks, str) else stacks,
        "is_cut": isinstance(stacks, str) and len(stacks) > STACKS_LETTERS_MAX,
    }
    return Page("member.html.j2", f"Member {client_id}", data)


def _stacks(running: ConsumerRunningInfo | None, problem: str | None) -> str | Unknown:
    if running is None:
        return Unknown(problem or "the member has not answered")
    return running.jstack or Unknown("its client returns no stacks")


def _queues(view: View, running: ConsumerRunningInfo) -> list[OwnedQueue]:
    return [
        OwnedQueue(
            *(queue.topic, queue.broker_name, queue.queue_id),
            *(state.commit_offset, state.cached_msg_count),
            state.last_pull_timestamp if state.last_pull_timestamp > 0 else None,
            state.last_consume_timestamp if state.last_consume_timestamp > 0 else None,
        )
        for queue, state in sorted(running.mq_table.items())
        if view.user.sees_topic(queue.topic)
    ]


def _rates(view: View, running: ConsumerRunningInfo) -> list[TopicRates]:
    return [
        TopicRates(
            *(topic, state.pull_tps, state.consume_ok_tps),
            *(state.consume_failed_tps, state.consume_rt),
        )
        for topic, state in sorted(running.status_table.items())
        if view.user.sees_topic(topic)
    ]
