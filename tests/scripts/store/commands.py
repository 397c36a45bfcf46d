"""Commands of the store's scripts: put, get, crash, reopen, and inspect every byte.

    open flush_disk_type=SYNC_FLUSH       # settings; those of the last ``open`` stay
    put TopicA 0 body=hello key=k1        # body=x*100, count=20, size=1000 (of the record)
    crash keep=all-but-3-bytes            # or kill, or: crash keep=synced
    open
    dump log

Files are small (``SETTINGS``, ``store_fixture.SMALL_FILES``). Times are relative to the start of
the script, and only ``advance`` and ``run`` advance the clock. At the end of a script its store is
closed and verified; expected findings are listed with ``allow``.
"""

import dataclasses
import itertools
import json
import logging
import os
import random
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import store_fixture
from lossy_disk import Loss
from reput.clock import ManualClock
from reput.errors import ReputError
from reput.format import (
    batch,
    cq_unit,
    index_entry,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.format.checkpoint_page import Checkpoint
from reput.format.message import StoredMessage
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.files import open_folder
from reput.store.log.mapped_file import MappedFile
from reput.store.message_store import MessageStore
from reput.store.opening.recovery import RecoveryReport
from reput.store.reader import END_OF_TIME_MS, Boundary, StoreReader
from reput.store.tables.config_tables import ConsumerOffset
from reput.store.verify import FindingKind, verify
from reput.store.writing.flush import PendingPut
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus
from scripts.runner import Milliseconds, ScriptError
from scripts.store import arguments, printing
from scripts.store.arguments import Message, Moment, Text
from scripts.store.disk import ScriptDisk
from store_fixture import START_MS

STEP_MS = 100
"""Duration of a step of ``run``."""
SETTINGS: dict[str, Any] = {"mapped_file_size_commit_log": 4096, "max_message_size": 3000}
"""In addition to ``store_fixture.SMALL_FILES``: a log file holds four records of 1000 bytes."""


def printed_puts(results: Sequence[PutResult]) -> Iterator[str]:
    """Yield a line for each run of results with the same status."""
    for (status, reason), run in itertools.groupby(
        results, lambda result: (result.status, result.reason)
    ):
        same = list(run)
        first, last = same[0], same[-1]
        count = f"{len(same)} x " if len(same) > 1 else ""
        name = "ok" if status is PutStatus.PUT_OK else status.name
        if not status.is_stored:
            yield f"{count}{name}: {reason}"
            continue
        numbers = [
            f"{label}={low}" if low == high else f"{label}={low}-{high}"
            for label, low, high in (
                ("queue_offset", first.queue_offset, last.queue_offset),
                ("physical_offset", first.physical_offset, last.physical_offset),
                ("size", first.size, last.size),
            )
        ]
        messages = f" messages={first.message_count}" if first.message_count > 1 else ""
        yield f"{count}{name} {' '.join(numbers)}{messages}"


class LogLines(logging.Handler):
    """Keeps the lines that the store logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, entry: logging.LogRecord) -> None:
        self.lines.append(f"{entry.levelname} {entry.getMessage()}")


class Commands:
    """A store, its clock and its disk."""

    ERRORS = (ReputError,)

    def __init__(self, folder: Path, subject: str) -> None:
        self.subject = subject
        self._folder = folder
        self._store_count = 0
        self.store: Any = None
        self.replaced = {
            re.escape(f"{folder}/") + r"store\d+/": "",
            re.escape(f"{folder}/") + r"store\d+": "STORE",
            # Names of log files and queue files; names of index files are times of creation.
            r"(?<!\d)(?=\d{20}(?!\d))0*(\d+)": r"\1",
        }
        self._zone = os.environ.get("TZ")
        self._set_zone("UTC")
        self._lines = LogLines()
        self._log = logging.getLogger("reput")
        self._level = self._log.level
        self._log.setLevel(logging.INFO)
        self._log.addHandler(self._lines)
        self._begin()

    def _begin(self) -> None:
        """Begin with an unused folder, clock and disk."""
        self._store_count += 1
        self._lines.lines.clear()
        self.root = self._folder / f"store{self._store_count}"
        self.clock = ManualClock(START_MS)
        self.disk = ScriptDisk(str(self.root))
        self.settings = dict(SETTINGS)
        self.allowed: set[FindingKind] = set()
        self.pending: list[PendingPut] = []
        self.news: list[tuple[str, int, int, int]] = []
        self.held: dict[int, MappedFile] = {}
        self.folder: StoreReader

    def new_store(self) -> None:
        """Close and verify the store, and begin with an empty one."""
        self._close_store()
        self._begin()

    @staticmethod
    def _set_zone(zone: str | None) -> None:
        """Set the time zone of the process: ``deleteWhen`` is in local hours."""
        if zone is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = zone
        time.tzset()

    def close(self) -> None:
        """Close and verify the store, as ``store_fixture.Stores`` does."""
        try:
            self._close_store()
        finally:
            self._log.removeHandler(self._lines)
            self._log.setLevel(self._level)
            self._set_zone(self._zone)

    def _close_store(self) -> None:
        self.release_all()
        if self.store is not None:
            if not self.store.max_physical_offset:
                self.allowed.add(FindingKind.LOG_EMPTY)
            self.store.close()
            self.store = None
        if self.root.is_dir() and len(self.allowed) < len(FindingKind):
            report = verify(self._reader())
            store_fixture.assert_allowed(report, self.allowed)

    def _reader(self) -> StoreReader:
        folders = self._config({}).commit_log_folders
        return StoreReader(open_folder(str(self.root), commit_log_folders=folders))

    # --- opening and ending -----------------------------------------------------------------------

    def open(self, **settings: str) -> Iterable[str]:
        """Open the store; settings are those of ``StoreConfig`` and stay for the next ``open``."""
        if self.store is not None:
            self.stop()
        config = self._config(settings)
        self.store = MessageStore.open(config=config, clock=self.clock, disk=self.disk)
        return self._recovered()

    def _config(self, settings: dict[str, str]) -> StoreConfig:
        self.settings |= {name: arguments.setting(name, word) for name, word in settings.items()}
        given = dict(self.settings)
        if "store_path_commit_log" in given:
            folders = given["store_path_commit_log"].split(",")
            given["store_path_commit_log"] = ",".join(f"{self.root}/{name}" for name in folders)
        return store_fixture.config(self.root, **given)

    def _recovered(self) -> Iterator[str]:
        report: RecoveryReport = self.store.recovery
        state = "clean" if report.was_clean else "crashed"
        yield f"{state} end={report.end_offset} dispatched_from={report.dispatched_from}"
        for name in ("torn", "stale"):
            damage = getattr(report, name)
            if damage is not None:
                yield f"{name} {damage.physical_offset}-{damage.end}: {damage.reason}"
        for hole in report.holes:
            end = hole.physical_offset + hole.length
            yield f"hole {hole.physical_offset}-{end}: {hole.reason}"
        for topic, queue_id in report.rebuilt_queues:
            yield f"rebuilt {topic}/{queue_id}"
        if report.cut_units or report.refilled_units:
            yield f"cut_units={report.cut_units} refilled_units={report.refilled_units}"

    def stop(self) -> None:
        """Close the store."""
        self.store.close()
        self.store = None

    def close_store(self) -> None:
        """Close the store, and keep it for further commands."""
        self.store.close()

    def kill(self) -> None:
        """Kill the process of the store: nothing more is written."""
        self.store.abandon()
        self.store = None

    def crash(self, keep: str, seed: int = 1) -> None:
        """Stop the machine of the store.

        ``keep`` is ``synced`` (and nothing else), ``all-but-3-bytes`` of the log, a physical offset
        where the log ends, or a name of ``Loss`` with the seed of its choices.
        """
        if keep == "synced":
            keep = Loss.ALL.name
        if keep in Loss.__members__:
            chance = random.Random(seed)
            self.disk.lose_power(chance, Loss[keep], before=self.store.abandon)
            self.store = None
            return
        end = self.store.log.written_offset
        self.kill()
        match = re.fullmatch(r"all-but-(\d+)-bytes", keep)
        self.damage_log(end - int(match[1]) if match else int(keep), zero=1 << 30)

    def restart(self, how: str = "stop") -> Iterable[str]:
        """End the store (``stop``, ``kill`` or ``crash``) and open it again."""
        {"stop": self.stop, "kill": self.kill, "crash": lambda: self.crash("synced")}[how]()
        return self.open()

    def allow(self, *kinds: str) -> None:
        """Let the store of this script end with findings of these kinds, or ``any``."""
        named = FindingKind if kinds == ("any",) else (FindingKind[kind] for kind in kinds)
        self.allowed |= set(named)

    # --- time and work in the background ----------------------------------------------------------

    def advance(self, duration: Milliseconds) -> None:
        """Advance the clock, without any step of the store."""
        self.clock.advance(duration)

    def set_clock(self, to: Moment) -> None:
        """Set the time of day; monotonic time does not change."""
        self.clock.set(to)

    def step(self, count: int = 1_000) -> None:
        """Take ``count`` steps, or all steps that are due."""
        for _ in range(count):
            if not self.store.step():
                return
        if count == 1_000:
            raise AssertionError("there is no end to the work in the background")

    def step_memory(self) -> None:
        """Do the half of a step that does not wait for the disk."""
        self.store.step_memory()

    def run(self, duration: Milliseconds, every: Milliseconds | None = None) -> None:
        """Advance the clock, and take all steps that are due."""
        for _ in range(duration // (every or STEP_MS)):
            self.clock.advance(every or STEP_MS)
            self.step()

    def sync(self) -> None:
        """Make the log durable."""
        self.store.sync()

    def flush(self) -> None:
        """Make log, queues, index and checkpoint durable."""
        self.store.flusher.flush_all()

    def write_out(self) -> None:
        """Write the units of all queues to their files, not durably."""
        self.store.flusher.write_out_queues()

    # --- putting ----------------------------------------------------------------------------------

    def put(
        self, topic: Text, queue_id: int = 0, count: int = 1, stored: str = "", **fields: str
    ) -> Iterable[str]:
        """Put messages one by one; ``stored`` is their store time."""
        message = Message(fields)
        now_ms = arguments.moment(stored) if stored else None
        results = [
            self.store.put(message.make(topic, queue_id, number), now_ms) for number in range(count)
        ]
        self.settle()
        return printed_puts(results)

    def put_many(self, topic: Text, queue_id: int, *words: str) -> Iterable[str]:
        """Put messages in one call, each ``body;keys=k1`` or ``TopicB/1/body``."""
        messages = []
        for word in words:
            path, _, rest = word.rpartition("/")
            other, _, other_id = path.partition("/")
            part = arguments.inner(rest)
            messages.append(
                IncomingMessage(
                    arguments.text(other) or topic,
                    part.body,
                    int(other_id or queue_id),
                    part.property_bytes,
                )
            )
        results = self.store.put_many(messages)
        self.settle()
        return printed_puts(results)

    def put_batch(
        self,
        topic: Text,
        queue_id: int,
        *words: str,
        raw: bytes | None = None,
        cut: int = 0,
        **fields: str,
    ) -> Iterable[str]:
        """Put the messages of a client's batch.

        ``raw`` is the body in place of messages; ``cut`` bytes are missing at its end.
        """
        body = batch.encode(map(arguments.inner, words)) if raw is None else raw
        body = body[: len(body) - cut]
        outer = Message({"body": "", **fields}).make(topic, queue_id)
        outer.body = body
        result = self.store.put_batch(outer)
        self.settle()
        yield from printed_puts([result])
        if result.status.is_stored and result.physical_offsets:
            yield f"at {' '.join(map(str, result.physical_offsets))}"

    def begin_put(
        self, topic: Text, queue_id: int = 0, count: int = 1, **fields: str
    ) -> Iterable[str]:
        """Put messages without waiting for the disk; ``results`` prints their results."""
        message = Message(fields)
        begun = [self.store.begin_put(message.make(topic, queue_id, i)) for i in range(count)]
        self.pending += begun
        return printed_puts([put.stored for put in begun])

    def begin_put_batch(
        self, topic: Text, queue_id: int, *words: str, **fields: str
    ) -> Iterable[str]:
        """Put a batch without waiting for the disk."""
        outer = Message({"body": "", **fields}).make(topic, queue_id)
        outer.body = batch.encode(map(arguments.inner, words))
        begun = self.store.begin_put(outer, is_batch=True)
        self.pending.append(begun)
        return printed_puts([begun.stored])

    def results(self) -> Iterable[str]:
        """Print the results of the puts that were begun."""
        for waits, run in itertools.groupby(self.pending, lambda put: put.result is None):
            same = list(run)
            if waits:
                yield f"{len(same)} pending"
            else:
                yield from printed_puts([put.result for put in same if put.result is not None])

    def settle(self) -> None:
        """Make put messages readable; stores of files need no work by default."""

    def why_no_puts(self) -> str:
        """Print why no message can be stored, as /health reports it."""
        return self.store.why_no_puts or "none"

    def refusal(self) -> str:
        """Print why puts are refused."""
        return self.store.refusal or "none"

    # --- getting ----------------------------------------------------------------------------------

    def get(
        self,
        topic: Text,
        queue_id: int,
        queue_offset: int,
        count: int = 32,
        tags: str = "",
        code: str = "",
        detail: bool = False,
        brief: bool = False,
    ) -> Iterable[str]:
        """Get messages of a queue, with ``tags=TagA,TagB`` or a time as tags code."""
        codes = [cq_unit.tags_code(tag) for tag in tags.split(",")] if tags else []
        codes += [arguments.moment(code)] if code else []
        result = self.store.get(topic, queue_id, queue_offset, count, tags_codes=codes)
        slave = " suggests_slave" if result.suggests_slave else ""
        damaged = f" damaged={result.damaged_count}" if result.damaged_count else ""
        ends = f"next={result.next_offset} min={result.min_offset} max={result.max_offset}"
        yield f"{result.status.name} {ends}{slave}{damaged}"
        if brief:
            yield f"{len(result.records)} messages, {len(result.data)} bytes"
        else:
            yield from self._messages(result.records, has_details=detail)

    @staticmethod
    def _messages(records: Iterable[bytes], *, has_details: bool = False) -> Iterator[str]:
        for data in records:
            stored = record.decode(data)
            yield printing.message(stored)
            if has_details:
                yield from printing.details(stored)

    def read(self, topic: Text, queue_id: int = 0) -> Iterable[str]:
        """Print the bodies of a queue from its minimum on, equal ones in one line."""
        bodies: list[tuple[int, bytes]] = []
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        queue_offset = low
        while queue_offset < high:
            result = self.store.get(topic, queue_id, queue_offset)
            if result.next_offset <= queue_offset:
                raise AssertionError(f"the next offset of {queue_offset} is {result.next_offset}")
            for data in result.records:
                bodies += self._bodies(record.decode(data))
            queue_offset = result.next_offset
        yield f"min={low} max={high}"
        for body, run in itertools.groupby(bodies, lambda pair: pair[1]):
            numbers = printing.ranges(number for number, _ in run)
            yield f"{numbers} {printing.data(body)}"

    @staticmethod
    def _bodies(stored: StoredMessage) -> list[tuple[int, bytes]]:
        """Return queue offset and body of a message, or of the messages in a batch."""
        if not stored.sys_flag & flags.INNER_BATCH:
            return [(stored.queue_offset, stored.body)]
        parts = batch.decode(stored.body)
        first = int(stored.properties[props.INNER_BASE])
        return [(number, part.body) for number, part in enumerate(parts, first)]

    def query(
        self,
        topic: Text,
        key: Text,
        count: int = 32,
        begin: Moment = 0,
        end: Moment = END_OF_TIME_MS,
    ) -> Iterable[str]:
        """Print the messages that carry a key."""
        result = self.store.query(topic, key, count, begin, end)
        yield f"{len(result.records)} found{', truncated' if result.is_truncated else ''}"
        yield from self._messages(result.records)

    def find_keys(self, topic: str, pattern: str, count: int) -> str:
        """Print for how many keys (``k{n}``) how many messages are found."""
        keys = [pattern.replace("{n}", str(number)) for number in range(count)]
        sizes = [len(self.store.query(topic, key).records) for key in keys]
        numbers = {most: [i for i, size in enumerate(sizes) if size == most] for most in sizes}
        return "\n".join(f"{most}: {printing.ranges(ids)}" for most, ids in sorted(numbers.items()))

    def record(self, physical_offset: int) -> str:
        """Print the record at a physical offset."""
        data = self.store.record_at(physical_offset)
        return "none" if data is None else printing.message(record.decode(data))

    def queue(self, topic: Text, queue_id: int = 0) -> str:
        """Print the ends of a queue, with the time of its oldest message."""
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        earliest = printing.moment(self.store.earliest_message_time(topic, queue_id))
        return f"min={low} max={high} earliest={earliest}"

    def queues(self) -> str:
        """Print the topics with their queue ids."""
        topics = self.store.queues.topics()
        ids = (printing.ranges(sorted(self.store.queues.of_topic(topic))) for topic in topics)
        return (
            "\n".join(f"{topic}: {numbers}" for topic, numbers in zip(topics, ids, strict=True))
            or "none"
        )

    def ends(self) -> str:
        """Print where the log begins and ends."""
        return f"min={self.store.min_physical_offset} max={self.store.max_physical_offset}"

    def offset_by_time(self, topic: Text, queue_id: int, *times: Moment) -> Iterable[str]:
        """Print the queue offsets for times, as the lower and the upper boundary."""
        for time_ms in times:
            lower, upper = (
                self.store.offset_by_time(topic, queue_id, time_ms, boundary)
                for boundary in (Boundary.LOWER, Boundary.UPPER)
            )
            yield f"{printing.moment(time_ms)} lower={lower} upper={upper}"

    def store_time(self, topic: Text, queue_id: int, *queue_offsets: int) -> str:
        """Print the store times of messages."""
        return " ".join(
            printing.moment(self.store.store_time(topic, queue_id, queue_offset))
            for queue_offset in queue_offsets
        )

    def lag(self, topic: Text, queue_id: int, *consumer_offsets: int) -> str:
        """Print the distance of consumers to the end of the log, in bytes."""
        return " ".join(
            str(self.store.lag_bytes(topic, queue_id, consumer_offset))
            for consumer_offset in consumer_offsets
        )

    def listen(self, how: str = "") -> None:
        """Add a listener for ``notified``; or ``failing``: a listener with a bug."""

        def fail(*_: object) -> None:
            raise ValueError("a bug of the listener")

        self.store.add_listener(fail if how == "failing" else lambda *new: self.news.append(new))

    def notified(self) -> str:
        """Print the new messages that the listener got since the last call."""
        news, self.news = sorted(self.news), []
        lines = [f"{topic}/{queue_id} {low}-{high}" for topic, queue_id, low, high in news]
        return "\n".join(lines) or "nothing"

    # --- reading a folder -------------------------------------------------------------------------

    def reader(self, allow_live: bool = False) -> Iterable[str]:
        """Open the folder for reading, and print its state."""
        self.folder = StoreReader.open(str(self.root), allow_live=allow_live)
        state, tail = self.folder.state, self.folder.tail
        live = " live" if self.folder.is_live else ""
        low = self.folder.log.min_offset
        yield f"{state.condition.value}{live} min={low} end={tail.end_offset}"
        for name, damage in (("torn", tail.torn), ("stale", tail.stale)):
            if damage is not None:
                yield f"{name} {damage.physical_offset}-{damage.end}: {damage.reason}"
        if state.checkpoint_problem is not None:
            yield f"checkpoint: {state.checkpoint_problem}"

    def reader_messages(self, start: int = 0, stop: int = 1 << 62) -> Iterable[str]:
        """Print the messages of the log, and damage."""
        for stored in self.folder.messages(start, stop):
            yield f"{stored.topic}/{stored.queue_id} {printing.message(stored)}"
        for segment in self.folder.walk(start, stop):
            for damage in segment.damage:
                yield f"damage {damage.physical_offset}-{damage.end}: {damage.reason}"

    def reader_queues(self) -> Iterable[str]:
        """Print the queues that have files."""
        for topic, queue_ids in sorted(self.folder.queue_ids.items()):
            yield f"{topic}: {printing.ranges(queue_ids)}"

    def reader_queue(self, topic: Text, queue_id: int, *queue_offsets: int) -> Iterable[str]:
        """Print the ends of a queue, and messages of it."""
        view = self.folder.queue(topic, queue_id)
        yield f"min={view.min_offset} max={view.max_offset}"
        for queue_offset in queue_offsets:
            try:
                stored = self.folder.message_in_queue(topic, queue_id, queue_offset)
                yield printing.message(stored)
            except ReputError as error:
                yield f"{queue_offset} {type(error).__name__}: {error}"

    def reader_at(self, physical_offset: int) -> str:
        """Print the message at a physical offset."""
        return printing.message(self.folder.message_at(physical_offset))

    def reader_key(self, topic: Text, key: Text) -> Iterable[str]:
        """Print the messages that carry a key, and errors of messages that cannot be read."""
        hits = self.folder.messages_by_key(topic, key)
        yield f"{len(hits.messages)} found, {len(hits.unreadable)} unreadable"
        yield from map(printing.message, hits.messages)
        yield from map(str, hits.unreadable)

    def reader_id(self, message_id: Text, topic: str | None = None) -> Iterable[str]:
        """Print the messages with a message id or a unique key."""
        hits = self.folder.messages_by_id(message_id, topic)
        return [f"{len(hits)} found", *map(printing.message, hits)]

    def reader_topics(self) -> str:
        """Print the topics of the table."""
        return " ".join(sorted(self.folder.topics())) or "none"

    # --- deleting ---------------------------------------------------------------------------------

    def delete_topic(self, topic: Text) -> str:
        """Delete a topic; print how many queues it had."""
        return f"{self.store.delete_topic(topic)} queues"

    def clean_topics(self, *known: str) -> str:
        """Delete the topics that are not in the table."""
        doomed = self.store.unknown_topics(known)
        return f"{sum(map(self.store.delete_topic, doomed))} queues"

    def clean_unused_queues(self) -> str:
        """Delete the queues without messages in the log."""
        removals = self.store.removals
        removal = self.store.begin_removal(self.store.unused_queues())
        for _ in removals.release(removal) if removal is not None else ():
            pass
        return f"{sum(done.count for done in removals.finish())} queues"

    def tombstones(self) -> str:
        """Print the file of tombstones."""
        path = self.root / paths.TOMBSTONES
        return " ".join(path.read_text().split()) if path.exists() else "none"

    def age(self, *ages: Milliseconds) -> None:
        """Set the age of the first log files; the others were written now."""
        files = self.store.log.files.files
        for file, old_ms in zip(files, [*ages, *[0] * len(files)], strict=False):
            modified_ns = (self.clock.now_ms() - old_ms) * 1_000_000
            os.utime(file.path, ns=(modified_ns, modified_ns))

    def expire(self, rounds: int = 20) -> None:
        """Delete expired files at any hour from the next step on."""
        self.store.retention.expire_now(rounds)

    def consumers(self, *words: str) -> None:
        """Set consumer offsets of groups: ``TopicA/0/group=5``."""
        offsets = []
        for word in words:
            where, _, number = word.partition("=")
            topic, queue_id, group = where.split("/")
            offsets.append(ConsumerOffset(topic, group, int(queue_id), int(number)))
        self.store.retention.consumer_offsets = lambda: offsets

    def counts(self) -> Iterable[str]:
        """Print the counts of retention, with the messages that no group had read."""
        counts = self.store.retention.counts
        yield (
            f"log_files={counts.log_files} log_bytes={counts.log_bytes} "
            f"queue_files={counts.queue_files} index_files={counts.index_files} "
            f"failures={counts.failures}"
        )
        for (topic, group), count in sorted(counts.unread.items()):
            yield f"unread {topic} {group} {count}"
        for topic, count in sorted(counts.never_read.items()):
            yield f"never_read {topic} {count}"

    def hold(self, start: int) -> str:
        """Hold a log file as a reader does."""
        file = self.held[start] = self.store.log.files.file_at(start)
        return "held" if file.hold() else "gone"

    def release(self, start: int) -> str:
        """Release a log file; print whether the data read from it is valid."""
        return "counts" if self.held.pop(start).release() else "does not count"

    def release_all(self) -> None:
        """Release all log files."""
        for start in list(self.held):
            self.release(start)

    # --- the disk ---------------------------------------------------------------------------------

    def disk_used(self, percent: int, freed_by_file: int | None = None, **folders: int) -> None:
        """Set the usage of the disk, or of the disks of some folders of the log."""
        self.disk.used_percent = percent
        self.disk.used_percent_of = {name: int(part) for name, part in folders.items()}
        if freed_by_file is not None:
            self.disk.freed_percent = freed_by_file

    def disk_fails(self, operation: str, path: str = "") -> None:
        """Let an operation fail from now on, where a path contains a text."""
        if not hasattr(self.disk, operation):
            raise ScriptError(f"no operation of a disk: {operation}")
        self.disk.failing[operation] = path

    def disk_full(self, path: str = "/") -> None:
        """Let the disk have no more room for paths that contain a text."""
        self.disk.full = path

    def disk_works(self) -> None:
        """End all failures and lacks of room."""
        self.disk.failing.clear()
        self.disk.full = ""

    def disk_forget(self) -> None:
        """Forget the deletions and syncs so far."""
        self.disk.done.clear()

    def disk_done(self, path: str = "") -> Iterable[str]:
        """Print deletions and syncs of folders since the last call."""
        done, self.disk.done = self.disk.done, []
        return [line for line in done if path in line] or ["nothing"]

    # --- bytes ------------------------------------------------------------------------------------

    def dump(
        self, what: str, topic: str = "", queue_id: int = 0, has_hex: bool = False
    ) -> Iterable[str]:
        """Print files: log, queue, batch-queue, extension, index, checkpoint, or a path."""
        families: dict[str, tuple[str, Callable[[Path], Iterator[str]]]] = {
            "queue": (paths.CONSUME_QUEUE, printing.queue),
            "batch-queue": (paths.BATCH_CONSUME_QUEUE, printing.batch_queue),
            "extension": (paths.CONSUME_QUEUE_EXT, printing.extension),
        }
        if what == "log":
            return printing.log(self.root / paths.COMMIT_LOG, has_hex=has_hex)
        if what in families:
            family, lines = families[what]
            folder = self.root / paths.queue_folder(topic, queue_id, family)
            return lines(folder) if folder.is_dir() else ["no files"]
        if what == "index":
            slots = self.settings.get("max_hash_slot_num", 50)
            return printing.index(self.root / paths.INDEX, slots)
        if what == "checkpoint":
            return printing.checkpoint(self.root / paths.CHECKPOINT)
        return [printing.data(self._path(what).read_bytes())]

    def index_names(self) -> Iterable[str]:
        """Print the names of the index files: their times of creation."""
        return sorted(path.name for path in (self.root / paths.INDEX).iterdir())

    def files(self, family: str = "") -> Iterable[str]:
        """Print the files below a folder of the store."""
        return list(printing.files(self.root, family)) or ["none"]

    def log_lines(self, contains: str = "") -> Iterable[str]:
        """Print what the store has logged since the last call."""
        lines, self._lines.lines = self._lines.lines, []
        return [line for line in lines if contains in line] or ["nothing"]

    def verify(self) -> Iterable[str]:
        """Verify a store that is not open."""
        return printing.verification(verify(self._reader()))

    def damage(
        self,
        path: str,
        position: int = 0,
        flip: int | None = None,
        data: bytes | None = None,
        zero: int | None = None,
        cut: bool = False,
    ) -> None:
        """Change a file: flip bits of a byte, overwrite with data or zeros, or truncate it there.

        The last part of a path may be the start of a file, ``commitlog/0``, or its number in the
        folder, ``index/#0``.
        """
        file = self._path(path)
        content = bytearray(file.read_bytes())
        if flip is not None:
            content[position] ^= flip
        if data is not None:
            content[position : position + len(data)] = data
        if zero is not None:
            stop = min(position + zero, len(content))
            content[position:stop] = bytes(stop - position)
        if cut:
            del content[position:]
        file.write_bytes(content)
        self._note_change()

    def damage_log(
        self,
        physical_offset: int,
        flip: int | None = None,
        data: bytes | None = None,
        zero: int | None = None,
    ) -> None:
        """Change the log at a physical offset; zeros end with the log."""
        files = sorted((self.root / paths.COMMIT_LOG).iterdir())
        first = max(path for path in files if int(path.name) <= physical_offset)
        path = str(first.relative_to(self.root))
        self.damage(path, physical_offset - int(first.name), flip, data, zero)
        if zero is not None and physical_offset + zero > int(first.name) + first.stat().st_size:
            for file in files[files.index(first) + 1 :]:
                self.damage(str(file.relative_to(self.root)), 0, zero=zero)

    def set_unit(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int | None = None,
        size: int | None = None,
        tags_code: int | None = None,
    ) -> None:
        """Change a unit in the file of a queue."""
        folder = self.root / paths.queue_folder(topic, queue_id)
        place = queue_offset * cq_unit.SIZE
        file = max(path for path in sorted(folder.iterdir()) if int(path.name) <= place)
        position = place - int(file.name)
        unit = cq_unit.unpack(file.read_bytes(), position)
        changed = cq_unit.Unit(
            unit.physical_offset if physical_offset is None else physical_offset,
            unit.size if size is None else size,
            unit.tags_code if tags_code is None else tags_code,
        )
        self.damage(str(file.relative_to(self.root)), position, data=cq_unit.pack(changed))

    def set_entry(self, file: int, number: int, **fields: int) -> None:
        """Change fields of an entry of an index file."""
        path = f"{paths.INDEX}/#{file}"
        content = self._path(path).read_bytes()
        position = index_entry.entry_position(number, self.settings.get("max_hash_slot_num", 50))
        entry = dataclasses.replace(index_entry.unpack_entry(content, position), **fields)
        self.damage(path, position, data=index_entry.pack_entry(entry))

    def set_checkpoint(self, **fields: int) -> None:
        """Change fields of the checkpoint."""
        names = [field.name for field in dataclasses.fields(Checkpoint)]
        for name, value in fields.items():
            data = struct.pack(">q", value)
            self.damage(paths.CHECKPOINT, 8 * names.index(name), data=data)

    def save(self) -> None:
        """Keep a copy of the folder of a store that is not open, for ``restore``."""
        shutil.rmtree(self._folder / "saved", ignore_errors=True)
        shutil.copytree(self.root, self._folder / "saved")

    def restore(self) -> None:
        """Restore the saved folder of the store."""
        shutil.rmtree(self.root)
        shutil.copytree(self._folder / "saved", self.root)
        self._note_change()

    def remove(self, *names: str) -> None:
        """Delete files or folders of the store."""
        for name in names:
            path = self._path(name)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._note_change()

    def write(self, path: str, content: bytes = b"") -> None:
        """Write a file of the store, with its folders."""
        file = self._path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        self._note_change()

    def copy(self, path: str, to: str) -> None:
        """Copy a file of the store."""
        shutil.copyfile(self._path(path), self._path(to))
        self._note_change()

    def make_folder(self, path: str) -> None:
        """Make a folder in the store."""
        self._path(path).mkdir(parents=True)
        self._note_change()

    def topics_table(self, *words: str) -> None:
        """Write ``config/topics.json`` with topics and their queue counts: ``TopicA=2``."""
        table = {}
        for word in words:
            topic, _, count = word.partition("=")
            queues = int(count)
            table[topic] = {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues}
        self.write(paths.TOPICS, json.dumps({"topicConfigTable": table}).encode())

    def offsets_table(self, *words: str) -> None:
        """Write ``config/consumerOffset.json``: ``TopicA@group/0=5``."""
        table: dict[str, dict[str, int]] = {}
        for word in words:
            where, _, number = word.partition("=")
            group, _, queue_id = where.rpartition("/")
            table.setdefault(group, {})[queue_id] = int(number)
        self.write(paths.CONSUMER_OFFSETS, json.dumps({"offsetTable": table}).encode())

    def _note_change(self) -> None:
        """Let the disk of a closed store accept the changed files."""
        if self.store is None:
            self.disk.take_files()

    def _path(self, path: str) -> Path:
        folder, _, name = path.rpartition("/")
        if name.startswith("#"):
            return sorted((self.root / folder).iterdir())[int(name[1:])]
        is_start = name.isdigit() and folder.count("/") in (0, 2) and not folder.startswith("index")
        return self.root / folder / (paths.offset_name(int(name)) if is_start else name)
