"""Replace a target's consume queues and index by the drafts of a dispatch.

Tasks write below a folder of their run, ``dispatch.tmp/RUN`` of the target. No reader uses it, and
the next run deletes it, so that a task that outlives its driver has nowhere to write. When all
files are on disk, each family is published separately: the present folder is renamed to
``NAME.old``, the draft gets the name, and the old folder is deleted. A kill leaves the old family,
the new one, or neither, with draft and ``.old`` beside each other. The next run restores an
``.old`` folder that nothing has replaced, and starts over. Each family is valid without the other,
and a broker derives a missing one from the log.
"""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from reput.errors import WriteFailed
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.opening.summary import Summary

DRAFTS = f"dispatch{paths.DRAFT_SUFFIX}"
FOLLOWED = "dispatch.json"
"""File with the progress of a stream; deleted when a batch replaces the stream's queues."""
_OLD_SUFFIX = ".old"
_OLD_TOPICS_SUFFIX = ".topics.old"
_PARTS = "parts"


class Drafts:
    """The folder of a run, or of a step of one, in which its tasks write."""

    def __init__(self, root: str) -> None:
        self._all = Path(root, DRAFTS)
        self.folder = str(self._all)

    @property
    def parts(self) -> str:
        """Folder for the rows that one pass leaves for the next."""
        return f"{self.folder}/{_PARTS}"

    def family(self, name: str) -> str:
        """Return the draft folder of a family: consume queues or index."""
        return f"{self.folder}/{name}"

    def begin(self, families: Sequence[str] = ()) -> None:
        """Delete the folders of other runs, and create empty ones under a unique name."""
        remove(self._all)
        self.folder = str(self._all / uuid.uuid4().hex)
        for name in (_PARTS, *families):
            Disk().make_folder(f"{self.folder}/{name}", is_durable=False)

    def drop_parts(self) -> None:
        """Delete the rows that one pass has left for the next."""
        remove(Path(self.parts))

    def end(self) -> None:
        """Delete the folder of all runs."""
        remove(self._all)


class Publication:
    """The drafts of a target, and their publication.

    Args:
        root: The target.
        families: Names of the folders that are made.
        by_topic: Replace only folders of topics within the families.
    """

    def __init__(self, root: str, families: Sequence[str], *, by_topic: bool) -> None:
        self._root = Path(root)
        self._families = families
        self._by_topic = by_topic
        self._disk = Disk()
        self.drafts = Drafts(root)

    def begin(self) -> None:
        """Restore what a killed run had moved aside, and create empty drafts."""
        for family in self._families:
            folder = self._root / family
            old = self._root / (family + _OLD_SUFFIX)
            if old.exists() and not folder.exists():
                self._disk.rename(str(old), str(folder))
            remove(old)
            old_topics = self._root / (family + _OLD_TOPICS_SUFFIX)
            for topic in list(old_topics.iterdir()) if old_topics.exists() else []:
                if not (folder / topic.name).exists():
                    self._disk.make_folder(str(folder))
                    self._disk.rename(str(topic), str(folder / topic.name))
            remove(old_topics)
        self.drafts.begin(self._families)
        self._sync_names()

    def publish(self) -> None:
        """Sync the drafts, and rename them to their final names."""
        self.drafts.drop_parts()
        self._disk.sync_filesystem(str(self._root))
        # reput's summary would list files that are gone.
        Summary.delete(str(self._root), self._disk)
        self._disk.unlink(f"{self._root}/{FOLLOWED}")
        self._sync_names()
        for family in self._families:
            draft = Path(self.drafts.family(family))
            if self._by_topic:
                self._publish_topics(family, draft)
            else:
                self._swap(self._root / family, draft, self._root / (family + _OLD_SUFFIX))
        self._sync_names()
        for family in self._families:
            remove(self._root / (family + _OLD_SUFFIX))
            remove(self._root / (family + _OLD_TOPICS_SUFFIX))
        self.drafts.end()
        self._sync_names()

    def _publish_topics(self, family: str, draft: Path) -> None:
        folder = self._root / family
        aside = self._root / (family + _OLD_TOPICS_SUFFIX)
        for path in (folder, aside):
            self._disk.make_folder(str(path))
        for topic in sorted(draft.iterdir()):
            self._swap(folder / topic.name, topic, aside / topic.name)
        self._disk.sync_folder(str(folder))

    def _swap(self, folder: Path, draft: Path, aside: Path) -> None:
        if folder.exists():
            self._disk.rename(str(folder), str(aside))
            self._disk.sync_folder(str(aside.parent))
        if any(draft.iterdir()):
            self._disk.rename(str(draft), str(folder))
            self._disk.sync_folder(str(folder.parent))

    def _sync_names(self) -> None:
        self._disk.sync_folder(str(self._root))


def remove(folder: Path) -> None:
    """Delete a folder with its contents, if it exists.

    It is renamed first, so that a task of a killed driver finds no folder to write to.
    """
    going = folder.with_name(f"{folder.name}.gone")
    try:
        if going.exists():
            shutil.rmtree(going)
        if folder.exists():
            shutil.rmtree(folder.rename(going))
    except OSError as error:
        raise WriteFailed(str(folder), f"cannot delete: {error.strerror}") from error
