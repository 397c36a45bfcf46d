"""Delayed messages: they wait in the schedule topic until their delay level's time has passed.

Each delay level has a queue there, whose units carry deliver times instead of tags codes. All
messages of a queue wait equally long, so they become due in queue order: the first that is not due
ends the scan. Messages with an individual delivery time wait elsewhere (``timers``).

delayOffset.json has the position of each level. A position moves past a message once its delivered
copy is durable: a crash delivers some again, and loses none. Source: rocketmq 4.9.8
``ScheduleMessageService``.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reput.broker.durable import DurableProgress
from reput.broker.quarantine import Quarantine
from reput.broker.republish import (
    RETRY_MS,
    Outcome,
    Parcel,
    RetryPause,
    destination,
    fitting,
    make_durable,
    parcel,
    property_bytes,
    put_places,
    records_of,
)
from reput.errors import CorruptRecord, WriteFailed
from reput.format import cq_unit, java, names, properties as props
from reput.store.message_store import MessageStore
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queue_view import UnitArray
from reput.store.tables.offsets import DelayOffsetTable
from reput.store.writing.copying import CopyRule, places_of
from reput.store.writing.incoming import PutStatus

MESSAGES_PER_STEP = 512
"""Maximum number of messages per step: about a millisecond, during which no request is served."""
BYTES_PER_STEP = 1024 * 1024
"""Maximum record bytes per step; the first message of a level is always delivered."""
LOOP = "delayed"

_UNKNOWN_DELAY_MS = 1_000
"""Delay of a level that is no longer configured, if the unit has no time; as in Java."""

_DELIVERY = CopyRule()

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Level:
    """State of a delay level."""

    number: int
    """Level, from 1 on; its queue id is one less."""
    delay_ms: int | None
    """Delay in ms; None if messages wait in a level that is no longer configured."""
    position: int = 0
    """Queue offset of the next message."""
    pause: RetryPause = field(default_factory=RetryPause)
    """Pause after the store refused the next message."""

    @property
    def queue_id(self) -> int:
        return self.number - 1


class DelaySchedule:
    """Delivers delayed messages, never early.

    To be used only by the thread that puts. ``load`` must be called first; nothing is delivered or
    saved before.

    Args:
        store: The store of waiting and delivered messages.
        table: Position of each level.
        quarantine: Takes messages that cannot be delivered.
    """

    def __init__(
        self, store: MessageStore, table: DelayOffsetTable, quarantine: Quarantine | None = None
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.table = table
        """Saved by its owner, together with other tables."""
        self._store = store
        self._levels: list[_Level] = []
        self._delivered: DurableProgress[int] = DurableProgress()
        """Positions by level number."""
        self._saved_end = 0

    # Positions --------------------------------------------------------------------------------

    def load(self) -> None:
        """Start at the positions of the table, or at the nearest existing messages.

        Corrections are also made in the table.
        """
        delays_ms = dict(enumerate(self._store.config.delay_levels_ms, 1))
        waiting = {queue_id + 1 for queue_id in self._queues()}
        self._levels = [
            _Level(number, delays_ms.get(number)) for number in sorted(waiting | delays_ms.keys())
        ]
        for level in self._levels:
            if level.delay_ms is None:
                _log.warning(
                    "delay level %d is no longer configured; its waiting messages are delivered",
                    level.number,
                )
            known = self.table.get(level.number)
            queue = self._find_queue(level)
            low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
            level.position = low if known is None else max(low, min(known, high))
            if known is not None and known != level.position:
                _log.error(
                    "delay level %d: saved position %d is outside of its queue, %d to %d; now %d",
                    level.number, known, low, high, level.position,
                )  # fmt: skip
                self.table.put(level.number, level.position)

    def copy_positions(self, positions: Mapping[int, int]) -> None:
        """Adopt the positions of the master, on a slave that has the master's log up to them.

        Args:
            positions: Level -> queue offset of its next message.
        """
        for number, position in positions.items():
            if self.table.get(number) != position:
                self.table.put(number, position)
        for level in self._levels:
            level.position = positions.get(level.number, level.position)

    def skip_all(self) -> None:
        """Skip all messages that wait now."""
        self.copy_positions({level: end for level, (_, end) in self.progress().items()})

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return level -> queue offset of its next message, and the end of its queue."""
        positions = {}
        for level in self._levels:
            queue = self._find_queue(level)
            if queue is not None:
                positions[level.number] = level.position, queue.max_offset
        return positions

    def _queues(self) -> dict[int, ConsumeQueue]:
        return self._store.queues.of_topic(names.SCHEDULE_TOPIC)

    def _find_queue(self, level: _Level) -> ConsumeQueue | None:
        return self._store.queues.find(names.SCHEDULE_TOPIC, level.queue_id)

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Deliver due messages, at most ``MESSAGES_PER_STEP``; the levels take turns.

        Args:
            now_ms: The time.

        Returns:
            True if anything was due: call it again, there may be more.
        """
        left = MESSAGES_PER_STEP
        for level in self._levels:
            left -= self._step_level(level, left, now_ms)
            if left <= 0:
                # The next step continues with the level after this one.
                index = self._levels.index(level) + 1
                self._levels = self._levels[index:] + self._levels[:index]
                break
        self._publish_progress()
        return left < MESSAGES_PER_STEP

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the time of the next work, at least ``now_ms``; None if no message waits.

        A message that is delayed later may be due before that.
        """
        times = [self._level_due_ms(level, now_ms) for level in self._levels]
        return min((time for time in times if time is not None), default=None)

    def close(self) -> None:
        """Make the delivered copies durable, so that the table covers them; save it afterwards."""
        make_durable(self._store)
        self._publish_progress()

    def _publish_progress(self) -> None:
        for level, position in self._delivered.durable(self._store.log.flushed_offset):
            self.table.put(level, position)

    def _level_due_ms(self, level: _Level, now_ms: int) -> int | None:
        queue = self._find_queue(level)
        if queue is None or level.position >= queue.max_offset:
            return None
        if level.pause.is_active(now_ms):
            return level.pause.end_ms
        units = queue.units(max(level.position, queue.min_offset), 1)
        if not len(units):
            return now_ms
        is_due, times = self._due(level, queue, units, now_ms)
        return now_ms if is_due[0] else int(times[0])

    # One level --------------------------------------------------------------------------------

    def _step_level(self, level: _Level, count_max: int, now_ms: int) -> int:
        """Deliver due messages of a level; return how many messages it has finished."""
        queue = self._find_queue(level)
        if queue is None or level.position == queue.max_offset or level.pause.is_active(now_ms):
            return 0
        self._correct_position(level, queue)
        begin = level.position
        if begin >= queue.max_offset:
            return 0
        units = queue.units(begin, count_max)
        if len(units):
            is_due, _ = self._due(level, queue, units, now_ms)
            units = units if is_due.all() else units[: int(is_due.argmin())]
            end, missing_count = self._deliver(level, units, now_ms)
        else:
            # The file of the consume queue is missing.
            end = min(queue.following_file(begin), queue.max_offset)
            missing_count = end - begin
        level.position = end
        if missing_count:
            _log.error(
                "%d delayed messages from %d to %d of level %d cannot be read; they are lost",
                missing_count, begin, end - 1, level.number,
            )  # fmt: skip
        if end > begin:
            self._delivered.add(level.number, end, self._saved_end)
        return end - begin

    def _correct_position(self, level: _Level, queue: ConsumeQueue) -> None:
        """Move a position into the queue if messages expired before they were due."""
        inside = max(queue.min_offset, min(level.position, queue.max_offset))
        if inside != level.position:
            _log.error(
                "delay level %d is at %d, outside of its queue, %d to %d; it continues at %d",
                level.number, level.position, queue.min_offset, queue.max_offset, inside,
            )  # fmt: skip
            level.position = inside

    def _due(
        self, level: _Level, queue: ConsumeQueue, units: UnitArray, now_ms: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return which units are due, and their due times."""
        times = units["tags_code"].astype(np.int64)
        if queue.extension is not None:
            times[:] = [self._extended_time(level, queue, unit) for unit in units]
        is_due = times <= now_ms
        if level.delay_ms is not None:
            # The clock was set back, or the level was longer: as in Java, no message waits longer
            # than if it were delayed now.
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
        """Copy messages to their destinations.

        If the store refuses one, the level stays at it and retries.

        Returns:
            Queue offset of the next message, and the number of unreadable messages before it.
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
                    return self._parcel(data, level, begin + number)
            except (WriteFailed, OSError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - clients choose the content of a message
                self._skip(level, begin + number, error)
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
            self._skip(level, begin + done, f"{outcome.status.name}: {outcome.reason}")
            done += 1
        end = begin + done
        if done < len(units):
            level.position = end
            self._refused(level, outcome.status, outcome.reason, now_ms)
        else:
            if level.pause.clear():
                _log.info("delay level %d has recovered", level.number)
        return end, missing_count

    def _skip(self, level: _Level, queue_offset: int, reason: Exception | str) -> None:
        """Report a message that cannot be delivered."""
        place = f"{names.SCHEDULE_TOPIC}/{level.queue_id}, message {queue_offset}"
        self._quarantine.add(LOOP, place, reason)

    def _parcel(self, data: bytes, level: _Level, queue_offset: int) -> Parcel | None:
        """Return the copy of a due message; None if it has no valid destination.

        Raises:
            CorruptRecord: Its record is damaged.
        """
        properties = property_bytes(data)
        place = destination(properties)
        if place is None or names.is_written_by_brokers(java.decode_utf8(place[0])):
            decoded = props.decode(properties)
            topic = decoded.get(props.REAL_TOPIC, "")[:300]
            queue = decoded.get(props.REAL_QUEUE_ID, "")[:300]
            reason = f"it is dropped: it belongs to {topic!r}, queue {queue!r}"
            self._skip(level, queue_offset, reason)
            return None
        return parcel(self._store, data, *place)

    def _refused(self, level: _Level, status: PutStatus, reason: str, now_ms: int) -> None:
        problem = f"{status.name}: {reason}"
        if level.pause.begin(problem, now_ms):
            _log.error(
                "delay level %d cannot deliver message %d; retried every %d ms: %s",
                level.number, level.position, RETRY_MS, problem,
            )  # fmt: skip
