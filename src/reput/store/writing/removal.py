"""Deletes queues: at once for readers and writers, step by step from memory and disk.

    begin     the queues are removed from all tables; a topic may be created   the writer's thread
              again
    release   rows and tails are freed, before or after ``finish``             the writer's thread
    finish    tombstones and the move of the folders are made durable          any thread
    clear     the files are deleted                                            any thread

A topic of 10,000 queues has 10,000 folders, but the move of the topic's folder is one step. A crash
before or after it leaves a consistent state: queues of a topic with a tombstone that begin before
it are deleted at the next start (known-bugs.md#deleted-topics), and so are moved folders. A new
queue of a topic that is created again waits for ``finish``, since its files have the same names.
Nothing else in the writer's thread waits for the disk.
"""

import os
import threading
from collections.abc import Iterator, Sequence

from reput.store.files import paths
from reput.store.files.disk import Disk, failed_opening
from reput.store.queues.batch_queue import BatchQueue, BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.queues.tombstones import Tombstones

RELEASED_AT_ONCE = 50
"""Number of queues whose memory is freed in one step."""
FILES_PER_STEP = 64
"""Number of files and folders that one step deletes."""


class Removal:
    """Queues that are being deleted."""

    def __init__(
        self,
        topics: Sequence[str],
        queues: Sequence[ConsumeQueue],
        batch_queues: Sequence[BatchQueue],
        folders: Sequence[str],
    ) -> None:
        self.topics = topics
        """Topics that get a tombstone."""
        self.queues = queues
        self.batch_queues = batch_queues
        self.folders = folders
        """Folders with the files of the queues."""
        self.topics_of_queues = {queue.topic for queue in queues} | {
            queue.topic for queue in batch_queues
        }
        self.is_finished = False

    @property
    def count(self) -> int:
        """Number of queues."""
        return len(self.queues) + len(self.batch_queues)

    def queue_names(self) -> list[tuple[str, int]]:
        """Return topic and queue id of each queue."""
        names = [(queue.topic, queue.queue_id) for queue in self.queues]
        return names + [(queue.topic, queue.queue_id) for queue in self.batch_queues]


class Removals:
    """The deletions of queues of one open store.

    Args:
        root: Folder of the store.
        disk: Moves and deletes files.
        queues: The consume queues.
        batch_queues: The batch queues.
        tombstones: Keep messages of deleted topics out of new queues.
    """

    def __init__(
        self,
        root: str,
        disk: Disk,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        tombstones: Tombstones,
    ) -> None:
        self._trash = f"{root}/{paths.DELETED_QUEUES}"
        self._disk = disk
        self._queues = queues
        self._batch_queues = batch_queues
        self._tombstones = tombstones
        self._unfinished_lock = threading.Lock()  # guards the next two; not held during disk work
        self._unfinished: list[Removal] = []
        self._unfinished_topics: set[str] = set()
        self._moving = threading.Lock()  # guards the next two; held during disk work
        self._moved_count = 0
        self._has_trash = os.path.isdir(self._trash)  # noqa: PTH112 - left by an earlier run
        queues.before_making = batch_queues.before_making = self._finish_topic

    # Queues -----------------------------------------------------------------------------------

    def begin(
        self,
        topics: Sequence[str],
        queues: Sequence[ConsumeQueue],
        batch_queues: Sequence[BatchQueue],
        log_end: int,
    ) -> Removal:
        """Remove queues from the tables.

        Args:
            topics: Topics that are deleted with all their queues.
            queues: Consume queues to delete.
            batch_queues: Batch queues to delete.
            log_end: End of the log: earlier messages no longer belong to the topics.
        """
        folders = self._queues.detach(queues) + self._batch_queues.detach(batch_queues)
        self._batch_queues.topics.difference_update(topics)
        removal = Removal(topics, queues, batch_queues, folders)
        self._tombstones.note(topics, log_end)
        with self._unfinished_lock:
            self._unfinished.append(removal)
            self._update_topics()
        return removal

    def _update_topics(self) -> None:
        """Set the topics whose new queues must wait."""
        self._unfinished_topics = {
            topic for removal in self._unfinished for topic in removal.topics_of_queues
        }

    def _finish_topic(self, topic: str) -> None:
        if topic in self._unfinished_topics:
            self.finish()

    def finish(self) -> list[Removal]:
        """Move the files of all queues that are being deleted, durably; in any thread.

        Returns:
            The finished removals.

        Raises:
            WriteFailed: The disk failed; call it again.
        """
        with self._moving:
            with self._unfinished_lock:
                removals = list(self._unfinished)
            if not removals:
                return []
            if any(removal.topics for removal in removals):
                self._tombstones.save()
            self._disk.make_folder(self._trash)
            for removal in removals:
                self._move(removal.folders)
                removal.is_finished = True
            self._has_trash = True
            with self._unfinished_lock:
                del self._unfinished[: len(removals)]
                self._update_topics()
            return removals

    def _move(self, folders: Sequence[str]) -> None:
        parents = set()
        for folder in folders:
            if os.path.isdir(folder):  # noqa: PTH112 - paths are texts here
                self._disk.rename(folder, self._free_path())
            # Also for a missing folder: the sync that followed its move may have failed.
            parents.add(os.path.dirname(folder))  # noqa: PTH120
        for parent in sorted(parents):
            if os.path.isdir(parent):  # noqa: PTH112 - it may have been moved away too
                self._disk.sync_folder(parent)

    def _free_path(self) -> str:
        """Return an unused path in the trash folder."""
        while True:
            self._moved_count += 1
            path = f"{self._trash}/{self._moved_count}"
            if not os.path.exists(path):  # noqa: PTH110 - left by an earlier run
                return path

    # Memory and files -------------------------------------------------------------------------

    def release(self, removal: Removal) -> Iterator[None]:
        """Free the memory of queues, with pauses."""
        for number, queue in enumerate(removal.queues, 1):
            self._queues.release(queue)
            if number % RELEASED_AT_ONCE == 0:
                yield
        for batch_queue in removal.batch_queues:
            self._batch_queues.release(batch_queue)
            yield

    def clear(self, count_max: int = FILES_PER_STEP) -> bool:
        """Delete some of the moved files; in any thread.

        Returns:
            True if there were any.

        Raises:
            WriteFailed: The disk failed; call it again.
        """
        if not self._has_trash:
            return False
        with self._moving:
            return self._clear(count_max)

    def _clear(self, count_max: int) -> bool:
        if not self._has_trash:
            return True  # the other thread has just finished
        for number, (path, is_folder) in enumerate(_deepest_first(self._trash)):
            if number == count_max:
                return True
            if is_folder:
                self._disk.remove_folder(path)
            else:
                self._disk.unlink(path)
        self._disk.remove_folder(self._trash)
        self._has_trash = False
        return True


def _deepest_first(folder: str) -> Iterator[tuple[str, bool]]:
    """Yield (path, is_folder) of the contents of a folder; those of a subfolder come before it.

    Links are not followed. A yielded path may be deleted before the next one is requested. A
    missing folder, deleted by another program, is empty.

    Raises:
        WriteFailed: A folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _deepest_first(entry.path)
                    yield entry.path, True
                else:
                    yield entry.path, False
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed_opening(folder, "list its contents", error) from error
