"""What an audit found as one HTML page, which loads nothing: ``page.write_text(render(result))``.

Told from the top, as a reader asks: is anything lost, what, where, and who has yet to read what.
What a plot rounds is in a table beside it; of what the result has a sample of, the page says how
many there are.
"""

from typing import TYPE_CHECKING

from reput import __version__
from reput.spark.jobs.audit.verdicts import NOTES, Fault, Indexed, Stage, Verdict
from reput.spark.pages import parts

if TYPE_CHECKING:
    from reput.spark.jobs.audit.verdicts import AuditedHole, AuditResult, TopicAudit

_VERDICT_COLORS = {
    Verdict.DISPATCHED: "s2",
    Verdict.UNDISPATCHED: "s1",
    Verdict.LOST: "damage",
    Verdict.DAMAGED: "damage",
    Verdict.UNQUEUED: "sx",
    Verdict.DELETED: "sx",
}
_MISSING_SHOWN = 5
"""Queues of a hole that are named before the rest is a number."""


def render(result: "AuditResult") -> str:
    """Return the page."""
    chapters = [
        _header(result),
        _verdict(result),
        _figures(result),
        parts.pair_of(_verdicts(result), _sizes(result)),
        parts.pair_of(_lags(result), _delays(result)),
        _lost(result),
        _holes(result),
        _findings(result),
        _topics(result),
        _groups(result),
    ]
    return parts.page(f"{result.broker or result.store}: audit", chapters)


def _header(result: "AuditResult") -> parts.Html:
    state = "state ok" if result.condition == "clean" else "state warn"
    note = parts.CONDITIONS.get(result.condition)
    condition = parts.element("span", result.condition, class_=state, title=note)
    firsts = [one.first_ms for one in result.topics if one.first_ms is not None]
    lasts = [one.last_ms for one in result.topics if one.last_ms is not None]
    facts: list[tuple[str, object]] = []
    if firsts:
        facts += [("First message", parts.moment(min(firsts)))]
        facts += [("Last message", parts.moment(max(lasts)))]
    facts += [
        ("Log", f"{result.log_start:,} to {result.log_end:,}"),
        ("Due by", parts.moment(result.now_ms)),
        ("Table", parts.name_text(result.table) if result.table else "none"),
        ("Read with", f"reput {__version__}"),
    ]
    told = [
        parts.element("div", parts.element("dt", name), parts.element("dd", value))
        for name, value in facts
    ]
    return parts.element(
        "header",
        parts.element("p", parts.LOGO, parts.element("b", "reput"), " audit", class_="brand"),
        parts.element("h1", parts.name_text(result.broker or "Message store"), " ", condition),
        parts.element("p", parts.name_text(result.store), class_="path"),
        parts.element("dl", told),
    )


def _verdict(result: "AuditResult") -> parts.Html:
    """Say in words whether anything is wrong."""
    verdicts = result.verdicts
    gone = sum(one.missing for one in result.topics)
    problems = [
        (verdicts.get(Verdict.LOST, 0), "message", "without a unit that leads to it"),
        (verdicts.get(Verdict.DAMAGED, 0), "message", "of which only the unit is left"),
        (gone, "message", "of which neither record nor unit is left"),
        (result.stages.get(Stage.UNDELIVERED, 0), "delayed message", "that never arrived"),
        (result.indexed.get(Indexed.MISSING, 0), "message", "not found by a key"),
        (result.hole_count, "hole", "in the log"),
        (result.fault_count - result.faults.get(Fault.HOLE, 0), "other fault", "found"),
    ]
    told = [
        parts.element("li", parts.count_text(count, noun), f" {what}")
        for count, noun, what in problems
        if count
    ]
    if told:
        title, text, state = "Not clean", parts.element("ul", told), "verdict warn"
    elif result.messages:
        waiting = verdicts.get(Verdict.UNDISPATCHED, 0)
        words = "No message is lost, and nothing is at fault."
        if waiting:
            words += f" {parts.count_text(waiting, 'message')} will be dispatched by the broker."
        title, text, state = "Clean", parts.element("p", words), "verdict ok"
    else:
        words = "The store holds no messages."
        title, text, state = "Empty", parts.element("p", words), "verdict"
    return parts.element("section", parts.element("h2", title), text, class_=state)


def _figures(result: "AuditResult") -> parts.Html:
    counts = result.indexed
    keyed = sum(counts.values()) - counts.get(Indexed.NO_KEYS, 0)
    found = counts.get(Indexed.INDEXED, 0)
    missing = counts.get(Indexed.MISSING, 0)
    pending = sum(one.pending for one in result.groups)
    groups = len({one.group for one in result.groups})
    backlog = sum(one.due + one.waiting for one in result.delays)
    due = parts.count_text(sum(one.due for one in result.delays), "message")
    if result.duplicated is None:
        duplicated, note = parts.NONE, "told by a table only"
    else:
        duplicated, note = parts.number_text(result.duplicated), "beyond the first of each"
    figures = [
        parts.figure("Messages", parts.number_text(result.messages), parts.size_text(result.bytes)),
        parts.figure(
            "Lost",
            parts.number_text(result.lost_count),
            "consumers do not get them",
            "warn" if result.lost_count else "ok",
        ),
        parts.figure(
            "Holes",
            parts.number_text(result.hole_count),
            parts.size_text(result.hole_bytes),
            "warn" if result.hole_count else "ok",
        ),
        parts.figure(
            "Found by key",
            parts.number_text(found),
            f"{missing:,} missing, {keyed - found - missing:,} not covered",
            "warn" if missing else "ok",
        ),
        parts.figure(
            "To be read", parts.number_text(pending), f"by {parts.count_text(groups, 'group')}"
        ),
        parts.figure("Delayed", parts.number_text(backlog), f"{due} due"),
        parts.figure("Stored again", duplicated, note),
    ]
    return parts.element("section", figures, class_="figures", aria_label="Key figures")


def _verdicts(result: "AuditResult") -> parts.Html:
    counts = result.verdicts
    rows = [(str(one), counts.get(one, 0), _VERDICT_COLORS[one]) for one in Verdict]
    total = sum(counts.values())
    shown = [row for row in rows if row[1]]
    return parts.card("Verdicts", parts.bar_list(shown, "others", total, parts.number_text))


def _sizes(result: "AuditResult") -> parts.Html:
    ordered = sorted(result.topics, key=lambda one: -one.bytes)
    rows = [
        (one.topic, one.bytes, f"s{number}" if number < parts.COLOR_COUNT else "sx")
        for number, one in enumerate(ordered)
    ]
    others = parts.count_text(len(rows) - parts.BARS_MAX, "other topic")
    return parts.card("Bytes by topic", parts.bar_list(rows, others, result.bytes, parts.size_text))


def _lags(result: "AuditResult") -> parts.Html:
    by_group: dict[str, int] = {}
    for one in result.groups:
        by_group[one.group] = by_group.get(one.group, 0) + one.pending
    rows = [(group, pending, "plain") for group, pending in by_group.items() if pending]
    if not rows:
        words = "Every group has read what it reads." if by_group else "No group has an offset."
        return parts.card("To be read, by group", parts.nothing(words))
    others = parts.count_text(len(rows) - parts.BARS_MAX, "other group")
    total = sum(by_group.values())
    return parts.card(
        "To be read, by group", parts.bar_list(rows, others, total, parts.number_text)
    )


def _delays(result: "AuditResult") -> parts.Html:
    title = "Delayed, by level"
    if not result.delays:
        return parts.card(title, parts.nothing("No delayed message."))
    rows = [
        (f"level {one.level}", one.due + one.waiting, "s1" if one.due else "plain")
        for one in result.delays
        if one.due + one.waiting
    ]
    heads = ["Level", "Delivered", "Due", "Waiting", "Bytes to come", "Oldest due"]
    lines = [
        (
            one.level,
            one.delivered,
            one.due,
            one.waiting,
            one.backlog_bytes,
            parts.moment(one.oldest_due_ms),
        )
        for one in result.delays
    ]
    others = parts.count_text(len(rows) - parts.BARS_MAX, "other level")
    total = sum(value for _, value, _ in rows)
    plot = parts.bar_list(rows, others, total, parts.number_text)
    return parts.card(
        title,
        plot if rows else parts.nothing("All are delivered."),
        parts.details(parts.data_table("Delay levels", heads, lines, by=0, order="ascending")),
    )


def _lost(result: "AuditResult") -> parts.Html:
    counts = result.verdicts
    total = counts.get(Verdict.LOST, 0) + counts.get(Verdict.DAMAGED, 0)
    if not total:
        return parts.card("Lost and damaged messages", parts.nothing("None."))
    heads = ["Physical offset", "Topic", "Queue", "Queue offset", "Verdict", "Why"]
    heads += ["Unique key", "Stored"]
    rows = [
        (
            one.physical_offset,
            one.topic,
            one.queue_id,
            one.queue_offset,
            str(one.verdict),
            one.reason.replace("_", " "),
            parts.code_text(one.unique_key or parts.NONE),
            parts.moment(one.store_timestamp),
        )
        for one in result.lost
    ]
    return parts.card(
        "Lost and damaged messages",
        parts.data_table("Messages that consumers do not get", heads, rows),
        parts.more_of(total - len(rows), "message"),
    )


def _holes(result: "AuditResult") -> parts.Html:
    heads = ["Physical offset", "Bytes", "Why", "File", "Stored after", "Stored before"]
    heads += ["Messages lost", "Of queues"]
    rows = [
        (
            one.physical_offset,
            one.length,
            one.reason,
            parts.code_text(one.file),
            parts.moment(one.before_ms),
            parts.moment(one.after_ms),
            one.lost_count,
            _queues_of(one),
        )
        for one in result.holes
    ]
    table = parts.data_table("Bytes of the log that are no record", heads, rows)
    return parts.card("Holes", table, parts.more_of(result.hole_count - len(rows), "hole"))


def _queues_of(hole: "AuditedHole") -> str:
    told = [
        f"{one.topic}/{one.queue_id} from {one.queue_offset}, {one.count:,}"
        for one in hole.missing[:_MISSING_SHOWN]
    ]
    rest = len(hole.missing) - _MISSING_SHOWN
    return "; ".join([*told, *([f"{rest:,} more"] if rest > 0 else [])]) or parts.NONE


def _findings(result: "AuditResult") -> parts.Html:
    heads = ["What", "Where", "Found", "Count", "Kind"]
    rows = [
        (
            one.fault.replace("_", " "),
            one.where,
            one.text,
            one.count,
            "note" if one.is_note or one.fault in NOTES else "fault",
        )
        for one in result.findings
        if one.fault is not Fault.HOLE
    ]
    total = sum(count for name, count in result.faults.items() if name != Fault.HOLE)
    told = sum(one.count for one in result.findings if one.fault is not Fault.HOLE)
    table = parts.data_table("What is wrong besides messages", heads, rows)
    return parts.card("Findings", table, parts.more_of(total - told, "finding"))


def _topics(result: "AuditResult") -> parts.Html:
    heads = ["Topic", "Messages", "Bytes", *(str(one) for one in Verdict)]
    heads += ["Gone without a trace", "Not found by key", "First stored", "Last stored"]
    rows = [_topic(one) for one in result.topics]
    return parts.card("Topics", parts.data_table("Every topic, system topics too", heads, rows))


def _topic(one: "TopicAudit") -> tuple[object, ...]:
    return (
        one.topic,
        one.messages,
        one.bytes,
        *(one.verdicts.get(verdict, 0) for verdict in Verdict),
        one.missing,
        one.indexed.get(Indexed.MISSING, 0),
        parts.moment(one.first_ms),
        parts.moment(one.last_ms),
    )


def _groups(result: "AuditResult") -> parts.Html:
    heads = ["Group", "Topic", "Lag", "Read", "To be read", "Bytes to be read", "Oldest of them"]
    heads += ["Expired unread"]
    rows = [
        (
            one.group,
            one.topic,
            one.lag,
            one.consumed,
            one.pending,
            one.pending_bytes,
            parts.moment(one.oldest_pending_ms),
            one.expired,
        )
        for one in result.groups
    ]
    return parts.card("Groups", parts.data_table("What groups have read", heads, rows))
