"""timerProgress.json: the progress of the timer.

It is saved together with the contents of ``timercheck`` at that time: a RocketMQ broker that has
run on the store since has changed that file, and then ``timercheck`` is newer.
"""

from collections.abc import Mapping
from typing import NamedTuple

from reput.errors import CorruptRecord
from reput.format import timer_check
from reput.format.timer_check import TimerCheck
from reput.store.files import paths
from reput.store.files.files import Folder
from reput.store.tables import config_tables
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_table import SavedTable


class TimerProgress(NamedTuple):
    """The progress of the timer.

    A message of the timer's queue has been delivered if its queue offset is less than ``oldest``;
    or if it is less than ``taken_up``, and the message was due before ``leaves_ms``, or due at that
    time with a queue offset less than ``queue_offset``.
    """

    leaves_ms: int = 0
    queue_offset: int = 0
    taken_up: int = 0
    oldest: int = 0

    def fields(self) -> dict[str, int]:
        """Return the values by their names in the file."""
        return {_NAMES[name]: value for name, value in self._asdict().items()}

    @classmethod
    def of_fields(cls, values: Mapping[str, int | str]) -> "TimerProgress | None":
        """Return the progress that the file's values contain; None if they contain none.

        Raises:
            ValueError: A value is not a number.
        """
        known = {field: int(values[name]) for field, name in _NAMES.items() if name in values}
        return cls(**known) if known else None

    @classmethod
    def after(cls, check: TimerCheck, low: int) -> "TimerProgress":
        """Return the progress of a store on which RocketMQ has run since.

        Args:
            check: Its ``timercheck``.
            low: First queue offset of the timer's queue: RocketMQ does not save the oldest one.
        """
        return cls(check.read_time_ms, 0, check.queue_offset, low)


class JavaTimer(NamedTuple):
    """The contents of ``timercheck`` when it was last read or written here."""

    read_time_ms: int = 0
    queue_offset: int = 0
    in_wheel: int = 0
    """Queue offset before which messages are in RocketMQ's wheel, if there is one."""

    def is_before(self, check: TimerCheck) -> bool:
        """Return whether RocketMQ has changed its file since: its timer has run."""
        return (check.read_time_ms, check.queue_offset) != self[:2]


class TimerTable(SavedTable):
    """The file; its entries are the fields of the two tuples, by name."""

    path = paths.TIMER_PROGRESS
    entries_member = "timer"
    is_progress = True
    _progress: TimerProgress | None
    _java: JavaTimer

    @property
    def progress(self) -> TimerProgress | None:
        """The progress of the timer; None if it was never saved."""
        return self._progress

    @property
    def java(self) -> JavaTimer:
        """The last known contents of ``timercheck``."""
        return self._java

    def put(self, progress: TimerProgress, java: JavaTimer | None = None) -> None:
        """Set the progress of the timer, and the contents of ``timercheck`` if given."""
        self._progress = progress
        self._java = self._java if java is None else java
        self._changed.update(self._fields())
        self.is_dirty = True
        self.change_count += 1

    def _fields(self) -> dict[str, int]:
        return {
            **({} if self._progress is None else self._progress.fields()),
            **{_JAVA_NAMES[name]: value for name, value in self._java._asdict().items()},
        }

    def _decode(self, entries: Table) -> None:
        self._progress, self._java = _decoded(entries)
        self._changed = set(self._fields())

    def _stored_entry(self, key: str) -> int | None:
        return self._fields().get(key)


def saved_progress(folder: Folder, low: int) -> TimerProgress | None:
    """Return the progress of a store's timer; None if no timer has run on it.

    If a RocketMQ broker has run on the store since reput, its progress.

    Args:
        folder: The store.
        low: First queue offset of the timer's queue.

    Raises:
        CorruptRecord: A file of the progress cannot be read.
    """
    table = config_tables.load(folder, paths.TIMER_PROGRESS)
    entries = config_tables.member(table, TimerTable.entries_member, paths.TIMER_PROGRESS)
    with config_tables.expected_kind(paths.TIMER_PROGRESS):
        progress, java = _decoded(entries)
    entry = folder.entry(paths.TIMER_CHECK)
    if entry is None or entry.size == 0:
        return progress
    try:
        check = timer_check.decode(bytes(folder.read(paths.TIMER_CHECK)))
    except CorruptRecord as error:
        raise CorruptRecord(error.reason, file=paths.TIMER_CHECK) from None
    return TimerProgress.after(check, low) if java.is_before(check) else progress


def _decoded(entries: Table) -> tuple[TimerProgress | None, JavaTimer]:
    values = {name: int(value) for name, value in entries.items()}
    java = {field: values[name] for field, name in _JAVA_NAMES.items() if name in values}
    return TimerProgress.of_fields(values), JavaTimer(**java)


_NAMES = {
    "leaves_ms": "leavesMs",
    "queue_offset": "queueOffset",
    "taken_up": "takenUp",
    "oldest": "oldest",
}
_JAVA_NAMES = {
    "read_time_ms": "javaReadTimeMs",
    "queue_offset": "javaQueueOffset",
    "in_wheel": "javaInWheel",
}
