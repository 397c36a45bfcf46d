"""Detects files of an open store that another process deletes, truncates or replaces.

A mapped or open file remains usable when its name is gone. Messages would then be acknowledged that
the next start does not find. Once a second:

    the store's folder, the log's folders, the log file that is      puts are refused; health is red
    written to, its lock, open queue files                           and names the file
    other log files (some of them in each check), the index          health is red
    the checkpoint, the file ``abort``, the lock file if it is       written again, with a warning
    merely missing

If a file cannot be written again now, as the disk is full or no descriptor is free, health is red
until a later check succeeds.

Queues and the index follow from the log. Before damage to them is reported, the checkpoint's queue
offset is withdrawn, so that the next start rebuilds them. Puts stay refused until the store is
opened again. Access to a truncated log file before a check detects it kills the process: SIGBUS
cannot be turned into an error. The rest of the file is not lost then.
"""

import logging
import os
from collections.abc import Collection, Sequence

from reput.errors import StoreUnavailable, WriteFailed
from reput.store.checkpoint import CheckpointFile
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.folder_lock import FolderLock
from reput.store.index.index_file import IndexFiles
from reput.store.log.commit_log import CommitLog
from reput.store.queues.consume_queues import ConsumeQueues

CHECK_INTERVAL_MS = 1_000
LOG_FILES_PER_CHECK = 32
"""Read-only log files per check, in turn: a thousand files are checked in half a minute."""

_IS_DELETED = "was deleted while the store is open"

_log = logging.getLogger(__name__)


class FolderWatch:
    """Checks the files of one open store; for one thread at a time.

    Args:
        root: Folder of the store, which contains the file ``abort``.
        disk: Writes the file ``abort`` again.
        lock: Creates and locks its file again if it is missing.
        log: Has the log's folders and files, and checks its files.
        queues: Has the paths of open and missing queue files, and their size.
        index: Has the paths of its files, and checks the current one.
        checkpoint: Writes its file again, and withdraws the offset of damaged queues.
    """

    def __init__(
        self,
        root: str,
        disk: Disk,
        lock: FolderLock,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        checkpoint: CheckpointFile,
    ) -> None:
        self._root = root
        self._disk = disk
        self._lock = lock
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._checked_ms: int | None = None
        self._next_log_file = 0
        self._folders: dict[str, tuple[int, int]] = {}
        self.refusal = ""
        """Reason why puts are refused; empty if they are accepted."""
        self.problems: dict[str, str] = {}
        """Path -> problem, for ``/health``; includes the problems of ``refusal``."""

    def start(self, folders: Sequence[str]) -> None:
        """Record the current folders: the store's and those of its log."""
        for folder in {self._root, *folders}:
            status = os.stat(folder)  # noqa: PTH116 - paths are texts here
            self._folders[folder] = status.st_dev, status.st_ino

    def step(self, monotonic_ms: int) -> None:
        """Check the files if the interval has passed."""
        if self._checked_ms is None or monotonic_ms - self._checked_ms >= CHECK_INTERVAL_MS:
            self._checked_ms = monotonic_ms
            self.check()

    def check(self) -> None:
        """Check the files now. A missing file that cannot be written now is tried again later."""
        self._check_folders()
        self._check_log()
        self._check_lock()
        if self.refusal:
            return
        try:
            self._check_queues()
            self._check_index()
            self._restore()
        except WriteFailed as error:
            _log.error("a deleted file cannot be written again now: %s", error)

    def _refuse(self, path: str, text: str) -> None:
        if not self.refusal:
            self.refusal = text
            _log.critical("the store accepts no more puts until it is opened again: %s", text)
        self.problems.setdefault(path, text)

    def _report(self, path: str, text: str) -> None:
        if self.problems.get(path) != text:
            _log.error("%s", text)
        self.problems[path] = text

    def _check_folders(self) -> None:
        for folder, identity in self._folders.items():
            try:
                status = os.stat(folder)  # noqa: PTH116
            except OSError as error:
                self._refuse(folder, f"the folder {folder} cannot be accessed: {error.strerror}")
                continue
            if (status.st_dev, status.st_ino) != identity:
                self._refuse(folder, f"the folder {folder} was replaced while the store is open")

    def _check_log(self) -> None:
        files = self._commit_log.files.files
        for file in self._commit_log.files.writable:
            if change := file.foreign_change(is_thorough=True):
                self._refuse(file.path, change)
        others = files[:-1]
        if not others:
            return
        start = self._next_log_file % len(others)
        self._next_log_file = (
            start + LOG_FILES_PER_CHECK if start + LOG_FILES_PER_CHECK < len(others) else 0
        )
        for file in others[start : start + LOG_FILES_PER_CHECK]:
            change = file.foreign_change()
            if change:
                self._report(file.path, change)
        existing = {file.path for file in (*files, *self._commit_log.files.writable)}
        folders = self._commit_log.files
        self._forget_expired({*folders.folders, *folders.read_only_folders}, existing)

    def _forget_expired(self, folders: Collection[str], existing: Collection[str]) -> None:
        """Drop the problems of files in some folders that have expired since."""
        for path in list(self.problems):
            if path not in existing and path not in folders and os.path.dirname(path) in folders:  # noqa: PTH120
                del self.problems[path]

    def _check_lock(self) -> None:
        path = self._lock.path
        try:
            problem = self._lock.check()
        except StoreUnavailable as error:
            problem = str(error)
        except OSError as error:  # such as no free descriptor: as far as known, we hold the lock
            self._report(path, f"{path} cannot be checked or created again now: {error.strerror}")
            return
        if problem:
            self._refuse(path, problem)
        elif path in self.problems and self.problems[path] != self.refusal:
            del self.problems[path]

    def _check_queues(self) -> None:
        queues = self._queues
        for path in queues.files_in_use():
            if fault := self._lasting_fault(path):
                self._lost_queue_file(path, fault)
        for path in list(queues.missing_files):
            self._lost_queue_file(path, _IS_DELETED)

    def _lasting_fault(self, path: str) -> str:
        """Return the problem of a queue file that is in use; empty if none is known.

        An expired file is no longer in use. If a topic is deleted and created again at this moment,
        a file of the same path is in use: the second attempt finds it.
        """
        fault = ""
        for _ in range(2):
            fault = self._fault_of_queue_file(path)
            if not fault or path not in self._queues.files_in_use():
                return ""
        return fault

    def _fault_of_queue_file(self, path: str) -> str:
        """Return the current problem of a queue file; empty if none is known."""
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return _IS_DELETED
        except OSError:
            return ""
        if size == self._queues.file_size:
            return ""
        return f"was {self._queues.file_size} bytes, now {size}: another program truncated it"

    def _lost_queue_file(self, path: str, text: str) -> None:
        self._checkpoint.distrust_queues(is_final=True)
        self._checkpoint.flush()
        self._refuse(path, f"{path} {text}; the next start rebuilds its queue from the log")

    def _check_index(self) -> None:
        self._forget_expired({self._index.folder}, self._index.file_paths())
        file = self._index.current_file()
        change = file.foreign_change() if file is not None else ""
        if change and file is self._index.current_file() and file is not None:
            self._report(file.path, f"{change}; queries lack keys until the next start")

    def _restore(self) -> None:
        if self._checkpoint.is_missing():
            _log.warning("%s was deleted; it is written again", self._checkpoint.path)
        abort = f"{self._root}/{paths.ABORT}"
        if not os.path.lexists(abort):
            _log.warning("%s was deleted; it is written again", abort)
            self._disk.replace(abort, str(os.getpid()).encode())
