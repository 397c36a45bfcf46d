"""Delayed messages: they wait in the schedule topic, and are put where they belong when it is time.

Each delay level has a queue there, whose units carry deliver times instead of tags codes. All of a
queue wait equally long, so they become due in its order: the first that is not due ends the work.
Messages that have a time of their own wait elsewhere (``timers``).

delayOffset.json says how far each level is. A message counts there once its delivered copy is on
disk: a crash delivers some again, and loses none.
Source: rocketmq 4.9.8 ``ScheduleMessageService``.
"""

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.broker.durable import DurableProgress
from reput.broker.quarantine import Quarantine
from reput.broker.republish import (
    Outcome,
    Parcel,
    destination,
    fitting,
    parcel,
    property_bytes,
    put_places,
    records_of,
)
from reput.errors import CorruptRecord, WriteFailed
from reput.format import cq_unit, java, names, properties as props
from reput.store.consume_queue import ConsumeQueue
from reput.store.consume_queue_view import UnitArray
from reput.store.copying import CopyRule, places_of
from reput.store.incoming import PutStatus
from reput.store.message_store import MessageStore
from reput.store.table_files import DelayOffsetTable

MESSAGES_PER_STEP = 512
"""What a step delivers at most: it takes about a millisecond, in which nobody else is served."""
BYTES_PER_STEP = 1024 * 1024
"""Likewise, of records; the first one of a level always goes."""
LOOP = "delayed"
RETRY_MS = 1_000
"""A level whose message was refused is left alone for so long."""

_UNKNOWN_DELAY_MS = 1_000
"""Of a level that is no longer configured, where a unit does not say; as in Java."""

_DELIVERY = CopyRule()

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Level:
    """A delay level."""

    number: int
    """1 is the first; its queue id is one less."""
    delay_ms: int | None
    """None: messages wait there, but it is no longer configured."""
    position: int = 0
    """Queue offset of the next message."""
    refused_ms: int | None = None
    """When the store refused its next message; None: it did not."""
    problem: str = ""
    """Why it did; logged once."""

    @property
    def queue_id(self) -> int:
        return self.number - 1


class DelaySchedule:
    """Delivers delayed messages, never early.

    For the thread that puts. ``load`` comes first: until then nothing is delivered or saved.

    Args:
        store: Where messages wait, and where they go.
        table: How far each level is.
        quarantine: Takes what cannot be delivered.
    """

    def __init__(
        self, store: MessageStore, table: DelayOffsetTable, quarantine: Quarantine | None = None
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.table = table
        """Saved by its owner, who saves other tables too."""
        self._store = store
        self._levels: list[_Level] = []
        self._delivered: DurableProgress[int] = DurableProgress()
        """Of levels, by number."""
        self._saved_end = 0

    # Where levels are -------------------------------------------------------------------------

    def load(self) -> None:
        """Take up where the table says, or at the nearest message that is there.

        What had to be corrected is corrected in the table as well, for its next ``step``.
        """
        delays_ms = dict(enumerate(self._store.config.delay_levels_ms, 1))
        waiting = {queue_id + 1 for queue_id in self._queues()}
        self._levels = [
            _Level(number, delays_ms.get(number)) for number in sorted(waiting | delays_ms.keys())
        ]
        for level in self._levels:
            if level.delay_ms is None:
                _log.warning(
                    "delay level %d is no longer configured; what waits there is delivered",
                    level.number,
                )
            known = self.table.get(level.number)
            queue = self._find_queue(level)
            low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
            level.position = low if known is None else max(low, min(known, high))
            if known is not None and known != level.position:
                _log.error(
                    "delay level %d was said to be at %d of a queue from %d to %d; now at %d",
                    level.number, known, low, high, level.position,
                )  # fmt: skip
                self.table.put(level.number, level.position)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return level -> queue offset of its next message, and the end of its queue."""
        found = {}
        for level in self._levels:
            queue = self._find_queue(level)
            if queue is not None:
                found[level.number] = level.position, queue.max_offset
        return found

    def _queues(self) -> dict[int, ConsumeQueue]:
        return self._store.queues.of_topic(names.SCHEDULE_TOPIC)

    def _find_queue(self, level: _Level) -> ConsumeQueue | None:
        return self._store.queues.find(names.SCHEDULE_TOPIC, level.queue_id)

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Deliver what is due, at most ``MESSAGES_PER_STEP``; the levels take turns.

        Args:
            now_ms: What the time is.

        Returns:
            Whether anything was due: call it again, there may be more.
        """
        left = MESSAGES_PER_STEP
        for level in self._levels:
            left -= self._step_level(level, left, now_ms)
            if left <= 0:
                # The next step begins where this one ended.
                at = self._levels.index(level) + 1
                self._levels = self._levels[at:] + self._levels[:at]
                break
        self._note_saved()
        return left < MESSAGES_PER_STEP

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when there is work again, ``now_ms`` if there is some; None if nothing waits.

        A message that is delayed later may be due before that.
        """
        times = [self._next_of(level, now_ms) for level in self._levels]
        return min((time for time in times if time is not None), default=None)

    def close(self) -> None:
        """Make durable what was delivered, so that the table says all of it; save that then."""
        try:
            self._store.flusher.commit()
            self._store.sync()
        except WriteFailed as error:
            _log.error("messages that were delivered last may be delivered again: %s", error)
        self._note_saved()

    def _note_saved(self) -> None:
        for level, position in self._delivered.durable(self._store.log.flushed_offset):
            self.table.put(level, position)

    def _next_of(self, level: _Level, now_ms: int) -> int | None:
        queue = self._find_queue(level)
        if queue is None or level.position >= queue.max_offset:
            return None
        if self._is_left_alone(level, now_ms):
            return (level.refused_ms or 0) + RETRY_MS
        units = queue.units(max(level.position, queue.min_offset), 1)
        if not len(units):
            return now_ms
        is_due, times = self._due(level, queue, units, now_ms)
        return now_ms if is_due[0] else int(times[0])

    def _is_left_alone(self, level: _Level, now_ms: int) -> bool:
        # A clock that was set back must not keep a level waiting.
        return level.refused_ms is not None and 0 <= now_ms - level.refused_ms < RETRY_MS

    # One level --------------------------------------------------------------------------------

    def _step_level(self, level: _Level, count_max: int, now_ms: int) -> int:
        """Deliver what is due of a level; return how many messages it is done with."""
        queue = self._find_queue(level)
        if (
            queue is None
            or level.position == queue.max_offset
            or self._is_left_alone(level, now_ms)
        ):
            return 0
        self._stay_inside(level, queue)
        begin = level.position
        if begin >= queue.max_offset:
            return 0
        units = queue.units(begin, count_max)
        if len(units):
            is_due, _ = self._due(level, queue, units, now_ms)
            units = units if is_due.all() else units[: int(is_due.argmin())]
            end, missing_count = self._deliver(level, units, now_ms)
        else:
            end = min(queue.following_file(begin), queue.max_offset)  # its file is missing
            missing_count = end - begin
        level.position = end
        if missing_count:
            _log.error(
                "%d delayed messages from %d to %d of level %d cannot be read; they are lost",
                missing_count, begin, end - 1, level.number,
            )  # fmt: skip
        if end > begin:
            self._delivered.note(level.number, end, self._saved_end)
        return end - begin

    def _stay_inside(self, level: _Level, queue: ConsumeQueue) -> None:
        """Correct a position outside of the queue: messages expired before they were due."""
        inside = max(queue.min_offset, min(level.position, queue.max_offset))
        if inside != level.position:
            _log.error(
                "delay level %d is at %d of a queue from %d to %d; it goes on at %d",
                level.number, level.position, queue.min_offset, queue.max_offset, inside,
            )  # fmt: skip
            level.position = inside

    def _due(
        self, level: _Level, queue: ConsumeQueue, units: UnitArray, now_ms: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return which units are due, and when each is."""
        times = units["tags_code"].astype(np.int64)
        if queue.extension is not None:
            times[:] = [self._extended_time(level, queue, unit) for unit in units]
        is_due = times <= now_ms
        if level.delay_ms is not None:
            # The clock was ahead, or the level longer: as in Java, nothing waits longer than it
            # would if it came now.
            is_due |= times > self._store.store_time_of_put(now_ms) + level.delay_ms
        return is_due | (units["size"] <= 0), times

    def _extended_time(self, level: _Level, queue: ConsumeQueue, unit: np.void) -> int:
        code = int(unit["tags_code"])
        if not cq_unit.is_ext_address(code) or queue.extension is None:
            return code
        try:
            return queue.extension.unit(code).tags_code
        except CorruptRecord as error:
            _log.error("delay level %d: %s; the message's store time counts", level.number, error)
        stored_ms = self._store.log.store_timestamp_at(int(unit["physical_offset"]))
        delay_ms = _UNKNOWN_DELAY_MS if level.delay_ms is None else level.delay_ms
        return (stored_ms or 0) + delay_ms

    def _deliver(self, level: _Level, units: UnitArray, now_ms: int) -> tuple[int, int]:
        """Put messages where they belong.

        Where the store refuses one, the level stays at it: it is tried again.

        Returns:
            Queue offset of the next message, and how many before it cannot be read.
        """
        begin = level.position
        if not len(units):
            return begin, 0
        units = units[: fitting(units["size"].tolist(), BYTES_PER_STEP)]
        places = places_of(units, begin)
        missing_count = 0

        def parcel_of(number: int) -> Parcel | None:
            nonlocal missing_count
            number += done
            place = (
                begin + number,
                int(units["physical_offset"][number]),
                int(units["size"][number]),
            )
            try:
                (data,) = records_of(self._store, [place])
                if data is not None:
                    return self._arrived(data, level, begin + number)
            except (WriteFailed, OSError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - clients decide what is in a message
                self._pass_over(level, begin + number, error)
            missing_count += 1
            return None

        done = 0
        outcome = Outcome(0, 0)
        while done < len(units):
            outcome = put_places(self._store, places[done:], _DELIVERY, parcel_of, now_ms)
            self._saved_end = max(self._saved_end, outcome.end_offset)
            done += outcome.stored_count
            if done == len(units) or not outcome.status.is_final:
                break
            self._pass_over(level, begin + done, f"{outcome.status.name}: {outcome.reason}")
            done += 1
        end = begin + done
        if done < len(units):
            level.position = end
            self._refused(level, outcome.status, outcome.reason, now_ms)
        else:
            if level.problem:
                _log.info("delay level %d delivers again", level.number)
            level.refused_ms, level.problem = None, ""
        return end, missing_count

    def _pass_over(self, level: _Level, queue_offset: int, reason: Exception | str) -> None:
        """Report a message that cannot be delivered."""
        place = f"{names.SCHEDULE_TOPIC}/{level.queue_id}, message {queue_offset}"
        self._quarantine.add(LOOP, place, reason)

    def _arrived(self, data: bytes, level: _Level, queue_offset: int) -> Parcel | None:
        """Return what is put in place of a message that has waited; None if it goes nowhere.

        Raises:
            CorruptRecord: Its record is damaged.
        """
        properties = property_bytes(data)
        place = destination(properties)
        if place is None or names.is_written_by_brokers(java.decode_utf8(place[0])):
            found = props.decode(properties)
            topic = found.get(props.REAL_TOPIC, "")[:300]
            queue = found.get(props.REAL_QUEUE_ID, "")[:300]
            reason = f"it is dropped: it belongs to {topic!r}, queue {queue!r}"
            self._pass_over(level, queue_offset, reason)
            return None
        return parcel(self._store, data, *place)

    def _refused(self, level: _Level, status: PutStatus, reason: str, now_ms: int) -> None:
        level.refused_ms = now_ms
        problem = f"{status.name}: {reason}"
        if problem != level.problem:
            level.problem = problem
            _log.error(
                "delay level %d cannot deliver message %d, and tries again every %d ms: %s",
                level.number, level.position, RETRY_MS, problem,
            )  # fmt: skip
