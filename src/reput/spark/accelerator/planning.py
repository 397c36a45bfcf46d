"""Plans a read for the accelerator: the planner's partitions, as ranges of whole records.

A read is plain if each of its options is in ``_KEPT`` or has its default, and if the planner reads
ranges of a complete local log. Damage inside of a range is an error of the task, as in FAILFAST.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reput.format import body, sys_flag as flags
from reput.spark import plan
from reput.spark.options import ReadOptions
from reput.spark.partition_reader import open_for
from reput.spark.rows import FIELDS, hidden_topics, message_fields
from reput.spark.scan import MessageScan
from reput.spark.store_planner import Task
from reput.store.files import paths
from reput.store.files.files import LocalFolder
from reput.store.log.commit_log_view import CommitLogView

_KEPT = (
    *("paths", "topics", "start_physical_offset", "end_physical_offset", "broker", "scan"),
    *("min_partitions", "max_records_per_partition", "max_bytes_per_partition"),
    *("columns", "include_headers", "include_body", "decompress", "isolation", "check_crc"),
    *("fail_on_data_loss", "late_timestamp", "pushdown", "trigger"),
)
"""Options that the planner uses up, or that the plan has, or that mean nothing to these reads."""
_MAP_BYTES_MAX = (1 << 31) - 1
"""Largest file that Java maps at once."""


def plan_of(options: ReadOptions) -> str | None:
    """Return the plan of a read as the jar takes it (Plan.java); None if the read is not plain.

    Raises:
        ReputError: As ``MessageScan.tasks``.
    """
    defaults = {name: getattr(_DEFAULTS, name) for name in _KEPT}
    if dataclasses.replace(options, **defaults) != _DEFAULTS:
        return None
    fields = message_fields(options)
    columns = options.columns or tuple(fields)
    if not fields.keys() >= {*columns}:
        return None  # load() of the Python source has the error
    partitions = _partitions(MessageScan(options, columns).tasks())
    if partitions is None:
        return None
    return json.dumps(
        {
            "columns": columns,
            "checkCrc": options.check_crc,
            "decompress": options.decompress,
            "bodyBytesMax": body.BODY_BYTES_MAX,
            "topics": None if options.topics is None else sorted(options.topics),
            "hiddenTopics": sorted(hidden_topics(options)),
            "hiddenFlags": _hidden_flags(options),
            "partitions": partitions,
        }
    )


def can_make(options: ReadOptions, columns: Sequence[str]) -> bool:
    """Return whether the jar can make columns of messages of brokers."""
    has_other_values = options.charset is not None or options.replaced_columns
    return not has_other_values and FIELDS.keys() >= {*columns}


def plan_of_pulled(options: ReadOptions, columns: Sequence[str], pulls: Mapping[str, Any]) -> str:
    """Return the plan of rows of running brokers.

    Args:
        options: Options of the read.
        columns: Names of the needed columns.
        pulls: Pulls that tasks send by themselves, of ``LiveScan.plain_pulls``. Python workers
            pull, check and select everything else.
    """
    return json.dumps(
        {
            "columns": columns,
            "checkCrc": options.check_crc,
            "decompress": options.decompress,
            "bodyBytesMax": body.BODY_BYTES_MAX,
            "hiddenFlags": _hidden_flags(options),
            "pulls": pulls,
        }
    )


def _hidden_flags(options: ReadOptions) -> int:
    return flags.TRANSACTION_PREPARED if options.isolation == "committed" else 0


_DEFAULTS = ReadOptions(paths=())


def _partitions(tasks: Sequence[Task]) -> list[dict[str, Any]] | None:
    """Return the partitions of tasks; None if one of them is not a range of a complete log."""
    ranges = [task.partition for task in tasks if isinstance(task.partition, plan.LogRange)]
    if len(ranges) < len(tasks):
        return None
    partitions: list[dict[str, Any]] = []
    following: tuple[plan.LogRange, int] | None = None
    for task, part in reversed([*zip(tasks, ranges, strict=True)]):
        reader = open_for(task.facts, allow_live=False)
        if type(reader.folder) is not LocalFolder or "://" in reader.location:
            return None
        if reader.batch_queue_ids:  # their records have several rows
            return None
        if following and (following[0].store, following[0].start) == (part.store, part.stop):
            stop = following[1]
        elif part.is_end:
            stop = task.facts.end_offset
        else:
            stop = reader.log.part_start(part.stop, task.facts.end_offset)
        start = reader.log.part_start(part.start, part.stop)
        if start == part.stop:
            start = stop  # a record of an earlier partition reaches beyond this one
        following = part, start
        segments = [*_segments(reader.log, Path(reader.location, paths.COMMIT_LOG), start, stop)]
        if sum(segment["stop"] - segment["start"] for segment in segments) < stop - start:
            return None
        partitions.append({"broker": task.facts.broker, "segments": segments})
    return partitions[::-1]


def _segments(log: CommitLogView, folder: Path, start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Yield the parts of a range, by file, without bytes that no file has."""
    for file in log.files:
        low, high = max(start, file.start), min(stop, file.nominal_end)
        if low < high <= file.end and file.nominal_size <= _MAP_BYTES_MAX:
            yield {
                "path": str((folder / file.name).absolute()),
                "fileStart": file.start,
                "fileEnd": file.nominal_end,
                "start": low,
                "stop": high,
            }
