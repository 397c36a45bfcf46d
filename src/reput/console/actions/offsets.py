"""Changes of consumer offsets: reset to a time or an end, copies to another group."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from reput.client.message import check_group
from reput.console.access import Right
from reput.console.changes import Cell, Change, Preview, Receipt
from reput.console.page import RequestFailed, View
from reput.console.snapshot import BrokerFacts, Ends, QueueEnds
from reput.console.sources.live import gather
from reput.console.unknown import Unknown
from reput.errors import ReputError
from reput.format.bodies import MessageQueue
from reput.html.texts import time_text

TARGETS = ("end", "begin", "time")
"""Positions to which a group is reset: ``end`` skips all messages."""
TOLERANCE = 1_000
"""Number of messages that a queue may receive between preview and confirmation."""
END_MS = -1
"""The time that means the end of the queues."""
_COLUMNS = ("Queue", "Offset now", "Offset then", "Change")


@dataclass(frozen=True, slots=True)
class _Progress:
    """A queue with the consumer offset of a group."""

    place: str
    """Broker and number of the queue."""
    queue: MessageQueue
    ends: QueueEnds
    consumer_offset: int | None


def _topic_of(view: View) -> str:
    topic = view.form.get("topic", "")
    if not topic or not view.user.sees_topic(topic):
        raise RequestFailed(400, f"topic={topic[:80]!r}: allowed is a topic of the cluster")
    return topic


def _time_of(view: View) -> int:
    """Return the time that a group is reset to."""
    target = view.form.get("to", "")
    if target not in TARGETS:
        raise RequestFailed(400, f"to={target[:40]!r}: allowed are {', '.join(TARGETS)}")
    if target != "time":
        return END_MS if target == "end" else 0
    text = view.form.get("time", "")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestFailed(
            400, f"time={text[:40]!r}: allowed is a time as 2026-11-28T12:00, in UTC"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time_ms = round(moment.timestamp() * 1000)
    if not 0 <= time_ms <= view.now_ms:
        raise RequestFailed(400, f"time={text[:40]!r}: allowed are times up to now")
    return time_ms


async def _progress(view: View, group: str, topic: str) -> list[_Progress]:
    """Return the queues of a topic. Raises ``RequestFailed`` unless all brokers answer."""
    cluster = view.parts.cluster
    holders = [facts for facts in cluster.snapshot.masters() if topic in facts.topics]
    if not holders:
        raise RequestFailed(404, f"no broker has topic {topic[:80]!r}")

    async def ask(facts: BrokerFacts) -> tuple[Ends, Mapping[int, int]]:
        address = facts.place.address
        ends, consumed = await asyncio.gather(
            cluster.live.ends(address, topic, view.now_ms), cluster.live.consumed(address)
        )
        return ends, consumed.get((topic, group), {})

    answers = await gather({facts.place.name: ask(facts) for facts in holders})
    rows = []
    for name, answer in answers.items():
        if isinstance(answer, Unknown):
            raise RequestFailed(503, f"nothing was changed: {answer.unknown}")
        ends, offsets = answer
        rows += [
            _Progress(
                f"{name}:{queue.queue_id}",
                MessageQueue(topic, name, queue.queue_id),
                queue,
                offsets.get(queue.queue_id),
            )
            for queue in ends.queues
        ]
    return rows


async def _wanted(view: View, row: _Progress, time_ms: int) -> int:
    """Return the offset that a time means in a queue."""
    if time_ms == END_MS:
        return row.ends.max_offset
    if time_ms == 0:
        return row.ends.min_offset
    return await view.parts.cluster.live.admin.search_offset(row.queue, time_ms)


def _change_text(row: _Progress, wanted: int) -> str:
    before = row.ends.min_offset if row.consumer_offset is None else row.consumer_offset
    if wanted > before:
        return f"{wanted - before:,} skipped"
    return f"{before - wanted:,} again" if wanted < before else "none"


async def preview_reset(view: View) -> Preview:
    """Return what a reset would change, queue by queue."""
    group, topic, time_ms = view.names["group"], _topic_of(view), _time_of(view)
    rows = await _progress(view, group, topic)
    wanted = await gather({row.place: _wanted(view, row, time_ms) for row in rows})
    cells: list[tuple[Cell, ...]] = []
    state: dict[str, int | str] = {}
    for row in rows:
        value = wanted[row.place]
        if isinstance(value, Unknown):
            raise RequestFailed(503, f"nothing was changed: {value.unknown}")
        cells.append((row.place, row.consumer_offset, value, _change_text(row, value)))
        state[f"the offset of {row.place}"] = (
            "none" if row.consumer_offset is None else row.consumer_offset
        )
        state[f"the target of {row.place}"] = value
    members = await _member_count(view, group)
    warnings = []
    if members:
        warnings.append(
            f"{members} members are connected: they take the new offsets within seconds, and "
            "messages that they process now may be processed twice"
        )
    where = {END_MS: "the end", 0: "the beginning"}.get(time_ms) or time_text(time_ms, "seconds")
    return Preview(
        title=f"Reset {group} on {topic} to {where}",
        button=f"Reset {len(rows)} queues",
        columns=_COLUMNS,
        rows=cells,
        state=state,
        tolerance=TOLERANCE,
        warnings=warnings,
    )


async def run_reset(view: View, preview: Preview) -> Receipt:
    """Reset a group, and read back its offsets."""
    group, topic, time_ms = view.names["group"], _topic_of(view), _time_of(view)
    live = view.parts.cluster.live
    accepted = await live.admin.reset_offsets(group, topic, time_ms)
    after = await _progress(view, group, topic)
    before = {str(row[0]): row[1] for row in preview.rows}
    rows = [
        (row.place, before.get(row.place), accepted.get(row.queue), row.consumer_offset)
        for row in after
    ]
    await view.parts.cluster.collector.refresh()
    missing = [row.place for row in after if row.queue not in accepted]
    columns = ("Queue", "Before", "Set to", "Read back")
    if missing:
        text = f"{len(accepted)} queues were reset; not {', '.join(missing)}"
        return Receipt("partly", text, columns, rows)
    return Receipt("done", f"{len(accepted)} queues of {topic} were reset", columns, rows)


async def _member_count(view: View, group: str) -> int:
    live, clients = view.parts.cluster.live, set[str]()
    masters = [facts for facts in view.parts.cluster.snapshot.masters() if not facts.is_silent]
    answers = await gather(
        {facts.place.name: live.members(facts.place.address, group) for facts in masters}
    )
    for answer in answers.values():
        if answer is not None and not isinstance(answer, Unknown):
            clients.update(member.client_id for member in answer.connection_set)
    return len(clients)


# --- copies ---------------------------------------------------------------------------------------


def _target_of(view: View) -> str:
    """Return the group that offsets are copied to."""
    target = view.form.get("to_group", "")
    try:
        check_group("to_group", target)
    except ReputError as error:
        raise RequestFailed(400, str(error)) from error
    if target == view.names["group"] or not view.user.sees_group(target):
        raise RequestFailed(400, f"to_group={target!r}: allowed is another group that you see")
    return target


async def preview_clone(view: View) -> Preview:
    """Return what a copy of the offsets of a topic would change in the other group."""
    group, topic, target = view.names["group"], _topic_of(view), _target_of(view)
    own = await _progress(view, group, topic)
    other = {row.place: row.consumer_offset for row in await _progress(view, target, topic)}
    rows = [
        (row.place, other.get(row.place), row.consumer_offset)
        for row in own
        if row.consumer_offset is not None
    ]
    if not rows:
        raise RequestFailed(409, f"{group} has no offsets in {topic}")
    members = await _member_count(view, target)
    return Preview(
        title=f"Copy offsets of {group} on {topic} to {target}",
        button=f"Copy {len(rows)} offsets",
        columns=("Queue", f"Offset of {target} now", "Then"),
        rows=rows,
        state={f"the offset of {place}": then for place, _, then in rows},
        tolerance=TOLERANCE,
        warnings=[f"{members} members of {target} are connected: they may write their own again"]
        if members
        else [],
    )


async def run_clone(view: View, preview: Preview) -> Receipt:
    """Copy the offsets, and read back those of the other group."""
    group, topic, target = view.names["group"], _topic_of(view), _target_of(view)
    cluster = view.parts.cluster
    await cluster.live.admin.clone_offsets(group, target, topic)
    after = {row.place: row.consumer_offset for row in await _progress(view, target, topic)}
    rows = [(row[0], row[1], after.get(str(row[0]))) for row in preview.rows]
    await cluster.collector.refresh()
    missing = [str(place) for place, _, value in rows if value is None]
    columns = ("Queue", "Before", "Read back")
    if missing:
        text = f"{target} has no offset in {', '.join(missing)} afterwards"
        return Receipt("partly", text, columns, rows)
    return Receipt("done", f"{len(rows)} offsets were copied to {target}", columns, rows)


RESET = Change("offset.reset", Right.OPERATE, preview_reset, run_reset)
CLONE = Change("offset.clone", Right.OPERATE, preview_clone, run_clone)
