"""Text of the results of pipeline jobs: fields first, then a table for each list."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reput.cli.printing import Block, Fields, Table, size_text

if TYPE_CHECKING:
    from reput.spark.jobs.archive import ArchiveResult, VerifyResult
    from reput.spark.jobs.audit.verdicts import AuditResult
    from reput.spark.jobs.compact import CompactResult
    from reput.spark.jobs.compare import Comparison
    from reput.spark.jobs.convert import Converted
    from reput.spark.jobs.dispatch import DispatchResult
    from reput.spark.jobs.dispatch.difference import Difference
    from reput.spark.jobs.dispatch.follow import Followed
    from reput.spark.jobs.restore import RestoreResult
    from reput.spark.jobs.salvage import Salvaged

_ROWS_MAX = 100
"""Maximum number of rows of a table; JSON output has all rows."""


def dispatch(result: "DispatchResult") -> list[Block]:
    """Return the text of a dispatch: the files it created, or how the existing ones differ."""
    fields = Fields(
        {
            "store": result.store,
            "log": f"physical offset {result.log_start} to {result.log_end}",
            "messages": result.records,
            "queues": f"{result.queues}, {result.units} units"
            + (f", {result.refilled_units} for lost messages" if result.refilled_units else ""),
            "index": f"{len(result.index_files)} files, {result.index_entries} entries",
            **({"written to": result.target} if result.target is not None else {}),
        }
    )
    difference = _difference(result.difference) if result.difference is not None else []
    return [fields, *_unqueued_and_holes(result), *difference]


def follow(result: "Followed") -> list[Block]:
    """Return the text of the progress of a dispatch that follows a broker."""
    fields = Fields(
        {
            "store": result.store,
            "kept in": result.target,
            "log": f"physical offset {result.log_start} to {result.log_end} of {result.store_end}",
            "caught up": result.is_caught_up,
            "this time": f"{result.records} messages, {result.units} units, "
            f"{result.index_entries} index entries in {result.steps} steps",
            "index": f"{result.index_files} files",
        }
    )
    return [fields, *_unqueued_and_holes(result)]


def _unqueued_and_holes(result: "DispatchResult | Followed") -> list[Block]:
    return [
        _table(["in no queue", "#messages"], result.unqueued.items()),
        _table(["#hole at", "#bytes", "why"], result.holes),
    ]


def _difference(difference: "Difference") -> list[Block]:
    fields = Fields(
        {"compared with": difference.compared_with, "byte-identical": difference.is_same}
    )
    if difference.expired_units:
        fields["expired"] = f"{difference.expired_units} units of messages deleted from the log"
    queues = "topic #queue=queue_id #missing #different #too_many=extra"
    index = "#index_file=number name #first_byte_that_differs=first_byte"
    return [fields, _table(queues, difference.queues), _table(index, difference.index)]


def audit(result: "AuditResult") -> list[Block]:
    """Return the text of an audit: verdicts on messages, and faults."""
    fields = Fields(
        {
            "store": result.store,
            "broker": f"{result.broker or 'not named'}, left {result.condition}",
            "log": f"physical offset {result.log_start} to {result.log_end}",
            "messages": f"{result.messages}, {size_text(result.bytes)}",
            "verdicts": _counts(result.verdicts),
            "index": _counts(result.indexed),
            **({"on their way": _counts(result.stages)} if result.stages else {}),
            **({} if result.duplicated is None else {"stored twice": result.duplicated}),
            "lost": result.lost_count,
            "holes": f"{result.hole_count}, {size_text(result.hole_bytes)}",
            "faults": _counts(result.faults) or "none",
            **({} if result.table is None else {"table": result.table}),
            "clean": result.is_clean,
        }
    )
    lost = (
        "topic #queue=queue_id #queue_offset #physical_offset "
        "@stored=store_timestamp verdict why=reason"
    )
    holes = (
        "#hole_at=physical_offset #bytes=length file @from=before_ms @to=after_ms "
        "#messages_lost=lost_count why=reason"
    )
    groups = (
        "group topic #lag #bytes=pending_bytes @oldest_stored=oldest_pending_ms "
        "#expired_unread=expired"
    )
    delays = (
        "#delay_level=level #delivered #due #waiting #bytes=backlog_bytes @oldest_due=oldest_due_ms"
    )
    return [
        fields,
        _table(lost, result.lost, "reason"),
        _table(holes, result.holes),
        _table("fault where what=text", result.findings, "fault"),
        _table(groups, result.groups),
        _table(delays, result.delays),
    ]


def salvage(result: "Salvaged") -> list[Block]:
    """Return the text of a salvage: recovered and lost messages."""
    fields = Fields(
        {
            "store": result.source,
            "written to": result.target,
            "log": f"physical offset {result.start_offset} to {result.end_offset}",
            "recovered": f"{result.record_count} messages, {size_text(result.record_bytes)}",
            "lost": f"{result.lost_count} messages that queues refer to",
            "holes": f"{len(result.holes)}, {size_text(result.hole_bytes)}",
            "duplicates": result.duplicate_count,
            **{path: state for path, state in result.tables if state != "copied"},
        }
    )
    holes = "#hole_at=physical_offset #bytes=length file @stored_about=store_timestamp why=reason"
    queues = (
        "topic #queue=queue_id #recovered=message_count #from=start #to=stop #lost=lost_count "
        "#duplicates=duplicate_count"
    )
    moved = "offset_of=name topic #queue=queue_id #was=before #is=after"
    return [
        fields,
        _table(holes, result.holes),
        _table(queues, result.queues),
        _table(moved, result.moved_offsets),
        *result.notes,
    ]


def convert(result: "Converted") -> list[Block]:
    """Return the text of a conversion: the content of the new store, and the bytes left out."""
    fields = {
        "store": f"{result.source}, {result.form}",
        "written to": result.target,
        "log": f"physical offset {result.start_offset} to {result.end_offset}",
        "messages": f"{result.record_count}, {size_text(result.record_bytes)}",
        "queues": result.queue_count,
        "mappedFileSizeCommitLog": result.file_bytes,
        "mappedFileSizeConsumeQueue": result.queue_file_bytes,
    }
    if result.moved_from is not None:
        fields["moved"] = (
            f"all messages from physical offset {result.moved_from} on, and "
            f"{result.changed_references} references to them: ids of offsets are new"
        )
    if result.ledger is not None:
        state = result.ledger
        fields["entries"] = (
            f"{state.member}, {state.first_index} to {state.last_index}, committed to "
            f"{'unknown' if state.committed_index is None else state.committed_index}"
        )
        fields["uncommitted"] = f"{state.uncommitted_count or 0}: {result.uncommitted}"
    left_out = "#left_out_at=physical_offset #bytes=length file why=reason"
    moved = "offset_of=name topic #queue=queue_id #was=before #is=after"
    return [
        Fields(fields),
        _table(left_out, result.left_out),
        _table(moved, result.moved_offsets),
        *result.notes,
    ]


def compare(result: "Comparison") -> list[Block]:
    """Return the text of a comparison of two stores."""
    fields = Fields({"left": result.left, "right": result.right})
    if result.matched_by:
        fields["messages matched by"] = (
            "physical offset" if result.matched_by == "physical" else "topic, queue, queue offset"
        )
    for section in result.sections:
        kinds = {kind: count for kind, count in result.counts.get(section, {}).items() if count}
        text = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items())
        fields[section] = text or "equal"
    fields["equal"] = result.is_equal
    return [fields, _table("section kind what=text", result.findings, "kind")]


def archive(result: "ArchiveResult") -> list[Block]:
    """Return the text of an archiving."""
    return [
        Fields(
            {
                "store": result.store,
                "archive": result.archive,
                "archived": f"{result.log_files} log files, {result.messages} messages, "
                f"{size_text(result.log_bytes)}",
                "as": f"{result.parquet_files} Parquet files, {size_text(result.archive_bytes)}",
                "there before": f"{result.already_archived} log files",
                "left": f"{result.left} log files still in use",
                "damaged": f"{result.damaged_runs} runs, {size_text(result.damaged_bytes)}, kept",
            }
        )
    ]


def verify(result: "VerifyResult") -> list[Block]:
    """Return the text of a check of an archive."""
    fields = Fields(
        {
            "archive": result.archive,
            "holds": f"{result.log_files} log files, {result.messages} messages, "
            f"{size_text(result.archive_bytes)}",
            "whole": result.is_whole,
        }
    )
    return [fields, _table(["problem"], ([problem] for problem in result.problems))]


def restore(result: "RestoreResult") -> list[Block]:
    """Return the text of a restore."""
    return [
        Fields(
            {
                "archive": result.archive,
                "written to": result.store,
                "log": f"{result.log_files} files, {result.messages} messages, "
                f"{size_text(result.log_bytes)}",
                "byte-identical": result.is_identical,
                "damaged": f"{size_text(result.damaged_bytes)}, as they were",
                "mappedFileSizeCommitLog": result.file_bytes,
            }
        )
    ]


def compact(result: "CompactResult") -> list[Block]:
    """Return the text of a compaction, done or planned."""
    removed = "would remove" if result.is_dry_run else "removed"
    changed = f"{result.changed_log_files} removed or changed"
    fields = Fields(
        {
            "compacted": result.source,
            "written to": result.target if result.is_written else "nothing",
            "log files": f"{result.log_files} closed, {changed}",
            removed: f"{result.messages_dropped} messages",
            "kept": f"{result.messages_kept} messages",
            "freed": size_text(result.freed_bytes),
            **({"mappedFileSizeCommitLog": result.file_bytes} if result.file_bytes else {}),
        }
    )
    topics = "topic #messages #bytes=record_bytes"
    return [fields, _table(topics, result.topics)]


def _table(columns: str | Sequence[str], rows: Iterable[Any], *words: str) -> Table:
    """Return a table, which is omitted if it has no rows; a time of 0 is shown as absent.

    Args:
        columns: The columns, as of ``Table``.
        rows: The rows.
        *words: Attributes whose underscores are shown as spaces.
    """
    computed = {name: _words(name) for name in words}
    table = Table(columns, rows, computed=computed, is_optional=True, count_max=_ROWS_MAX)
    for row in table.cells:
        for number, heading in enumerate(table.headings):
            if heading.startswith("@"):
                row[number] = row[number] or None
    return table


def _counts(counts: Mapping[str, int]) -> str:
    """Return counts by name, largest first: ``12 dispatched, 1 lost``."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ordered if count)


def _words(name: str) -> Callable[[Any], object]:
    return lambda row: str(getattr(row, name)).replace("_", " ")
