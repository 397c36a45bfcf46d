"""Deletes queues: at once for who reads and writes, bit by bit for the disk and for memory.

    begin     nobody finds them any more; the topic may be made anew           the writer's thread
    release   rows and tails are given back, before or after ``finish``        the writer's thread
    finish    tombstones are durable, folders are moved away, durably too      any thread
    clear     the files are deleted                                            any thread

A topic of 10,000 queues is 10,000 folders; moving the topic's away is one step, before and after
which a crash leaves a whole: queues of a topic with a tombstone that begin before it are deleted at
the next start (known-bugs.md#deleted-topics), and so is what was moved away. A queue of a topic
that is created again waits for ``finish``: its files have the same names. Nothing else in the
writer's thread waits for the disk.
"""

import os
import threading
from collections.abc import Iterator, Sequence

from reput.store import paths
from reput.store.batch_queue import BatchQueue, BatchQueues
from reput.store.consume_queue import ConsumeQueue, ConsumeQueues
from reput.store.disk import Disk, failed_opening
from reput.store.tombstones import Tombstones

RELEASED_AT_ONCE = 50
"""Queues whose memory is given back in one step."""
FILES_PER_STEP = 64
"""Files and folders that one step deletes."""


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
        """Those that get a tombstone."""
        self.queues = queues
        self.batch_queues = batch_queues
        self.folders = folders
        """Where their files are."""
        self.topics_of_queues = {one.topic for one in queues} | {one.topic for one in batch_queues}
        self.is_finished = False

    @property
    def count(self) -> int:
        """How many queues go."""
        return len(self.queues) + len(self.batch_queues)

    def queue_names(self) -> list[tuple[str, int]]:
        """Return topic and queue id of each."""
        names = [(queue.topic, queue.queue_id) for queue in self.queues]
        return names + [(queue.topic, queue.queue_id) for queue in self.batch_queues]


class Removals:
    """The deletions of queues of one open store.

    Args:
        root: The store's folder.
        disk: What moves and deletes.
        queues: What is deleted.
        batch_queues: What is deleted.
        tombstones: What keeps messages of deleted topics out of new queues.
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
        self._noting = threading.Lock()  # of the next two, and never while the disk works
        self._unfinished: list[Removal] = []
        self._unfinished_topics: set[str] = set()
        self._moving = threading.Lock()  # of what follows, and while the disk works
        self._moved_count = 0
        self._has_trash = os.path.isdir(self._trash)  # noqa: PTH112 - of the last life
        queues.before_making = batch_queues.before_making = self._finish_those_of

    # Queues -----------------------------------------------------------------------------------

    def begin(
        self,
        topics: Sequence[str],
        queues: Sequence[ConsumeQueue],
        batch_queues: Sequence[BatchQueue],
        log_end: int,
    ) -> Removal:
        """Let nobody find queues any more.

        Args:
            topics: Those that are deleted with all their queues.
            queues: What goes.
            batch_queues: What goes.
            log_end: Where the log ends: what topics have in it before is theirs no longer.
        """
        folders = self._queues.detach(queues) + self._batch_queues.detach(batch_queues)
        self._batch_queues.topics.difference_update(topics)
        removal = Removal(topics, queues, batch_queues, folders)
        self._tombstones.note(topics, log_end)
        with self._noting:
            self._unfinished.append(removal)
            self._note_topics()
        return removal

    def _note_topics(self) -> None:
        """Note whose new queues must wait."""
        self._unfinished_topics = {
            topic for removal in self._unfinished for topic in removal.topics_of_queues
        }

    def _finish_those_of(self, topic: str) -> None:
        if topic in self._unfinished_topics:
            self.finish()

    def finish(self) -> list[Removal]:
        """Move away the files of all queues that are being deleted, for good; in any thread.

        Returns:
            What that has finished.

        Raises:
            WriteFailed: The disk failed; call it again.
        """
        with self._moving:
            with self._noting:
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
            with self._noting:
                del self._unfinished[: len(removals)]
                self._note_topics()
            return removals

    def _move(self, folders: Sequence[str]) -> None:
        parents = set()
        for folder in folders:
            if os.path.isdir(folder):  # noqa: PTH112 - paths are texts here
                self._disk.rename(folder, self._free_place())
            # Also of a folder that is gone: the sync may have failed that followed its move.
            parents.add(os.path.dirname(folder))  # noqa: PTH120
        for parent in sorted(parents):
            if os.path.isdir(parent):  # noqa: PTH112 - it may have been moved away too
                self._disk.sync_folder(parent)

    def _free_place(self) -> str:
        """Return a path in the trash that nothing has."""
        while True:
            self._moved_count += 1
            place = f"{self._trash}/{self._moved_count}"
            if not os.path.exists(place):  # noqa: PTH110 - of a start before this one
                return place

    # Memory and files -------------------------------------------------------------------------

    def release(self, removal: Removal) -> Iterator[None]:
        """Give back the memory of queues, with pauses."""
        for number, queue in enumerate(removal.queues, 1):
            self._queues.release(queue)
            if number % RELEASED_AT_ONCE == 0:
                yield
        for batch_queue in removal.batch_queues:
            self._batch_queues.release(batch_queue)
            yield

    def clear(self, count_max: int = FILES_PER_STEP) -> bool:
        """Delete some of what was moved away; in any thread.

        Returns:
            Whether there was anything.

        Raises:
            WriteFailed: The disk failed; call it again.
        """
        if not self._has_trash:
            return False
        with self._moving:
            return self._clear(count_max)

    def _clear(self, count_max: int) -> bool:
        if not self._has_trash:
            return True  # the other thread has just done it
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
    """Yield what a folder holds, and whether it is a folder, those within before it.

    No links are followed, and what was yielded may be deleted before the next one. A folder that is
    not there, as somebody else has deleted it, holds nothing.

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
        raise failed_opening(folder, "list what it holds", error) from error
