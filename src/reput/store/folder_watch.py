"""Detects files of an open store that another process deletes, truncates or replaces.

A mapped or open file goes on working when its name is gone, so that messages would be acknowledged
that the next start does not find. Once a second:

    the store's folder, the log's folders, the log file that is      nothing is put any more; health
    written to, its lock, queue files that are open                  is red and names the file
    other log files (some of them at each look), the index           health is red
    the checkpoint, the file ``abort``, the lock file if it is       written again, with a warning
    merely gone

A file that cannot be written again now, as the disk is full or no descriptor is left, turns health
red until a later look can.

Queues and the index follow from the log: before anything is reported of them, the checkpoint takes
back what it says of queues, so that the next start makes them anew. What is refused stays so until
the store is opened again. A log file that was cut ends the process if it is touched before a look
notices: SIGBUS cannot be turned into an error. What the rest of the file holds is not lost then.
"""

import logging
import os
from collections.abc import Collection, Sequence

from reput.errors import StoreUnavailable, WriteFailed
from reput.store import paths
from reput.store.checkpoint import CheckpointFile
from reput.store.commit_log import CommitLog
from reput.store.consume_queue import ConsumeQueues
from reput.store.disk import Disk
from reput.store.folder_lock import FolderLock
from reput.store.index_file import IndexFiles

LOOK_INTERVAL_MS = 1_000
LOG_FILES_PER_LOOK = 32
"""Of those that are only read, in turn: a thousand are looked at in half a minute."""

_IS_DELETED = "was deleted while the store is open"

_log = logging.getLogger(__name__)


class FolderWatch:
    """The look at the files of one open store; for one thread at a time.

    Args:
        root: The store's folder, where the file ``abort`` is.
        disk: What writes the file ``abort`` again.
        lock: Makes and locks its file again if it is gone.
        log: Names the log's folders and files, and looks at its files.
        queues: Names the queue files that are open or were missing, and their size.
        index: Names its files, and looks at the one that is written to.
        checkpoint: Writes its file again, and takes back what it says of damaged queues.
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
        self._looked_ms: int | None = None
        self._turn = 0
        self._folders: dict[str, tuple[int, int]] = {}
        self.refusal = ""
        """Why nothing may be put any more; empty: it may."""
        self.problems: dict[str, str] = {}
        """Path -> what is wrong with it, for ``/health``; those of ``refusal`` too."""

    def start(self, folders: Sequence[str]) -> None:
        """Take note of the folders as they are now: the store's and those of its log."""
        for folder in {self._root, *folders}:
            found = os.stat(folder)  # noqa: PTH116 - paths are texts here
            self._folders[folder] = found.st_dev, found.st_ino

    def step(self, monotonic_ms: int) -> None:
        """Look, if it is time."""
        if self._looked_ms is None or monotonic_ms - self._looked_ms >= LOOK_INTERVAL_MS:
            self._looked_ms = monotonic_ms
            self.look()

    def look(self) -> None:
        """Look now. What is gone and cannot be written again now is tried again."""
        self._look_at_folders()
        self._look_at_log()
        self._look_at_lock()
        if self.refusal:
            return
        try:
            self._look_at_queues()
            self._look_at_index()
            self._restore()
        except WriteFailed as error:
            _log.error("what somebody has deleted cannot be written again now: %s", error)

    def _refuse(self, path: str, text: str) -> None:
        if not self.refusal:
            self.refusal = text
            _log.critical("the store takes no more puts until it is opened again: %s", text)
        self.problems.setdefault(path, text)

    def _report(self, path: str, text: str) -> None:
        if self.problems.get(path) != text:
            _log.error("%s", text)
        self.problems[path] = text

    def _look_at_folders(self) -> None:
        for folder, identity in self._folders.items():
            try:
                found = os.stat(folder)  # noqa: PTH116
            except OSError as error:
                self._refuse(folder, f"the folder {folder} is gone: {error.strerror}")
                continue
            if (found.st_dev, found.st_ino) != identity:
                self._refuse(folder, f"the folder {folder} was replaced while the store is open")

    def _look_at_log(self) -> None:
        files = self._commit_log.files.files
        for file in self._commit_log.files.writable:
            if change := file.foreign_change(is_thorough=True):
                self._refuse(file.path, change)
        others = files[:-1]
        if not others:
            return
        start = self._turn % len(others)
        self._turn = start + LOG_FILES_PER_LOOK if start + LOG_FILES_PER_LOOK < len(others) else 0
        for file in others[start : start + LOG_FILES_PER_LOOK]:
            change = file.foreign_change()
            if change:
                self._report(file.path, change)
        known = {file.path for file in (*files, *self._commit_log.files.writable)}
        folders = self._commit_log.files
        self._forget_expired({*folders.folders, *folders.read_only_folders}, known)

    def _forget_expired(self, folders: Collection[str], known: Collection[str]) -> None:
        """Forget what was wrong with files of some folders that have expired since."""
        for path in list(self.problems):
            if path not in known and path not in folders and os.path.dirname(path) in folders:  # noqa: PTH120
                del self.problems[path]

    def _look_at_lock(self) -> None:
        path = self._lock.path
        try:
            problem = self._lock.check()
        except StoreUnavailable as error:
            problem = str(error)
        except OSError as error:  # such as no descriptor left: nobody else has it, as far as known
            self._report(path, f"{path} cannot be looked at or made again now: {error.strerror}")
            return
        if problem:
            self._refuse(path, problem)
        elif path in self.problems and self.problems[path] != self.refusal:
            del self.problems[path]

    def _look_at_queues(self) -> None:
        queues = self._queues
        for path in queues.files_in_use():
            if fault := self._lasting_fault(path):
                self._lost_queue_file(path, fault)
        for path in list(queues.missing_files):
            self._lost_queue_file(path, _IS_DELETED)

    def _lasting_fault(self, path: str) -> str:
        """Return what is wrong with a queue file that is in use; empty if nothing is known.

        A file that has expired is in use no more. That of a topic which is deleted and made anew at
        this moment is, under the same path: it is there when one looks again.
        """
        fault = ""
        for _ in range(2):
            fault = self._fault_of_queue_file(path)
            if not fault or path not in self._queues.files_in_use():
                return ""
        return fault

    def _fault_of_queue_file(self, path: str) -> str:
        """Return what is wrong with a queue file as it is now, empty if nothing is known."""
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return _IS_DELETED
        except OSError:
            return ""
        if size == self._queues.file_size:
            return ""
        return f"was {self._queues.file_size} bytes, now {size}: something else cut it"

    def _lost_queue_file(self, path: str, text: str) -> None:
        self._checkpoint.distrust_queues(is_final=True)
        self._checkpoint.flush()
        self._refuse(path, f"{path} {text}; the next start makes its queue anew from the log")

    def _look_at_index(self) -> None:
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
