"""What jobs of the pipeline found and did, as text: fields first, then a table for each list."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from reput.cli.printing import Clock, Row, print_fields, print_table, size_text

if TYPE_CHECKING:
    from reput.spark.jobs.archive import ArchiveResult, VerifyResult
    from reput.spark.jobs.audit.verdicts import AuditResult
    from reput.spark.jobs.compact import CompactResult
    from reput.spark.jobs.compare import Comparison
    from reput.spark.jobs.dispatch import DispatchResult
    from reput.spark.jobs.dispatch.difference import Difference
    from reput.spark.jobs.dispatch.follow import Followed
    from reput.spark.jobs.restore import RestoreResult
    from reput.spark.jobs.salvage import Salvaged

_ROWS_MAX = 100
"""Of a table; JSON has them all."""


def dispatch(result: "DispatchResult", clock: Clock) -> None:
    """Print what a dispatch made, or how what is there differs."""
    print_fields(
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
    _table(["in no queue", "#messages"], result.unqueued.items())
    _table(["#hole at", "#bytes", "why"], result.holes)
    if result.difference is not None:
        _difference(result.difference)


def follow(result: "Followed", clock: Clock) -> None:
    """Print how far a dispatch that follows has come."""
    print_fields(
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
    _table(["in no queue", "#messages"], result.unqueued.items())
    _table(["#hole at", "#bytes", "why"], result.holes)


def _difference(found: "Difference") -> None:
    print()
    fields: dict[str, object] = {
        "compared with": found.compared_with,
        "byte-identical": found.is_same,
    }
    if found.expired_units:
        fields["expired"] = f"{found.expired_units} units of messages that the log has no more"
    print_fields(fields)
    _table(
        ["topic", "#queue", "#missing", "#different", "#too many"],
        ((one.topic, one.queue_id, one.missing, one.different, one.extra) for one in found.queues),
    )
    _table(
        ["#index file", "name", "#first byte that differs"],
        ((one.number, one.name, one.first_byte) for one in found.index),
    )


def audit(result: "AuditResult", clock: Clock) -> None:
    """Print what became of the messages, and what is wrong."""
    print_fields(
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
    _table(
        ["topic", "#queue", "#queue offset", "#physical offset", "@stored", "verdict", "why"],
        (
            (
                one.topic,
                one.queue_id,
                one.queue_offset,
                one.physical_offset,
                _time(clock, one.store_timestamp),
                one.verdict,
                one.reason.replace("_", " "),
            )
            for one in result.lost
        ),
    )
    _table(
        ["#hole at", "#bytes", "file", "@from", "@to", "#messages lost", "why"],
        (
            (
                one.physical_offset,
                one.length,
                one.file,
                _time(clock, one.before_ms),
                _time(clock, one.after_ms),
                one.lost_count,
                one.reason,
            )
            for one in result.holes
        ),
    )
    _table(
        ["fault", "where", "what"],
        ((one.fault.replace("_", " "), one.where, one.text) for one in result.findings),
    )
    _table(
        ["group", "topic", "#behind", "#bytes", "@oldest stored", "#expired unread"],
        (
            (
                one.group,
                one.topic,
                one.lag,
                one.pending_bytes,
                _time(clock, one.oldest_pending_ms),
                one.expired,
            )
            for one in result.groups
        ),
    )
    _table(
        ["#delay level", "#delivered", "#due", "#waiting", "#bytes", "@oldest due"],
        (
            (
                one.level,
                one.delivered,
                one.due,
                one.waiting,
                one.backlog_bytes,
                _time(clock, one.oldest_due_ms),
            )
            for one in result.delays
        ),
    )


def salvage(result: "Salvaged", clock: Clock) -> None:
    """Print what was recovered, and what was not."""
    print_fields(
        {
            "store": result.source,
            "written to": result.target,
            "log": f"physical offset {result.start_offset} to {result.end_offset}",
            "recovered": f"{result.record_count} messages, {size_text(result.record_bytes)}",
            "lost": f"{result.lost_count} messages that queues knew of",
            "holes": f"{len(result.holes)}, {size_text(result.hole_bytes)}",
            "duplicates": result.duplicate_count,
            **{path: state for path, state in result.tables if state != "copied"},
        }
    )
    _table(
        ["#hole at", "#bytes", "file", "@stored about", "why"],
        (
            (one.physical_offset, one.length, one.file, _time(clock, one.store_timestamp), why)
            for one in result.holes
            for why in [one.reason]
        ),
    )
    _table(
        ["topic", "#queue", "#recovered", "#from", "#to", "#lost", "#duplicates"],
        (
            (
                one.topic,
                one.queue_id,
                one.message_count,
                one.start,
                one.stop,
                one.lost_count,
                one.duplicate_count,
            )
            for one in result.queues
        ),
    )
    _table(
        ["offset of", "topic", "#queue", "#was", "#is"],
        (
            (one.name, one.topic, one.queue_id, one.before, one.after)
            for one in result.moved_offsets
        ),
    )
    for note in result.notes:
        print(f"\n{note}")


def compare(result: "Comparison", clock: Clock) -> None:
    """Print how two stores differ."""
    fields: dict[str, object] = {"left": result.left, "right": result.right}
    if result.matched_by:
        fields["messages matched by"] = (
            "physical offset" if result.matched_by == "physical" else "topic, queue, queue offset"
        )
    for section in result.sections:
        kinds = {kind: count for kind, count in result.counts.get(section, {}).items() if count}
        told = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items())
        fields[section] = told or "equal"
    print_fields({**fields, "equal": result.is_equal})
    _table(
        ["section", "kind", "what"],
        ((one.section, one.kind.replace("_", " "), one.text) for one in result.findings),
    )


def archive(result: "ArchiveResult", clock: Clock) -> None:
    """Print what was archived."""
    print_fields(
        {
            "store": result.store,
            "archive": result.archive,
            "archived": f"{result.log_files} log files, {result.messages} messages, "
            f"{size_text(result.log_bytes)}",
            "as": f"{result.parquet_files} Parquet files, {size_text(result.archive_bytes)}",
            "there before": f"{result.already_archived} log files",
            "left": f"{result.left} log files that are written to",
            "damaged": f"{result.damaged_runs} runs, {size_text(result.damaged_bytes)}, kept",
        }
    )


def verify(result: "VerifyResult", clock: Clock) -> None:
    """Print whether an archive is whole."""
    print_fields(
        {
            "archive": result.archive,
            "holds": f"{result.log_files} log files, {result.messages} messages, "
            f"{size_text(result.archive_bytes)}",
            "whole": result.is_whole,
        }
    )
    _table(["problem"], ([problem] for problem in result.problems))


def restore(result: "RestoreResult", clock: Clock) -> None:
    """Print what was restored."""
    print_fields(
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


def compact(result: "CompactResult", clock: Clock) -> None:
    """Print what went, or would go."""
    would = "would go" if result.is_dry_run else "went"
    print_fields(
        {
            "compacted": result.source,
            "written to": result.target if result.is_written else "nothing",
            "log files": f"{result.log_files} closed, {result.changed_log_files} less or changed",
            would: f"{result.messages_dropped} messages",
            "stay": f"{result.messages_kept} messages",
            "freed": size_text(result.freed_bytes),
            **({"mappedFileSizeCommitLog": result.file_bytes} if result.file_bytes else {}),
        }
    )
    _table(
        ["topic", "#messages", "#bytes"],
        ((one.topic, one.messages, one.record_bytes) for one in result.topics),
    )


def _table(columns: list[str], rows: Iterable[Row]) -> None:
    found = list(rows)
    if found:
        print()
        print_table(columns, found[:_ROWS_MAX])
        if len(found) > _ROWS_MAX:
            print(f"... and {len(found) - _ROWS_MAX} more, see --json")


def _counts(counts: Mapping[str, int]) -> str:
    """Return counts by name, largest first: ``12 dispatched, 1 lost``."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ordered if count)


def _time(clock: Clock, timestamp_ms: int | None) -> str:
    return clock.text(timestamp_ms or None)
