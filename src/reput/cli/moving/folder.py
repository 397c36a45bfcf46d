"""Checks of a store folder: condition, files, end of the log, tables, permissions."""

import os
import pwd
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path

from reput.cli.moving.findings import Findings
from reput.cli.printing import size_text
from reput.cli.processes import pid_of_store
from reput.errors import CorruptRecord, NotInStore, ReputError
from reput.format import cq_unit, index_entry
from reput.format.checkpoint_page import Checkpoint
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.files import Folder, open_folder
from reput.store.foreign import ledger
from reput.store.foreign.ledger_reader import LedgerReader
from reput.store.index.index_view import IndexFileView
from reput.store.log.commit_log_view import Damage
from reput.store.reader import Condition, StoreReader, process_name
from reput.store.tables import config_tables

CHECKED_BYTES = 64 * 1024 * 1024
"""Bytes at the end of the log whose records are compared with their checksums."""
DISPATCH_BYTES_PER_S = 200 * 1024 * 1024
"""Bytes of the log that a start dispatches again in a second, with messages of 1 KiB and keys."""
QUEUES_PER_S = 10_000
"""Queues that a start reads in a second."""
AHEAD_MS = 60_000
"""Store times so far after the clock mean that the clock is wrong."""

_SINCE_5 = (
    paths.TIMER_CHECK,
    f"{paths.CONFIG}/timermetrics",
    f"{paths.CONFIG}/transactionMetrics",
    paths.CONSUMER_ORDER,
    paths.BATCH_CONSUME_QUEUE,
)
"""Files that brokers of 5.x create, and those of 4.x do not."""
_SINCE_5_4 = "rocksdbstore"
_NECESSARY: Mapping[str, Callable[[Folder], Sized | None]] = {
    paths.TOPICS: config_tables.topics,
    paths.SUBSCRIPTION_GROUPS: config_tables.subscription_groups,
    paths.CONSUMER_OFFSETS: config_tables.consumer_offsets,
    **{
        path: partial(config_tables.load, path=path)
        for path in (
            paths.CONSUMER_FILTERS,
            paths.REQUEST_MODES,
            paths.CONSUMER_ORDER,
            paths.USERS,
            paths.ACLS,
        )
    },
}
"""Tables without which a broker does not start if they are damaged, and their readers."""


def open_reader(config: StoreConfig) -> StoreReader | None:
    """Return a reader of a broker's store; None if there is none.

    Raises:
        StoreUnavailable: The folder is a file, or cannot be read.
    """
    root = config.store_path_root_dir
    if not Path(root).exists():
        return None
    folder = open_folder(root, commit_log_folders=config.commit_log_folders)
    if ledger.has_entries(folder):
        return LedgerReader(folder)
    log = folder.entry(paths.COMMIT_LOG)
    is_elsewhere = any(Path(part).is_dir() for part in config.commit_log_folders)
    has_log = is_elsewhere or (log is not None and log.is_folder)
    return StoreReader(folder) if has_log else None


def check(reader: StoreReader, config: StoreConfig, now_ms: int) -> Findings:
    """Check a store; the reader must not have been used before.

    Args:
        reader: The store.
        config: Settings with which a broker would open it.
        now_ms: The time in ms.
    """
    findings = Findings("store")
    _check_condition(reader, config, findings)
    _check_version(reader, findings)
    checks: Sequence[tuple[str, Callable[[], None]]] = (
        ("log", lambda: _check_log(reader, findings, now_ms)),
        ("file sizes", lambda: _check_sizes(reader, config, findings)),
        ("tables", lambda: _check_tables(reader, findings)),
        ("permissions", lambda: _check_permissions(config, findings)),
        ("start time", lambda: _check_start(reader, config, findings)),
    )
    for subject, run in checks:
        try:
            run()
        except NotInStore as error:  # a running broker has deleted a file meanwhile
            findings.warn(subject, str(error), "run the check again")
        except ReputError as error:
            findings.stop(subject, str(error), "reput store verify shows all of the damage")
    return findings


def _check_condition(reader: StoreReader, config: StoreConfig, findings: Findings) -> None:
    state = reader.state
    if state.condition is Condition.RUNNING:
        holder = state.lock_holder or 0
        if holder <= 0:  # the lock of an open file, as reput has it, names no process
            holder = pid_of_store(config.store_path_root_dir) or 0
        name = process_name(holder)
        findings.warn(
            "condition",
            f"running: {name} has the lock",
            "this is no obstacle to the check; stop that broker before the move, and check again",
        )
    elif state.condition is Condition.CRASHED:
        findings.warn(
            "condition",
            f"not stopped cleanly: {paths.ABORT} exists",
            "stop the old broker with SIGTERM, not SIGKILL; if it has crashed, the next start "
            "recovers the store. A broker on another machine is not noticed",
        )
    else:
        findings.ok("condition", "stopped cleanly")
    if state.checkpoint_problem is not None:
        findings.warn(
            "checkpoint",
            str(state.checkpoint_problem),
            "without it a recovery dispatches the whole log again, which takes longer",
        )
    if reader.folder.entry(paths.SLAVE) is not None:
        findings.warn(
            "role",
            "the store of a slave of reput",
            "check that it has everything that its master had: reput replication status",
        )


def _check_version(reader: StoreReader, findings: Findings) -> None:
    folder = reader.folder
    if any(folder.entry(path) for path in (paths.QUEUE_SUMMARY, paths.KNOWN_QUEUES)):
        findings.ok("written by", "reput, perhaps after a Java broker")
    elif folder.entry(_SINCE_5_4) is not None:
        findings.ok("written by", "RocketMQ 5.4 or later")
    elif any(folder.entry(path) for path in _SINCE_5):
        findings.ok("written by", "RocketMQ 5.x")
    else:
        findings.ok("written by", "RocketMQ 4.x, or no broker yet")


# --- the log ------------------------------------------------------------------------------------


def _check_log(reader: StoreReader, findings: Findings, now_ms: int) -> None:
    log = reader.log
    for gap in log.missing():
        findings.stop(
            "log",
            f"file {gap.file} is missing: {size_text(gap.length)}",
            "restore it; without it, these messages are lost",
        )
    tail = reader.tail
    file_count = len(log.files)
    text = f"{file_count} files, {size_text(sum(file.size for file in log.files))}"
    findings.ok("log", f"{text}, physical offset {log.min_offset} to {tail.end_offset}")
    for name, damage in (("torn tail", tail.torn), ("after the end", tail.stale)):
        if damage is not None:
            action = (
                "the start cuts it: no complete message is lost"
                if damage is tail.torn
                else "the start clears these bytes, which an earlier recovery has cut off"
            )
            place = f"physical offset {damage.physical_offset}"
            findings.warn(name, f"{size_text(damage.length)} from {place}", action)
    _check_records(reader, findings)
    newest = _newest_ms(reader)
    if newest is not None and newest > now_ms + AHEAD_MS:
        findings.stop(
            "clock",
            f"the last message was stored {(newest - now_ms) // 1000} s after the current time",
            "set the clock of this machine; store times must not decrease",
        )


def _check_records(reader: StoreReader, findings: Findings) -> None:
    """Compare the records at the end of the log with their checksums."""
    end = reader.end_offset
    first = max(end - CHECKED_BYTES, reader.log.min_offset)
    start = reader.log.part_start(first, end) if first > reader.log.min_offset else first
    count = 0
    damages: list[Damage] = []
    for batch in reader.walk(start, end):
        count += len(batch.positions)
        damages += batch.damage
    if damages:
        lost, hole = sum(damage.length for damage in damages), damages[0]
        findings.warn(
            "records",
            f"{len(damages)} holes of {size_text(lost)} in the last {size_text(end - start)}, the "
            f"first at physical offset {hole.physical_offset}: {hole.reason}",
            "it was there before the move and stays as it is; reput store verify shows all damage",
        )
    else:
        findings.ok("records", f"the last {count} ({size_text(end - start)}) have no damage")


def _newest_ms(reader: StoreReader) -> int | None:
    end = reader.end_offset
    for file in reversed(reader.log.files):
        if file.start < end and (last := reader.log.last_record(file, end)) is not None:
            return last.store_timestamp
    return None


# --- files --------------------------------------------------------------------------------------


def _check_sizes(reader: StoreReader, config: StoreConfig, findings: Findings) -> None:
    """Compare the sizes of files with the settings, by the rules of a start."""
    index_bytes = index_entry.entry_position(config.max_index_num, config.max_hash_slot_num)
    queue_files = (file.size for queue in reader.queues() for file in queue.files)
    batch_files = (
        file.size
        for topic, queue_ids in reader.batch_queue_ids.items()
        for queue_id in queue_ids
        for file in reader.batch_queue(topic, queue_id).files
    )
    families = (
        ("mappedFileSizeCommitLog", config.mapped_file_size_commit_log, _log_sizes(reader), 1),
        (
            "mappedFileSizeConsumeQueue",
            config.mapped_file_size_consume_queue,
            queue_files,
            cq_unit.SIZE,
        ),
        (
            "mapperFileSizeBatchConsumeQueue",
            config.mapper_file_size_batch_consume_queue,
            batch_files,
            cq_unit.BATCH_SIZE,
        ),
        (
            "maxHashSlotNum, maxIndexNum",
            index_bytes,
            (file.size for file in reader.index.files),
            1,
        ),
    )
    for key, configured, file_sizes, unit in families:
        sizes = Counter(size for size in file_sizes if size)
        others = {size: count for size, count in sizes.items() if size != configured}
        if not others:
            if sizes:
                findings.ok(f"size by {key}", f"{sizes.total()} files of {configured} bytes")
            continue
        usual = sizes.most_common(1)[0][0]
        is_log = key == "mappedFileSizeCommitLog"
        if max(others) < configured and configured in sizes and not is_log:
            findings.warn(
                f"size by {key}",
                f"{sum(others.values())} of {sizes.total()} files are shorter than {configured}",
                "a start makes them again from the log",
            )
        else:
            findings.stop(
                f"size by {key}",
                f"files have {usual} bytes, with these settings {configured}",
                _size_cure(key, usual, unit),
            )


def _log_sizes(reader: StoreReader) -> Iterator[int]:
    return (file.size for file in reader.log.files)


def _size_cure(key: str, usual: int, unit: int) -> str:
    if "," in key:
        return f"set {key} to the values of the old broker"
    return f"set {key}={usual // unit * unit} in broker.conf, or what the old broker has"


def _check_tables(reader: StoreReader, findings: Findings) -> None:
    counts = []
    for path, read in _NECESSARY.items():
        name = path.removeprefix(f"{paths.CONFIG}/")
        try:
            entries = read(reader.folder)
        except CorruptRecord as error:
            findings.stop("tables", str(error), f"repair {path}, or restore it from a backup")
            continue
        if entries is not None:
            counts.append(f"{len(entries)} entries in {name}")
    if counts:
        findings.ok("tables", ", ".join(counts))
    has_messages = reader.end_offset > reader.log.min_offset
    for path in (paths.TOPICS, paths.CONSUMER_OFFSETS):
        others = (path, path + paths.BACKUP_SUFFIX, paths.LIGHT_CONSUMER_OFFSETS)
        if has_messages and not any(map(reader.folder.entry, others)):
            findings.warn(
                "tables",
                f"{path} does not exist, although there are messages",
                "restore it: without it, topics or consumer offsets are those of a new broker",
            )
    for path in (paths.DELAY_OFFSETS, paths.TIMER_PROGRESS):
        try:
            config_tables.load(reader.folder, path)
        except CorruptRecord as error:
            findings.warn("tables", str(error), "restore it; without it deliveries may be repeated")


def _check_permissions(config: StoreConfig, findings: Findings) -> None:
    """Check that this user can write to all files, and that they belong to it."""
    count, denied = 0, []
    for path, is_folder in _all_files(config):
        count += 1
        mode = os.R_OK | os.W_OK | (os.X_OK if is_folder else 0)
        if not os.access(path, mode):
            denied.append(path)
    if denied:
        findings.stop(
            "permissions",
            f"this user cannot read and write {len(denied)} of {count} files, such as {denied[0]}",
            "run reput as the user of the old broker, or change the owner after it has stopped",
        )
    else:
        findings.ok("permissions", f"this user can read and write {count} files")
    owner = os.stat(config.store_path_root_dir).st_uid  # noqa: PTH116 - paths are texts here
    if owner != os.geteuid():
        findings.warn(
            "owner",
            f"the folder belongs to {_user(owner)}, and this is {_user(os.geteuid())}",
            f"run reput as {_user(owner)}: on the way back Java must write to the same files",
        )


def _user(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"


def _all_files(config: StoreConfig) -> Iterator[tuple[str, bool]]:
    """Yield the path of each file and folder, and whether it is a folder."""
    root = config.store_path_root_dir
    for folder in dict.fromkeys((root, *config.commit_log_folders)):
        if folder != root and folder.startswith(f"{root}/"):
            continue
        for path, _, names in os.walk(folder):
            yield path, True
            yield from ((f"{path}/{name}", False) for name in names)


# --- the start ----------------------------------------------------------------------------------


def _check_start(reader: StoreReader, config: StoreConfig, findings: Findings) -> None:
    """Estimate how long a start takes."""
    queue_count = sum(map(len, reader.queue_ids.values()))
    end = reader.end_offset
    start = end if reader.state.condition is Condition.CLEAN else _dispatch_start(reader)
    if not reader.queue_ids and end > reader.log.min_offset:
        start = reader.log.min_offset
    seconds = round(0.5 + queue_count / QUEUES_PER_S + (end - start) / DISPATCH_BYTES_PER_S)
    work = f"{size_text(end - start)} of the log to dispatch again, {queue_count} queues to read"
    if reader.state.condition is Condition.RUNNING:
        work += "; after a clean stop, nothing to dispatch"
    findings.ok("start time", f"about {max(seconds, 1)} s: {work}")


def _dispatch_start(reader: StoreReader) -> int:
    """Return about where a recovery after a crash begins to dispatch."""
    saved = reader.state.checkpoint or Checkpoint()
    log = reader.log
    start = saved.queue_physical_offset
    if not log.min_offset < start < reader.end_offset:
        start = log.min_offset
        for file in reversed(log.files):
            first = log.first_record(file) if file.start < reader.end_offset else None
            if first is not None and first.store_timestamp <= saved.min_timestamp:
                start = file.start
                break
    synced = [
        file.header.end_physical_offset
        for file in reader.index.files
        if _is_synced(file, saved.index_timestamp)
    ]
    return min(start, max(synced, default=log.min_offset))


def _is_synced(file: IndexFileView, index_timestamp: int) -> bool:
    try:
        return file.header.end_timestamp <= index_timestamp
    except CorruptRecord:
        return False
