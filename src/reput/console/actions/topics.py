"""Changes of topics: create one, delete one with its messages."""

from reput.client.message import check_topic
from reput.console.access import Right
from reput.console.changes import Change, Preview, Receipt
from reput.console.page import RequestFailed, View
from reput.errors import ReputError

QUEUE_COUNT_MAX = 1_024
"""Queues of a new topic on a broker."""


def _new_topic(view: View) -> tuple[str, int, str]:
    """Return the name, number of queues and cluster of a new topic."""
    topic = view.form.get("name", "").strip()
    try:
        check_topic(topic)
    except ReputError as error:
        raise RequestFailed(400, str(error)) from error
    if not view.user.sees_topic(topic):
        raise RequestFailed(400, f"name={topic!r}: allowed are {', '.join(view.user.topics)}")
    text = view.form.get("queues", "8")
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= count <= QUEUE_COUNT_MAX:
        raise RequestFailed(400, f"queues={text[:40]!r}: allowed are 1 to {QUEUE_COUNT_MAX}")
    clusters = sorted({facts.place.cluster for facts in view.parts.cluster.snapshot.masters()})
    cluster = view.form.get("cluster") or (clusters[0] if len(clusters) == 1 else "")
    if cluster not in clusters:
        allowed = ", ".join(clusters) or "none: no broker is known"
        raise RequestFailed(400, f"cluster={cluster[:80]!r}: allowed are {allowed}")
    return topic, count, cluster


async def preview_create(view: View) -> Preview:
    """Return the brokers that would get a topic."""
    topic, count, cluster = _new_topic(view)
    masters = [
        facts for facts in view.parts.cluster.snapshot.masters() if facts.place.cluster == cluster
    ]
    warnings = []
    if any(topic in facts.topics for facts in masters):
        warnings.append(f"{topic} exists already: its settings would be replaced")
    rows = [
        (
            facts.place.name,
            facts.topics[topic].read_queue_nums if topic in facts.topics else None,
            count,
        )
        for facts in masters
    ]
    return Preview(
        title=f"Create topic {topic}",
        button=f"Create it on {len(masters)} brokers",
        columns=("Broker", "Queues now", "Queues then"),
        rows=rows,
        state={f"queues on {name}": now or 0 for name, now, _ in rows},
        warnings=warnings,
    )


async def run_create(view: View, preview: Preview) -> Receipt:
    """Create a topic, and read back its settings."""
    topic, count, cluster = _new_topic(view)
    known = view.parts.cluster
    addresses = await known.live.admin.create_topic(topic, queue_count=count, cluster=cluster)
    await known.collector.refresh()
    rows = [
        (facts.place.name, facts.topics[topic].read_queue_nums if topic in facts.topics else None)
        for facts in known.snapshot.masters()
        if facts.place.cluster == cluster
    ]
    columns = ("Broker", "Queues read back")
    if any(queues != count for _, queues in rows):
        return Receipt("partly", f"{topic} is not on all brokers yet", columns, rows)
    return Receipt("done", f"{topic} is on {len(addresses)} brokers", columns, rows)


async def preview_delete(view: View) -> Preview:
    """Return what would be deleted with a topic."""
    topic, known = view.names["topic"], view.parts.cluster
    holders = [facts for facts in known.snapshot.masters() if topic in facts.topics]
    if not holders:
        raise RequestFailed(404, f"no broker has topic {topic[:80]!r}")
    rows = []
    for facts in holders:
        ends = await known.live.ends(facts.place.address, topic, view.now_ms)
        place = facts.place
        rows.append((place.name, place.cluster, len(ends.queues), ends.message_count))
    readers = known.rows.readers(topic)
    warnings = [f"{len(readers)} groups have offsets in it: {', '.join(readers[:10])}"]
    return Preview(
        title=f"Delete topic {topic}",
        button="Delete it with its messages",
        columns=("Broker", "Cluster", "Queues", "Messages"),
        rows=rows,
        state={f"messages on {name}": kept for name, _, _, kept in rows},
        tolerance=0,
        warnings=warnings if readers else (),
        typed_name=topic,
    )


async def run_delete(view: View, preview: Preview) -> Receipt:
    """Delete a topic, and check that it no longer exists."""
    topic, known = view.names["topic"], view.parts.cluster
    clusters = sorted({str(row[1]) for row in preview.rows})
    for cluster in clusters:
        await known.live.admin.delete_topic(topic, cluster=cluster)
    await known.collector.refresh()
    left = [facts.place.name for facts in known.snapshot.masters() if topic in facts.topics]
    if left:
        return Receipt("partly", f"{topic} is still on {', '.join(left)}")
    return Receipt("done", f"{topic} is deleted on {len(preview.rows)} brokers")


CREATE = Change("topic.create", Right.ADMIN, preview_create, run_create)
DELETE = Change("topic.delete", Right.ADMIN, preview_delete, run_delete)
