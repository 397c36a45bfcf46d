"""Expiry: deletes old log files, and then the data derived from them.

    a file older than ``fileReservedTime``    is deleted in the hours of ``deleteWhen``; also at any
                                              hour above ``diskMaxUsedSpaceRatio``, or on command
    above ``diskSpaceCleanForciblyRatio``     the oldest file is deleted, whatever its age
    above ``diskSpaceWarningLevelRatio``      puts are refused, until the usage is no longer above
                                              ``diskSpaceCleanForciblyRatio``

With ``reputExpireOnlyArchived`` a file that is not in that archive is kept in all of these cases: a
full disk then stops puts, and loses no message.

Files are deleted from the oldest on, up to the first that must be kept; never the last file, and
none that dispatch has not read. Queues and index follow: minimum offsets at once
(known-bugs.md#minimum-offsets), their files one by one. The deletion of each log file is durable
(``step_disk``) before anything else is deleted, so that a crash leaves no gap, and no queue without
units of existing messages.

Every deletion is logged with its reason and the number of messages that a group had not read;
``RetentionCounts`` has the totals.

The disk check is independent of deletions: a deletion that fails or waits does not delay the moment
when puts are refused or accepted again (known-bugs.md#disk-check).
"""

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

from reput.errors import CorruptRecord, DiskFull, StoreUnavailable, WriteFailed
from reput.format import names
from reput.store.checkpoint import CheckpointFile
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.file_ages import FileAges
from reput.store.index.index_file import IndexFiles
from reput.store.log.archived import is_archived
from reput.store.log.commit_log import CommitLog
from reput.store.log.mapped_file import MappedFile
from reput.store.queues.batch_queue import BatchQueue, BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.queues.tombstones import Tombstones
from reput.store.tables.config_tables import ConsumerOffset
from reput.store.writing.dispatch import Dispatcher
from reput.store.writing.flush import Flusher

FIRST_ROUND_MS = 60_000
"""Delay of the first round after opening, as in Java: readers get a chance to catch up."""
DISK_CHECK_INTERVAL_MS = 10_000
MANUAL_ROUNDS = 20
QUEUES_PER_STEP = 64
"""Number of queues that one step checks, at 15 us each; a put waits no longer than that."""
OFFSETS_PER_STEP = 1_000
"""Number of consumer offsets that one step reads, at 1 us each."""
REPORTED_MAX = 20
"""Number of topics and groups with unread messages that are logged for one file."""
_MS_PER_HOUR = 3_600_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RetentionCounts:
    """Totals of deletions since the store was opened."""

    log_files: int = 0
    log_bytes: int = 0
    queue_files: int = 0
    index_files: int = 0
    failures: int = 0
    """Number of failed deletions; each is tried again."""
    unread: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of deleted messages that a group had not read, by (topic, group)."""
    never_read: Counter[str] = field(default_factory=Counter)
    """Number of deleted messages without a reader, by topic, without system topics."""


class Retention:
    """Deletes expired files.

    Args:
        config: Ages, hours and limits.
        disk: Makes deletions durable, and reports how full it is.
        log: The commit log.
        queues: The consume queues.
        batch_queues: The batch queues.
        index: The index files.
        dispatcher: Log files that it has not read are kept.
        flusher: Makes units durable before their messages are deleted.
        checkpoint: Contains the offset before which units are durable.
        tombstones: Tombstones, which expire with the log.
        consumer_offsets: Returns all consumer offsets; without it unread messages are unknown.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: IndexFiles,
        *,
        dispatcher: Dispatcher,
        flusher: Flusher,
        checkpoint: CheckpointFile,
        tombstones: Tombstones,
        consumer_offsets: Callable[[], Iterable[ConsumerOffset]] | None = None,
    ) -> None:
        self._config = config
        self._commit_log = log
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._checkpoint = checkpoint
        self._disk_space = _DiskSpace(config, disk, log)
        self._followers = _Followers(config, log, queues, batch_queues, index, tombstones)
        self.consumer_offsets = consumer_offsets
        """Source of consumer offsets; a broker sets its own, which are in memory."""
        self.counts = self._followers.counts
        self.ages = FileAges()
        """Ages of files, which do not depend on changes of the clock."""
        self._disk = disk
        self._unsynced_folder = ""  # folder of the last deleted log file
        self._sync_ms = 0
        self._manual_rounds = 0
        self._kept = ("", False)  # the file that waits to be archived; True in an emergency
        self._left = 0  # number of files that may be deleted in this round
        self._requested_flush = 0  # physical offset before which units must become durable
        self._is_first_step = True
        self._disk_check_ms = self._round_ms = self._redelete_ms = 0
        self._deletion_ms = self._retry_ms = 0

    @property
    def refusal(self) -> str:
        """Reason why puts are refused: the disk is too full; empty if it is not."""
        return self._disk_space.refusal

    def reconfigure(self, config: StoreConfig) -> None:
        """Use the hours, ages and limits of a new configuration."""
        self._config = self._disk_space.config = self._followers.config = config

    def expire_now(self, rounds: int = MANUAL_ROUNDS) -> None:
        """Delete expired files at any hour, in this many rounds; the next step begins the first."""
        self._manual_rounds = rounds
        self._round_ms = 0

    def step(self, now_ms: int, monotonic_ms: int) -> bool:
        """Do the work that is due, at most one deletion; return whether there was any.

        Disk errors are logged and counted; the next round tries again.

        Args:
            now_ms: Time of day in ms, for hours and ages.
            monotonic_ms: Monotonic time in ms, for intervals.
        """
        self.ages.note_time(now_ms, monotonic_ms)
        if self._is_first_step:
            self._is_first_step = False
            self._disk_check_ms = self._redelete_ms = self._retry_ms = monotonic_ms
            self._round_ms = monotonic_ms + (0 if self._manual_rounds else FIRST_ROUND_MS)
        if monotonic_ms >= self._disk_check_ms:
            self._disk_check_ms = monotonic_ms + DISK_CHECK_INTERVAL_MS
            self._disk_space.check()
        if self._followers.correct_some():
            return True
        if monotonic_ms < self._retry_ms:
            return False
        try:
            return self._step_files(now_ms, monotonic_ms)
        except WriteFailed as error:
            self.counts.failures += 1
            self._retry_ms = monotonic_ms + self._config.clean_resource_interval
            _log.error("expired files cannot be deleted now: %s", error)
            return False

    def step_disk(self, monotonic_ms: int) -> bool:
        """Make the last deletion durable; return whether there was one.

        Waits for the disk. May run in another thread than ``step``, which deletes nothing before
        that. Disk errors are logged and counted; the next round tries again.
        """
        if not self._unsynced_folder or monotonic_ms < self._sync_ms:
            return False
        try:
            self._disk.sync_folder(self._unsynced_folder)
        except WriteFailed as error:
            self.counts.failures += 1
            self._sync_ms = monotonic_ms + self._config.clean_resource_interval
            _log.error("a deletion is not durable yet: %s", error)
            return False
        self._unsynced_folder = ""
        return True

    def _step_files(self, now_ms: int, monotonic_ms: int) -> bool:
        config = self._config
        if self._unsynced_folder:
            return False
        if monotonic_ms >= self._redelete_ms:
            self._redelete_ms = monotonic_ms + config.redelete_hanged_file_interval
            forced_after_ms = config.destroy_maped_file_interval_forcibly
            self._commit_log.files.step(monotonic_ms, forced_after_ms)
        if monotonic_ms >= self._round_ms:
            self._round_ms = monotonic_ms + config.clean_resource_interval
            self._begin_round(now_ms)
        if self._left and monotonic_ms >= self._deletion_ms:
            file = self._commit_log.files.first
            reason = self._reason(file, now_ms) if file is not None else ""
            if file is None or not reason:
                self._left = 0
            elif self._has_durable_units(file):
                self._left -= 1
                self._delete(file, reason, monotonic_ms)
                return True
            elif self._requested_flush < file.end:
                self._requested_flush = file.end
                return True
        return self._followers.step(monotonic_ms)

    def _begin_round(self, now_ms: int) -> None:
        self._disk_space.check()
        hour = datetime.fromtimestamp(now_ms / 1000).hour  # noqa: DTZ006 - deleteWhen is local
        is_due = (
            hour in self._config.delete_hours
            or self._disk_space.is_short
            or self._manual_rounds > 0
        )
        self._manual_rounds = max(self._manual_rounds - 1, 0)
        self._left = self._config.delete_file_batch_max if is_due else 0
        self._requested_flush = 0

    def _has_durable_units(self, file: MappedFile) -> bool:
        """Return True if the units of a file's messages are durable; if not, request a flush.

        For a queue without messages, its units are the only record of where it ends. If a crash
        lost them, it would assign queue offsets again that consumers have passed.
        """
        if file.end <= self._checkpoint.fields.queue_physical_offset:
            return True
        if self._requested_flush >= file.end:
            return self._flusher.lacks_room  # space for the log has priority
        try:
            self._flusher.begin_writing_out()
        except DiskFull as error:
            _log.warning("units are not written, since the log needs space first: %s", error)
            return True
        return False

    def _delete(self, file: MappedFile, reason: str, monotonic_ms: int) -> None:
        config = self._config
        self._commit_log.delete_first(monotonic_ms, config.destroy_maped_file_interval_forcibly)
        self._deletion_ms = monotonic_ms + config.delete_commit_log_files_interval
        self._unsynced_folder = str(Path(file.path).parent)
        self.counts.log_files += 1
        self.counts.log_bytes += file.size
        _log.info(
            "deleted %s, physical offsets %d to %d: %s", file.path, file.start, file.end, reason
        )
        # Minimum offsets first: they are right even if the disk fails.
        self._followers.follow(file.path, self._offsets())
        self._followers.correct_some()

    def _reason(self, file: MappedFile, now_ms: int) -> str:
        """Return the reason why a file is deleted; empty if it is kept."""
        reason = self._expiry(file, now_ms)
        return reason if reason and self._has_archived(file) else ""

    def _has_archived(self, file: MappedFile) -> bool:
        """Return True if an expired file is in the required archive, or if none is required."""
        archive = self._config.reput_expire_only_archived
        if archive is None or is_archived(archive, file.start, file.size):
            return True
        emergency = self._disk_space.emergency
        if self._kept != (file.path, bool(emergency)):
            self._kept = file.path, bool(emergency)
            kept = "%s has expired but is kept: it is not in the archive %s"
            _log.warning(kept, file.path, archive)
            if emergency:
                _log.error("puts stop soon, until the archive has the file: %s", emergency)
        return False

    def _expiry(self, file: MappedFile, now_ms: int) -> str:
        """Return the reason why a file is due for deletion; empty if it is not."""
        files = self._commit_log.files
        if len(files.files) < 2 or file.end > self._dispatcher.dispatched_offset:
            return ""
        age_ms = self._age_ms(now_ms)
        hours = self._config.file_reserved_time
        if age_ms >= hours * _MS_PER_HOUR:
            age = age_ms / _MS_PER_HOUR
            return f"last written {age:.1f} hours ago, fileReservedTime is {hours}"
        if not self._config.clean_file_forcibly_enable or files.has_hanging:
            return ""  # the space of a file in use is not free yet
        self._disk_space.check()  # the previous deletion may have been enough
        return self._disk_space.emergency

    def _age_ms(self, now_ms: int) -> int:
        """Return the age of the oldest file."""
        modified_ms = []
        for file in self._commit_log.files.files:
            modified_ms.append(_modified_ms(file))
            if modified_ms[0] <= now_ms:
                break  # later files matter only if this time is in the future
        return self.ages.age_ms(modified_ms, now_ms)

    def note_opening(self, now_ms: int) -> None:
        """Record the age of the files when the store is opened; see ``file_ages``."""
        try:
            newest_ms = max(map(_modified_ms, self._commit_log.files.files), default=0)
        except WriteFailed as error:
            _log.warning("%s", error)
            return
        if newest_ms:
            reserved_ms = self._config.file_reserved_time * _MS_PER_HOUR
            self.ages.note_opening(now_ms, newest_ms, reserved_ms)

    def _offsets(self) -> Iterator[ConsumerOffset] | None:
        if self.consumer_offsets is None:
            return None
        try:
            return iter(self.consumer_offsets())
        except (CorruptRecord, StoreUnavailable) as error:
            _log.warning("it is unknown which of the expiring messages were read: %s", error)
            return None


def _modified_ms(file: MappedFile) -> int:
    try:
        return Path(file.path).stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise WriteFailed(file.path, f"has no readable age: {error.strerror}") from error


# --- the disk ---------------------------------------------------------------------------------


class _DiskSpace:
    """Usage of the fullest disk that must accept data.

    Of several folders of the log, one with free space is enough; queues have only one folder.
    """

    def __init__(self, config: StoreConfig, disk: Disk, log: CommitLog) -> None:
        self.config = config
        self._disk = disk
        self._commit_log = log
        self.refusal = ""
        self.is_short = False
        """True above diskMaxUsedSpaceRatio: expired files are deleted at any hour."""
        self.emergency = ""
        """Reason to delete files that have not expired: diskSpaceCleanForciblyRatio; else empty."""

    def check(self) -> None:
        """Read the usage of all disks; a disk that does not answer is logged and ignored."""
        files = self._commit_log.files
        used = {folder: self._percent(folder) for folder in files.folders}
        limit = self.config.disk_space_clean_forcibly_ratio
        files.full_folders = {
            folder for folder, percent in used.items() if percent is not None and percent > limit
        }
        writable = [folder for folder in files.folders if folder not in files.read_only_folders]
        usages = [
            (percent, folder)
            for folder in writable or files.folders
            if (percent := used[folder]) is not None
        ]
        folders = [min(usages)] if usages else []
        root = self.config.store_path_root_dir
        queues = f"{root}/{paths.CONSUME_QUEUE}"
        folder = queues if Path(queues).is_dir() else root
        percent = self._percent(folder)
        if percent is not None:
            folders.append((percent, folder))
        if folders:
            self._judge(*max(folders))

    def _percent(self, folder: str) -> int | None:
        try:
            return round(100 * self._disk.usage(folder))
        except StoreUnavailable as error:
            _log.warning("the usage of the disk is unknown: %s", error)
            return None

    def _judge(self, percent: int, folder: str) -> None:
        config = self.config
        self.is_short = percent > config.disk_max_used_space_ratio
        limit = config.disk_space_clean_forcibly_ratio
        is_emergency = percent > limit
        text = f"the disk of {folder} is {percent} % full, diskSpaceCleanForciblyRatio is {limit}"
        self.emergency = text if is_emergency else ""
        was_refused, warning = self.refusal, config.disk_space_warning_level_ratio
        if percent > warning:
            self.refusal = (
                f"the disk of {folder} is {percent} % full, diskSpaceWarningLevelRatio is {warning}"
            )
        elif not is_emergency:
            self.refusal = ""
        elif was_refused:  # as in Java: puts must not alternate around one limit
            self.refusal = (
                f"the disk of {folder} is still {percent} % full, puts wait until it is {limit} % "
                "(diskSpaceCleanForciblyRatio)"
            )
        if self.refusal and not was_refused:
            _log.error("puts are refused: %s", self.refusal)
        elif was_refused and not self.refusal:
            _log.warning("puts are accepted again: the disk of %s is %d %% full", folder, percent)


# --- data derived from the log ----------------------------------------------------------------


class _Followers:
    """Queues, index and tombstones, updated after the minimum offset of the log has grown.

    First all minimum offsets, then index and tombstones, then the files of queues one by one.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: IndexFiles,
        tombstones: Tombstones,
    ) -> None:
        self.config = config
        self._commit_log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._tombstones = tombstones
        self.counts = RetentionCounts()
        self._log_min = 0
        """Start of the log to which the minimum offsets of all queues are being corrected."""
        self._to_correct: deque[ConsumeQueue | BatchQueue] = deque()
        self._to_shorten: dict[ConsumeQueue | BatchQueue, None] = {}
        self._lags_in_index = False
        self._deletion_ms = 0
        self._report: _Report | None = None

    def follow(self, path: str, offsets: Iterator[ConsumerOffset] | None) -> None:
        """Report the deletion of a log file, and its messages that groups had not read.

        Args:
            path: Path of the file.
            offsets: Consumer offsets of all groups, which may change while they are read in
                steps; None if they are not known.
        """
        assert not self._to_correct, "the previous file has not been reported"
        self._report = _Report(path, offsets) if offsets is not None else None
        self._begin()

    def _begin(self) -> None:
        self._log_min = self._commit_log.min_offset
        self._to_correct = deque([*self._queues, *self._batch_queues])
        self._lags_in_index = True

    def correct_some(self) -> bool:
        """Correct the minimum offsets of some queues; return False if all were correct."""
        if not self._to_correct and self._commit_log.min_offset > self._log_min:
            self._begin()  # just opened: a crash may have come before the correction
        if not self._to_correct:
            return False
        if self._report is not None and self._report.add_readers():
            return True
        for _ in range(min(QUEUES_PER_STEP, len(self._to_correct))):
            queue = self._to_correct.popleft()
            if self._is_there(queue):
                before = queue.min_offset
                queue.correct_min_offset(self._log_min)
                if self._report is not None and queue.min_offset > before:
                    self._report.add(queue, before)
                if queue.has_expired_files:
                    self._to_shorten[queue] = None
        if not self._to_correct and self._report is not None:
            self._report.finish(self.counts)
            self._report = None
        return True

    def step(self, monotonic_ms: int) -> bool:
        """Delete something; return whether anything was due. Raises ``WriteFailed``."""
        if self._lags_in_index:
            self.counts.index_files += self._index.delete_before(self._log_min)
            self._tombstones.drop_before(self._log_min)
            self._lags_in_index = False
            return True
        if not self._to_shorten or monotonic_ms < self._deletion_ms:
            return False
        queue = next(iter(self._to_shorten))
        if self._is_there(queue):
            self.counts.queue_files += queue.delete_before(self._log_min)
            self._deletion_ms = monotonic_ms + self.config.delete_consume_queue_files_interval
        del self._to_shorten[queue]
        return True

    def _is_there(self, queue: ConsumeQueue | BatchQueue) -> bool:
        families = (self._queues, self._batch_queues)
        return any(family.find(queue.topic, queue.queue_id) is queue for family in families)


class _Report:
    """The unread messages of a deleted log file."""

    def __init__(self, path: str, offsets: Iterator[ConsumerOffset]) -> None:
        self._path = path
        self._offsets = offsets
        self._readers: defaultdict[tuple[str, int], list[ConsumerOffset]] = defaultdict(list)
        self._unread: Counter[tuple[str, str]] = Counter()
        self._never_read: Counter[str] = Counter()

    def add_readers(self) -> bool:
        """Add some of the consumer offsets; return False if there were none left."""
        offsets = list(islice(self._offsets, OFFSETS_PER_STEP))
        for offset in offsets:
            self._readers[offset.topic, offset.queue_id].append(offset)
        return bool(offsets)

    def add(self, queue: ConsumeQueue | BatchQueue, before: int) -> None:
        """Add a queue whose minimum offset was ``before``."""
        readers = self._readers.get((queue.topic, queue.queue_id), ())
        for reader in readers:
            unread = queue.min_offset - max(reader.consumer_offset, before)
            if unread > 0:
                self._unread[reader.topic, reader.group] += unread
        furthest = max((reader.consumer_offset for reader in readers), default=0)
        never_read = queue.min_offset - max(furthest, before)
        if never_read > 0 and not names.is_system_topic(queue.topic):
            self._never_read[queue.topic] += never_read

    def finish(self, counts: RetentionCounts) -> None:
        """Log the report and add it to the totals."""
        for (topic, group), count in sorted(self._unread.most_common(REPORTED_MAX)):
            _log.warning(
                "%s was deleted with %d messages of topic %s that group %s had not read",
                self._path,
                count,
                topic,
                group,
            )
        for topic, count in sorted(self._never_read.most_common(REPORTED_MAX)):
            _log.warning(
                "%s was deleted with %d messages of topic %s that no group had read",
                self._path,
                count,
                topic,
            )
        if max(len(self._unread), len(self._never_read)) > REPORTED_MAX:
            _log.warning(
                "%s was deleted with unread messages of %d topics and groups, and of %d topics "
                "that no group had read; the %d largest of each are above",
                self._path,
                len(self._unread),
                len(self._never_read),
                REPORTED_MAX,
            )
        counts.unread.update(self._unread)
        counts.never_read.update(self._never_read)
