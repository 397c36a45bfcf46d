"""The result of an audit as one HTML page: ``page.write_text(render(result))``.

The chapters of the template ``audit.html.j2`` follow a reader's questions: is anything lost, what,
where, and which groups are affected. Rounded charts have an exact table beside them; where the
result has only a sample, the page shows the total.
"""

from typing import TYPE_CHECKING, Any

from reput import __version__
from reput.html import charts
from reput.html.texts import CONDITIONS, NONE, count_text, number_text, size_text
from reput.spark.jobs.audit.verdicts import NOTES, Fault, Indexed, MessageVerdict, Stage
from reput.spark.pages import environment

if TYPE_CHECKING:
    from reput.spark.jobs.audit.verdicts import AuditedHole, AuditResult, TopicAudit

_VERDICT_COLORS = {
    MessageVerdict.DISPATCHED: "s2",
    MessageVerdict.UNDISPATCHED: "s1",
    MessageVerdict.LOST: "damage",
    MessageVerdict.DAMAGED: "damage",
    MessageVerdict.UNQUEUED: "sx",
    MessageVerdict.DELETED: "sx",
}
_MISSING_SHOWN = 5
"""Maximum number of queues listed for a hole."""


def render(result: "AuditResult") -> str:
    """Return the page."""
    return environment.render("audit.html.j2", _values(result))


def _values(result: "AuditResult") -> dict[str, Any]:
    verdicts = result.verdicts
    return {
        "title": f"{result.broker or result.store}: audit",
        "heading": _heading(result),
        "verdict": _verdict(result),
        "figures": _figures(result),
        "verdict_bars": _verdict_bars(result),
        "size_bars": _size_bars(result),
        "lag_bars": _lag_bars(result),
        "without_lag": "Every group has read what it reads."
        if result.groups
        else "No group has an offset.",
        "delay_bars": _delay_bars(result),
        "delays": _delays(result),
        "lost": _lost(result),
        "lost_count": verdicts.get(MessageVerdict.LOST, 0)
        + verdicts.get(MessageVerdict.DAMAGED, 0),
        "holes": _holes(result),
        "hole_count": result.hole_count,
        "findings": _findings(result),
        "findings_left": _findings_left(result),
        "topics": _topics(result),
        "groups": _groups(result),
    }


def _heading(result: "AuditResult") -> dict[str, Any]:
    firsts = [topic.first_ms for topic in result.topics if topic.first_ms is not None]
    lasts = [topic.last_ms for topic in result.topics if topic.last_ms is not None]
    return {
        "store": result.store,
        "broker": result.broker,
        "condition": result.condition,
        "condition_note": CONDITIONS.get(result.condition),
        "first_ms": min(firsts, default=None),
        "last_ms": max(lasts, default=None),
        "log_start": result.log_start,
        "log_end": result.log_end,
        "now_ms": result.now_ms,
        "table": result.table,
        "reput_version": __version__,
    }


def _verdict(result: "AuditResult") -> dict[str, Any]:
    """Return the summary: whether anything is wrong."""
    verdicts = result.verdicts
    gone = sum(topic.missing for topic in result.topics)
    problems = [
        (verdicts.get(MessageVerdict.LOST, 0), "message", "without a unit that leads to it"),
        (verdicts.get(MessageVerdict.DAMAGED, 0), "message", "of which only the unit is left"),
        (gone, "message", "of which neither record nor unit is left"),
        (result.stages.get(Stage.UNDELIVERED, 0), "delayed message", "that never arrived"),
        (result.indexed.get(Indexed.MISSING, 0), "message", "not found by a key"),
        (result.hole_count, "hole", "in the log"),
        (result.fault_count - result.faults.get(Fault.HOLE, 0), "other fault", "found"),
    ]
    lines = [f"{count_text(count, noun)} {what}" for count, noun, what in problems if count]
    if lines:
        return {"title": "Not clean", "problems": lines, "state": "warn"}
    if result.messages:
        text = "No message is lost, and nothing is at fault."
        if waiting := verdicts.get(MessageVerdict.UNDISPATCHED, 0):
            text += f" {count_text(waiting, 'message')} will be dispatched by the broker."
        return {"title": "Clean", "text": text, "problems": [], "state": "ok"}
    text = "The store holds no messages."
    return {"title": "Empty", "text": text, "problems": [], "state": ""}


def _figures(result: "AuditResult") -> list[charts.Figure]:
    counts = result.indexed
    keyed = sum(counts.values()) - counts.get(Indexed.NO_KEYS, 0)
    indexed = counts.get(Indexed.INDEXED, 0)
    missing = counts.get(Indexed.MISSING, 0)
    covered = f"{missing:,} missing, {keyed - indexed - missing:,} not covered"
    pending = sum(group.pending for group in result.groups)
    groups = count_text(len({group.group for group in result.groups}), "group")
    backlog = sum(delay.due + delay.waiting for delay in result.delays)
    due = count_text(sum(delay.due for delay in result.delays), "message")
    return [
        charts.Figure("Messages", number_text(result.messages), size_text(result.bytes)),
        charts.Figure(
            "Lost",
            number_text(result.lost_count),
            "consumers do not get them",
            "warn" if result.lost_count else "ok",
        ),
        charts.Figure(
            "Holes",
            number_text(result.hole_count),
            size_text(result.hole_bytes),
            "warn" if result.hole_count else "ok",
        ),
        charts.Figure("Found by key", number_text(indexed), covered, "warn" if missing else "ok"),
        charts.Figure("To be read", number_text(pending), f"by {groups}"),
        charts.Figure("Delayed", number_text(backlog), f"{due} due"),
        charts.Figure("Duplicates", NONE, "not counted: run with --table")
        if result.duplicated is None
        else charts.Figure(
            "Duplicates", number_text(result.duplicated), "beyond the first of each"
        ),
    ]


def _verdict_bars(result: "AuditResult") -> list[charts.Bar]:
    counts = result.verdicts
    rows = [
        (str(verdict), counts[verdict], _VERDICT_COLORS[verdict])
        for verdict in MessageVerdict
        if counts.get(verdict)
    ]
    return charts.bars_of(rows, "others", sum(counts.values()), number_text)


def _size_bars(result: "AuditResult") -> list[charts.Bar]:
    ordered = sorted(result.topics, key=lambda topic: -topic.bytes)
    rows = [
        (topic.topic, topic.bytes, f"s{number}" if number < charts.COLOR_COUNT else "sx")
        for number, topic in enumerate(ordered)
    ]
    others = count_text(len(rows) - charts.BARS_MAX, "other topic")
    return charts.bars_of(rows, others, result.bytes, size_text)


def _lag_bars(result: "AuditResult") -> list[charts.Bar]:
    by_group: dict[str, int] = {}
    for group in result.groups:
        by_group[group.group] = by_group.get(group.group, 0) + group.pending
    rows = [(name, pending, "plain") for name, pending in by_group.items() if pending]
    others = count_text(len(rows) - charts.BARS_MAX, "other group")
    return charts.bars_of(rows, others, sum(by_group.values()), number_text)


def _delay_bars(result: "AuditResult") -> list[charts.Bar]:
    rows = [
        (f"level {delay.level}", delay.due + delay.waiting, "s1" if delay.due else "plain")
        for delay in result.delays
        if delay.due + delay.waiting
    ]
    others = count_text(len(rows) - charts.BARS_MAX, "other level")
    return charts.bars_of(rows, others, sum(count for _, count, _ in rows), number_text)


def _delays(result: "AuditResult") -> charts.Table:
    return charts.Table(
        "Delay levels",
        [
            *(("Level", "number"), ("Delivered", "number"), ("Due", "number")),
            *(("Waiting", "number"), ("Bytes to come", "number"), ("Oldest due", "time")),
        ],
        [
            (
                *(delay.level, delay.delivered, delay.due, delay.waiting, delay.backlog_bytes),
                delay.oldest_due_ms,
            )
            for delay in result.delays
        ],
        sorted_by=0,
        order="ascending",
    )


def _lost(result: "AuditResult") -> charts.Table:
    return charts.Table(
        "Messages that consumers do not get",
        [
            *(("Physical offset", "number"), ("Topic", "name"), ("Queue", "number")),
            *(("Queue offset", "number"), ("Verdict", "name"), ("Why", "name")),
            *(("Unique key", "code"), ("Stored", "time")),
        ],
        [
            (
                *(message.physical_offset, message.topic, message.queue_id, message.queue_offset),
                *(str(message.verdict), message.reason.replace("_", " ")),
                *(message.unique_key or NONE, message.store_timestamp),
            )
            for message in result.lost
        ],
    )


def _holes(result: "AuditResult") -> charts.Table:
    return charts.Table(
        "Bytes of the log that are no record",
        [
            *(("Physical offset", "number"), ("Bytes", "number"), ("Why", "name")),
            *(("File", "code"), ("Stored after", "time"), ("Stored before", "time")),
            *(("Messages lost", "number"), ("Of queues", "name")),
        ],
        [
            (
                *(hole.physical_offset, hole.length, hole.reason, hole.file),
                *(hole.before_ms, hole.after_ms, hole.lost_count, _queues_of(hole)),
            )
            for hole in result.holes
        ],
    )


def _queues_of(hole: "AuditedHole") -> str:
    queues = [
        f"{queue.topic}/{queue.queue_id} from {queue.queue_offset}, {queue.count:,}"
        for queue in hole.missing[:_MISSING_SHOWN]
    ]
    rest = len(hole.missing) - _MISSING_SHOWN
    return "; ".join([*queues, *([f"{rest:,} more"] if rest > 0 else [])]) or NONE


def _findings(result: "AuditResult") -> charts.Table:
    return charts.Table(
        "Findings besides messages",
        [
            *(("What", "name"), ("Where", "name"), ("Found", "name")),
            *(("Count", "number"), ("Kind", "name")),
        ],
        [
            (
                *(finding.fault.replace("_", " "), finding.where, finding.text, finding.count),
                "note" if finding.is_note or finding.fault in NOTES else "fault",
            )
            for finding in result.findings
            if finding.fault is not Fault.HOLE
        ],
    )


def _findings_left(result: "AuditResult") -> int:
    """Return the number of findings that are not on the page; holes have their own table."""
    total = sum(count for name, count in result.faults.items() if name != Fault.HOLE)
    return total - sum(
        finding.count for finding in result.findings if finding.fault is not Fault.HOLE
    )


def _topics(result: "AuditResult") -> charts.Table:
    verdicts: list[tuple[str, charts.CellKind]] = [
        (str(verdict), "number") for verdict in MessageVerdict
    ]
    return charts.Table(
        "Every topic that has messages, including system topics",
        [
            *(("Topic", "name"), ("Messages", "number"), ("Bytes", "number")),
            *verdicts,
            *(("Gone without a trace", "number"), ("Not found by key", "number")),
            *(("First stored", "time"), ("Last stored", "time")),
        ],
        [_topic(topic) for topic in result.topics],
    )


def _topic(topic: "TopicAudit") -> tuple[object, ...]:
    return (
        *(topic.topic, topic.messages, topic.bytes),
        *(topic.verdicts.get(verdict, 0) for verdict in MessageVerdict),
        *(topic.missing, topic.indexed.get(Indexed.MISSING, 0)),
        *(topic.first_ms, topic.last_ms),
    )


def _groups(result: "AuditResult") -> charts.Table:
    return charts.Table(
        "What groups have read",
        [
            *(("Group", "name"), ("Topic", "name"), ("Lag", "number"), ("Read", "number")),
            *(("To be read", "number"), ("Bytes to be read", "number")),
            *(("Oldest of them", "time"), ("Expired unread", "number")),
        ],
        [
            (
                *(group.group, group.topic, group.lag, group.consumed, group.pending),
                *(group.pending_bytes, group.oldest_pending_ms, group.expired),
            )
            for group in result.groups
        ],
    )
