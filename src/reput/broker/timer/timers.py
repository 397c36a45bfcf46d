"""Messages with an individual delivery time: they wait in the timer's queue until they are due.

    send -> park -> rmq_sys_wheel_timer -> taken up -> runs, by time -> destination queue

Waiting messages are stored in the log as RocketMQ 5.x parks them: TIMER_OUT_MS is the time,
REAL_TOPIC and REAL_QID are the destination. Everything else is derived from that queue:
``TimerRuns`` takes 36 bytes per message, and is rebuilt at start. There is no wheel, and no second
log of waiting messages (docs/decisions/0015-the-timer-is-its-queue.md).

A message for time T is delivered at the first multiple of ``timerPrecisionMs`` that is not before
T; TIMER_OUT_MS is one precision less, as in Java. A message that waits for long is put into the
queue again ("rolled"), so that it does not expire in the meantime. A recall is itself a parked
message, which cancels the message that it names.

Progress is saved once the delivered copies are durable: a crash delivers some again, and loses
none. Source: rocketmq 5.5.0 ``TimerMessageStore``, ``HookUtils``.
"""

import heapq
import logging
import random
import re
from collections import OrderedDict
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput import small_file
from reput.broker import limits
from reput.broker.kernels.send_rules import TIMER_UNITS_MS
from reput.broker.quarantine import Quarantine
from reput.broker.republish import (
    RETRY_MS,
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
from reput.broker.timer.metrics import TimerMetrics
from reput.broker.timer.runs import ENTRY_TYPE, Entries, TimerRuns
from reput.config import JAVA_INT_MAX
from reput.errors import CorruptRecord, RequestRefused, WriteFailed
from reput.format import java, message as record, names, properties as props, timer_check
from reput.format.codes import ResponseCode
from reput.format.kernels.rows import word_count
from reput.format.timer_check import TimerCheck
from reput.store.config import BrokerRole
from reput.store.files import paths
from reput.store.kernels import copy_args as words
from reput.store.message_store import MessageStore
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queue_view import UnitArray
from reput.store.tables.timer_table import JavaTimer, TimerProgress, TimerTable
from reput.store.writing.copying import CopyRule, Places, places_of
from reput.store.writing.incoming import PutStatus

MESSAGES_PER_STEP = 1024
"""Maximum number of messages per step: 1 to 3 ms, during which no request is served."""
BYTES_PER_STEP = 1024 * 1024
"""Maximum record bytes per step; the first message is always delivered."""
ODD_PER_STEP = 256
"""Limit per step of messages that fall back to Python: recalls, and possibly recalled messages."""
LOOP = "timers"

RECALLS_KEPT_MS = 60_000
"""Time for which a recall is remembered after its message is due, in ms."""

_TOPIC = names.TIMER_TOPIC.encode()
_DELIVERY = CopyRule()
_ROLL = CopyRule(_TOPIC)
_MARKS = f"{props.TIMER_ENQUEUE_MS}\x01%d\x02{props.TIMER_DEQUEUE_MS}\x01%d\x02".encode()
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LONG_MAX = (1 << 63) - 1

Numbers = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A decoded message of the timer's queue."""

    data: bytes
    """Record of the message."""
    out_ms: int
    stored_ms: int
    properties: bytes
    recalled_key: bytes | None
    """Unique key of the message that this recall cancels; None if it is no recall."""

    @property
    def topic(self) -> str:
        """Destination topic; empty if it has none."""
        return java.decode_utf8(props.find(self.properties, props.REAL_TOPIC) or b"")


class Timers:
    """Parks messages, and delivers them, never early.

    To be used only by the thread that puts. ``load`` must be called first; nothing is delivered or
    saved before.

    Args:
        store: The store of waiting and delivered messages.
        table: Progress of the timer.
        quarantine: Takes messages that cannot be processed.
    """

    def __init__(
        self, store: MessageStore, table: TimerTable, quarantine: Quarantine | None = None
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.table = table
        """Saved by its owner, together with other tables."""
        self.delivered_count = 0
        self.recalled_count = 0
        self.metrics = TimerMetrics()
        self._store = store
        self._is_slave = store.config.broker_role is BrokerRole.SLAVE
        self.config = store.config
        """Current settings; precision and roll time are those of the start."""
        self._precision_ms = store.config.timer_precision_ms
        self._roll_ms = store.config.timer_roll_ms
        self._runs = TimerRuns()
        self._recalls: dict[int, set[bytes]] = {}
        """TIMER_OUT_MS -> unique keys of recalled messages."""
        self._recall_count = 0
        """Number of all recalled keys."""
        self._recall_times: list[int] = []
        """Heap of the keys of ``_recalls``."""
        self._recall_places: OrderedDict[int, int] = OrderedDict()
        """TIMER_OUT_MS -> lowest queue offset of its recalls, in queue order."""
        self._counted_recalls: list[tuple[int, str]] = []
        """Heap of TIMER_OUT_MS and topic: recalls that are subtracted from the topic's count."""
        self._taken_up = 0
        """Queue offset of the next message to be taken up."""
        self._before = TimerProgress()
        """Progress when the store was opened."""
        self._pending_progress: tuple[TimerProgress, int] | None = None
        """Progress to be published once the log is durable up to the physical offset."""
        self._has_changed = False
        """True if something was delivered since progress was last computed."""
        self._saved_end = 0
        self._loaded_end = 0
        """End of the queue when the store was opened."""
        self._delivered_to_ms = 0
        """Everything due before this time was delivered, even if the clock was set back."""
        self._pause = RetryPause()

    # Parking ----------------------------------------------------------------------------------

    def park(
        self, topic: str, queue_id: int, properties: MutableMapping[str, str], now_ms: int
    ) -> bool:
        """Decide whether a message must wait, and mark its properties if so.

        A parked message is put into queue 0 of ``names.TIMER_TOPIC`` instead. A delay level takes
        precedence over times, and a time in the past is ignored.

        Args:
            topic: Destination topic.
            queue_id: Queue there.
            properties: Properties of the message; changed.
            now_ms: The time.

        Raises:
            RequestRefused: The timer is disabled, the time is invalid or too far away, or too many
                messages are due at that time.
        """
        if _is_positive(properties.get(props.DELAY)):
            for name in TIMES:
                properties.pop(name, None)
            return False
        if props.TIMER_OUT_MS in properties or TIMES.isdisjoint(properties):
            return False  # the former has waited already
        if not self.config.timer_wheel_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        deliver_ms = self._deliver_ms(properties, now_ms)
        if deliver_ms <= now_ms:
            if props.TIMER_RECALLED_KEY in properties:
                raise self._illegal()
            return False
        self._refuse_recall(properties.get(props.TIMER_RECALLED_KEY))
        precision_ms = self._precision_ms
        out_ms = self.rounded_up_ms(deliver_ms) - precision_ms
        self._refuse_crowd(out_ms)
        properties.pop(props.TIMER_ROLL_TIMES, None)  # a message that has waited before has one
        properties[props.TIMER_OUT_MS] = str(out_ms)
        properties[props.REAL_TOPIC] = topic
        properties[props.REAL_QUEUE_ID] = str(queue_id)
        return True

    @property
    def takes_all(self) -> bool:
        """True if messages can be parked without counting the waiting ones."""
        limit = self.config.timer_congest_num_each_slot
        return self.config.timer_wheel_enable and limit == JAVA_INT_MAX

    def _deliver_ms(self, properties: MutableMapping[str, str], now_ms: int) -> int:
        for name, unit_ms in ((props.TIMER_DELAY_SEC, 1000), (props.TIMER_DELAY_MS, 1)):
            if name in properties:
                deliver_ms = now_ms + self._number(properties[name]) * unit_ms
                break
        else:
            deliver_ms = self._number(properties[props.TIMER_DELIVER_MS])
        if deliver_ms - now_ms > self.config.timer_max_delay_sec * 1000:
            raise self._illegal()
        return deliver_ms

    def _number(self, text: str) -> int:
        number = int(text) if _NUMBER.fullmatch(text) else _LONG_MAX + 1
        if not -_LONG_MAX - 1 <= number <= _LONG_MAX:
            raise self._illegal()
        return number

    def _illegal(self) -> RequestRefused:
        return RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self.config.timer_max_delay_sec * 1000}ms; or if set del msg, the delay time "
            "should be bigger than the current time",
        )

    def _refuse_recall(self, key: str | None) -> None:
        """Refuse a recall that exceeds the limits, as each is in memory. None: no recall."""
        if key is not None:
            limits.RECALLED_KEY_BYTES.check(len(java.encode_utf8(key)), key[:100])
            limits.RECALLS.check(self._recall_count + 1)

    def _refuse_crowd(self, out_ms: int) -> None:
        limit = self.config.timer_congest_num_each_slot
        if len(self._runs) <= limit:
            return
        count = self._runs.count_at(out_ms)
        # Between the limit and twice the limit, the share of refusals grows with the count.
        if count > limit and random.random() * limit < count - limit:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {limit} or the current "
                f"value is greater than {limit} and less than {limit * 2}, trigger random flow "
                "control",
            )

    # Position ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Start at the position of the table, or where RocketMQ continued since.

        See known-bugs.md#positions-after-a-cut.
        """
        queue = self._find_queue()
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        progress = self.table.progress or TimerProgress()
        check = _read_check(self._store.root)
        if check is not None and self.table.java.is_before(check):
            _log.info(
                "the timer continues after RocketMQ's, at message %d of its queue and time %d ms",
                check.queue_offset, check.read_time_ms,
            )  # fmt: skip
            progress = TimerProgress.after(check, low)
            in_wheel = check.queue_offset if _has_wheel(self._store.root) else 0
            java_timer = JavaTimer(check.read_time_ms, check.queue_offset, in_wheel)
            self.table.put(progress, java_timer)
        if progress.oldest < low and progress.taken_up:
            _log.error(
                "messages %d to %d of the timer's queue have expired before they were delivered",
                progress.oldest, low - 1,
            )  # fmt: skip
        # A truncated log may end before the saved position.
        self._before = progress._replace(taken_up=min(progress.taken_up, high))
        self._taken_up = max(low, min(progress.oldest, high))
        self._loaded_end = high
        self._delivered_to_ms = progress.leaves_ms

    def _find_queue(self) -> ConsumeQueue | None:
        return self._store.queues.find(names.TIMER_TOPIC, 0)

    def __len__(self) -> int:
        """Return the number of waiting messages that are taken up."""
        return len(self._runs)

    @property
    def pending_count(self) -> int:
        """Messages of the timer's queue that are not taken up yet."""
        queue = self._find_queue()
        return max(0, queue.max_offset - self._taken_up) if queue is not None else 0

    def copy_progress(self, progress: TimerProgress) -> None:
        """Adopt the progress of the master, on a slave that has the master's log up to it."""
        queue = self._find_queue()
        # RocketMQ's masters do not send the oldest message that may wait.
        low = queue.min_offset if queue is not None else 0
        progress = progress._replace(oldest=max(progress.oldest, low))
        self._taken_up = progress.taken_up
        if progress != self.table.progress:
            self.table.put(progress)

    def skip_all(self) -> None:
        """Skip all messages that wait now."""
        self._runs = TimerRuns()
        self._taken_up += self.pending_count
        self.metrics = TimerMetrics()
        self._counted_recalls = []

    def progress(self, now_ms: int) -> TimerProgress:
        """Return the progress; a slave's is that of its master."""
        if self._is_slave or self._repeats:
            return self.table.progress or TimerProgress()
        return self._progress(now_ms)

    def check(self, now_ms: int) -> TimerCheck:
        """Return the timer's position in the form of RocketMQ's timercheck."""
        progress = self.progress(now_ms)
        return TimerCheck(self._slot_ms(progress), 0, progress.taken_up, progress.taken_up)

    @property
    def _repeats(self) -> bool:
        """True while older messages are read after a start: the saved progress is still valid."""
        return self._taken_up < self._before.taken_up and self.pending_count > 0

    def _slot_ms(self, progress: TimerProgress) -> int:
        """Return the time of the slot with which RocketMQ's timer continues, in ms."""
        precision_ms = self._precision_ms
        slot_ms = self.rounded_up_ms(progress.leaves_ms)
        first_ms = self._runs.first_ms()
        return slot_ms - precision_ms if first_ms is not None and first_ms < slot_ms else slot_ms

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Take up parked messages, then deliver due ones; a bounded part of each.

        Args:
            now_ms: The time.

        Returns:
            True if anything was done: call it again, there may be more.
        """
        if not self.config.timer_stop_enqueue and self._take_up(now_ms):
            return True  # the rest may contain recalls
        did = False
        if not self._pause.is_active(now_ms):
            did = self._deliver(now_ms)
        self._publish_progress(now_ms)
        return did

    def rounded_up_ms(self, deliver_ms: int) -> int:
        """Return the time at which a message leaves whose wanted time is ``deliver_ms``."""
        return -(-deliver_ms // self._precision_ms) * self._precision_ms

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the time of the next work, at least ``now_ms``; None if no message waits.

        A message that is parked later may be due before that.
        """
        if self._pause.is_active(now_ms):
            return self._pause.end_ms
        if self.pending_count and not self.config.timer_stop_enqueue:
            return now_ms
        first_ms = self._runs.first_ms()
        return None if first_ms is None else max(now_ms, first_ms + self._precision_ms)

    def have_left(self, time_ms: int) -> bool:
        """Return whether every message that an earlier broker parked until a time has left.

        Args:
            time_ms: The time, in ms since the epoch.
        """
        if self.config.timer_stop_enqueue:
            return True  # the others are not delivered at all
        if self._taken_up < self._loaded_end:
            return False
        first_ms = self._runs.first_ms()
        # A message that is due at this time has an earlier TIMER_OUT_MS.
        return first_ms is None or first_ms > time_ms

    def may_hold(self, topic: str) -> bool:
        """Return whether a message of a topic waits, or may wait since an earlier run."""
        return self._taken_up < self._loaded_end or self.metrics.count(topic) > 0

    def close(self, now_ms: int) -> None:
        """Make the delivered copies durable, so that the table covers them; save it afterwards.

        The progress is also written in RocketMQ's form, in case it opens the store next.
        """
        if not make_durable(self._store) or self._repeats:
            return
        self._publish_progress(now_ms)
        self._publish_progress(now_ms)  # the first call may only have published an older progress
        self._write_java_check(now_ms)

    # Taking up --------------------------------------------------------------------------------

    def _take_up(self, now_ms: int) -> bool:
        """Take up messages of the queue; return whether there are more."""
        queue = self._find_queue()
        if queue is None or self._taken_up >= queue.max_offset:
            return False
        if self._taken_up < queue.min_offset:
            _log.error(
                "messages %d to %d of the timer's queue have expired before they were delivered",
                self._taken_up, queue.min_offset - 1,
            )  # fmt: skip
            self._taken_up = queue.min_offset
        units = queue.units(self._taken_up, MESSAGES_PER_STEP)
        if not len(units):
            # The file of the consume queue is missing.
            self._taken_up = min(queue.following_file(self._taken_up), queue.max_offset)
        else:
            self._runs.add(self._entries(units, now_ms))
        self._has_changed = True
        return self._taken_up < queue.max_offset

    def _entries(self, units: UnitArray, now_ms: int) -> Entries:
        """Return entries for the messages that wait."""
        places = places_of(units, self._taken_up)
        waiting = self._store.copier.timer_properties(places)
        is_odd = (waiting[:, words.TIMER.out_ms] < 0) | (waiting[:, words.TIMER.is_recall] != 0)
        count = _fitting_odd(is_odd, units["size"])
        places, waiting, is_odd = places[:count], waiting[:count], is_odd[:count]
        out_ms, stored_ms = waiting[:, words.TIMER.out_ms], waiting[:, words.TIMER.stored_ms]
        queue_offsets = places[:, words.PLACE.queue_offset]
        entries = np.empty(len(places), ENTRY_TYPE)
        entries["leaves_ms"] = _leave_ms(out_ms, stored_ms, self._roll_ms)
        entries["queue_offset"] = queue_offsets
        entries["physical_offset"] = places[:, words.PLACE.physical_offset]
        entries["size"] = places[:, words.PLACE.size]
        waits = ~self._have_left(out_ms, queue_offsets)
        self._count(entries[waits & ~is_odd], waiting[waits & ~is_odd], 1, now_ms)
        for number in np.flatnonzero(is_odd):
            place = entries[number].tolist()[1:]
            leaves_ms = self._take_up_message(self._read(place), place[0], now_ms)
            waits[number] = leaves_ms is not None
            entries["leaves_ms"][number] = leaves_ms or 0
        self._taken_up += count
        return entries[waits]

    def _read(self, place: tuple[int, int, int]) -> _Waiting | None:
        """Decode a message of the queue; return None, and report it, if it cannot be read."""
        try:
            (data,) = records_of(self._store, [place])
            return _decode(data)
        except (WriteFailed, OSError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - clients choose the content of a message
            self._skip(place[0], error)
            return None

    def _skip(self, queue_offset: int, reason: Exception | str) -> None:
        """Report a lost message of the queue."""
        self._quarantine.add(LOOP, f"{names.TIMER_TOPIC}, message {queue_offset}", reason)

    def _take_up_message(
        self, waiting: _Waiting | None, queue_offset: int, now_ms: int
    ) -> int | None:
        """Return when a message leaves; None if it need not wait, or is a recall in memory."""
        if waiting is None:
            return None
        times = np.array([waiting.out_ms]), np.array([waiting.stored_ms])
        leaves_ms = int(_leave_ms(*times, self._roll_ms)[0])
        if waiting.recalled_key is None:
            if self._have_left(np.array([waiting.out_ms]), np.array([queue_offset]))[0]:
                return None
            self.metrics.add(waiting.topic, 1, now_ms)
            return leaves_ms
        before = self._before
        if queue_offset < before.taken_up and waiting.out_ms < before.leaves_ms - RECALLS_KEPT_MS:
            return None
        if len(waiting.recalled_key) > limits.RECALLED_KEY_BYTES.maximum:
            self._skip(queue_offset, f"it recalls a key of {len(waiting.recalled_key)} bytes")
            return None
        if waiting.out_ms not in self._recalls:
            self._recalls[waiting.out_ms] = set()
            self._recall_places[waiting.out_ms] = (
                queue_offset  # later ones have higher queue offsets
            )
            heapq.heappush(self._recall_times, waiting.out_ms)
        keys = self._recalls[waiting.out_ms]
        if waiting.recalled_key not in keys:
            keys.add(waiting.recalled_key)
            self._recall_count += 1
            # Until then its message waits, but is not to be delivered.
            self.metrics.add(waiting.topic, -1, now_ms)
            heapq.heappush(self._counted_recalls, (waiting.out_ms, waiting.topic))
        return None if leaves_ms == waiting.out_ms else leaves_ms

    def _count(self, entries: Entries, waiting: Numbers, change: int, now_ms: int) -> None:
        """Add messages that came or left to the counts of their topics."""

        def topic_of(number: int) -> str:
            message = self._read(entries[number].tolist()[1:])
            return message.topic if message is not None else ""

        self.metrics.add_all(waiting[:, words.TIMER.topic], change, topic_of, now_ms)

    def _have_left(self, out_ms: Numbers, queue_offsets: Numbers) -> npt.NDArray[np.bool_]:
        """Return which messages were delivered before the store was opened."""
        before = self._before
        is_earlier: npt.NDArray[np.bool_] = out_ms < before.leaves_ms
        is_earlier |= (out_ms == before.leaves_ms) & (queue_offsets < before.queue_offset)
        is_earlier &= queue_offsets < before.taken_up
        return is_earlier

    # Delivering -------------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> bool:
        entries = self._runs.first(now_ms - self._precision_ms, MESSAGES_PER_STEP)
        if not len(entries):
            self._end_recalls(now_ms)
            return False
        entries = entries[: fitting(entries["size"].tolist(), BYTES_PER_STEP)]
        places = np.zeros((len(entries), word_count(words.Place)), np.int64)
        places[:, words.PLACE.queue_offset] = entries["queue_offset"]
        places[:, words.PLACE.physical_offset] = entries["physical_offset"]
        places[:, words.PLACE.size] = entries["size"]
        waiting = self._store.copier.timer_properties(places)
        out_ms = waiting[:, words.TIMER.out_ms]
        leave_ms = np.maximum(entries["leaves_ms"], now_ms - self._precision_ms)
        is_rolled = out_ms > leave_ms
        # Exceptional messages, and possibly recalled ones, are handled in Python.
        is_odd = out_ms < 0
        if self._recalls:
            recalled = [
                out_time for out_time in np.unique(out_ms).tolist() if out_time in self._recalls
            ]
            is_odd |= ~is_rolled & np.isin(out_ms, recalled)
        count = _fitting_odd(is_odd, entries["size"])
        entries, places, waiting = entries[:count], places[:count], waiting[:count]
        is_rolled, is_odd = is_rolled[:count], is_odd[:count]
        places[is_odd, words.PLACE.size] = -1
        more = self._mark(places, waiting, is_rolled, now_ms)
        begin = 0
        for end in (*(np.flatnonzero(np.diff(is_rolled)) + 1).tolist(), len(entries)):
            rule = _ROLL if is_rolled[begin] else _DELIVERY
            rows = slice(begin, end)
            done = self._put(entries[rows], places[rows], is_odd[rows], rule, more, now_ms)
            begin += done
            if begin < end:
                break
        has_left = ~is_odd[:begin] & (waiting[:begin, words.TIMER.is_recall] == 0)
        self._count(entries[:begin][has_left], waiting[:begin][has_left], -1, now_ms)
        self._runs.drop(begin)
        self._has_changed = self._has_changed or begin > 0
        return begin > 0

    def _mark(
        self, places: Places, waiting: Numbers, is_rolled: npt.NDArray[np.bool_], now_ms: int
    ) -> bytes:
        """Return the properties to add to due messages; ``places`` refers to slices of them."""
        precision_ms = self._precision_ms
        enqueued_ms = waiting[:, words.TIMER.stored_ms] // precision_ms * precision_ms
        if is_rolled.any():
            times = waiting[:, words.TIMER.roll_times].tolist()
            rows = zip(enqueued_ms.tolist(), times, is_rolled.tolist(), strict=True)
            texts = [_marks(ms, now_ms, count + 1 if rolls else 0) for ms, count, rolls in rows]
            numbers = np.arange(len(texts))
        else:
            distinct, numbers = np.unique(enqueued_ms, return_inverse=True)
            texts = [_marks(ms, now_ms) for ms in distinct.tolist()]
        sizes = np.array([len(text) for text in texts], np.int64)
        places[:, words.PLACE.more] = (np.cumsum(sizes) - sizes)[numbers]
        places[:, words.PLACE.more_size] = sizes[numbers]
        return b"".join(texts)

    def _put(
        self,
        entries: Entries,
        places: Places,
        is_odd: npt.NDArray[np.bool_],
        rule: CopyRule,
        more: bytes,
        now_ms: int,
    ) -> int:
        """Copy messages to their destinations; return how many of them are finished.

        Messages that the kernel leaves to Python are marked in ``is_odd``, and counted here.
        """
        done = 0
        topics: dict[int, str] = {}

        def parcel_of(number: int) -> Parcel | None:
            is_odd[done + number] = True
            entry = entries[done + number].tolist()
            next_parcel = None
            waiting = self._read(entry[1:])
            if waiting is not None and waiting.recalled_key is None:
                topics[done + number] = waiting.topic
            try:
                if waiting is not None:
                    next_parcel = self._parcel(waiting, entry, now_ms)
            except (WriteFailed, OSError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - clients choose the content of a message
                self._skip(entry[1], error)
            self.delivered_count -= next_parcel is None
            return next_parcel

        while done < len(places):
            outcome = put_places(self._store, places[done:], rule, parcel_of, now_ms, more=more)
            self._saved_end = max(self._saved_end, outcome.end_offset)
            self.delivered_count += outcome.stored_count
            done += outcome.stored_count
            if done == len(places):
                break
            if not outcome.status.is_final:
                self._refused(outcome.status, outcome.reason, now_ms)
                topics.pop(done, None)  # it is still waiting
                break
            self._skip(int(entries["queue_offset"][done]), outcome.reason)
            done += 1
        if done == len(places) and self._pause.clear():
            _log.info("the timer has recovered")
        for topic in topics.values():
            self.metrics.add(topic, -1, now_ms)
        return done

    def _refused(self, status: PutStatus, reason: str, now_ms: int) -> None:
        problem = f"{status.name}: {reason}"
        if self._pause.begin(problem, now_ms):
            _log.error("the timer cannot deliver; retried every %d ms: %s", RETRY_MS, problem)

    def _parcel(
        self, waiting: _Waiting, entry: tuple[int, int, int, int], now_ms: int
    ) -> Parcel | None:
        """Return the copy of a due message; None if it must not be delivered."""
        leaves_ms, queue_offset = entry[:2]
        enqueued_ms = waiting.stored_ms // self._precision_ms * self._precision_ms
        if waiting.out_ms > max(leaves_ms, now_ms - self._precision_ms):
            times = props.number(
                props.find(waiting.properties, props.TIMER_ROLL_TIMES), JAVA_INT_MAX
            )
            count = (times or 0) + 1
            return parcel(self._store, waiting.data, _TOPIC, 0, _marks(enqueued_ms, now_ms, count))
        if waiting.recalled_key is not None:
            return None  # it should have been rolled before this time
        if self._is_recalled(waiting):
            self.recalled_count += 1
            return None
        place = destination(waiting.properties)
        if place is None:
            self._skip(queue_offset, "it has no destination")
            return None
        return parcel(self._store, waiting.data, *place, _marks(enqueued_ms, now_ms))

    # Recalls ----------------------------------------------------------------------------------

    def _is_recalled(self, waiting: _Waiting) -> bool:
        keys = self._recalls.get(waiting.out_ms)
        if not keys:
            return False
        key = props.find(waiting.properties, props.UNIQ_KEY)
        if key is None:
            return False
        topic = props.find(waiting.properties, props.REAL_TOPIC) or b""
        # With appendTopicForTimerDeleteKey, and before 5.4, RocketMQ's key includes the topic.
        return key in keys or topic + b"+" + key in keys

    def _end_recalls(self, now_ms: int) -> None:
        """Count recalls no longer whose messages have left, and forget those of earlier times.

        They are kept for ``RECALLS_KEPT_MS``: the recalled message may have been rolled, and not
        be taken up yet.
        """
        limit_ms = now_ms - self._precision_ms
        counted = self._counted_recalls
        for _ in range(MESSAGES_PER_STEP):
            if not counted or counted[0][0] > limit_ms:
                break
            self.metrics.add(heapq.heappop(counted)[1], 1, now_ms)
        times = self._recall_times
        for _ in range(MESSAGES_PER_STEP):
            if not times or times[0] > limit_ms - RECALLS_KEPT_MS:
                break
            out_ms = heapq.heappop(times)
            self._recall_count -= len(self._recalls.pop(out_ms))
            del self._recall_places[out_ms]
            self._has_changed = True

    def _first_recall(self) -> int | None:
        """Return the lowest queue offset of the recalls; None if there are none."""
        return next(iter(self._recall_places.values()), None)

    # Progress ---------------------------------------------------------------------------------

    def _progress(self, now_ms: int) -> TimerProgress:
        limit_ms = now_ms - self._precision_ms + 1
        first_ms = self._runs.first_ms()
        # Setting the clock back does not undo deliveries.
        leaves_ms = max(self._delivered_to_ms, limit_ms)
        queue_offset = 0
        if first_ms is not None and first_ms <= leaves_ms:
            leaves_ms = first_ms
            queue_offset = int(self._runs.first(first_ms, 1)["queue_offset"][0])
        lowest = self._runs.min_queue_offset()
        recall = self._first_recall()
        oldest = self._taken_up if recall is None else recall
        return TimerProgress(
            leaves_ms,
            queue_offset,
            self._taken_up,
            oldest if lowest is None else min(lowest, oldest),
        )

    def _publish_progress(self, now_ms: int) -> None:
        """Publish progress that is durable by now; compute the next one."""
        if self._pending_progress is not None:
            progress, end_offset = self._pending_progress
            if self._store.log.flushed_offset < end_offset:
                return
            self._pending_progress = None
            self.table.put(progress)
        if self._has_changed:
            self._has_changed = False
            progress = self._progress(now_ms)
            self._delivered_to_ms = max(self._delivered_to_ms, progress.leaves_ms)
            self._pending_progress = progress, self._saved_end

    def _write_java_check(self, now_ms: int) -> None:
        """Write timercheck; RocketMQ then takes up waiting messages that its wheel lacks."""
        if self._find_queue() is None:
            return
        progress = self.progress(now_ms)
        java_timer = self.table.java
        queue_offset = max(progress.oldest, java_timer.in_wheel)
        check = _read_check(self._store.root) or TimerCheck(0, 0, 0, 0)
        check = check._replace(
            read_time_ms=self._slot_ms(progress),
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
        )
        self.table.put(progress, java_timer._replace(read_time_ms=check[0], queue_offset=check[2]))
        try:
            small_file.replace_file(
                f"{self._store.root}/{paths.TIMER_CHECK}", timer_check.encode_file(check)
            )
        except WriteFailed as error:
            _log.error("timercheck for RocketMQ is not up to date: %s", error)


TIMES = frozenset(TIMER_UNITS_MS)
"""Properties that request the timer; the first present one in this order applies."""


def _marks(enqueued_ms: int, now_ms: int, roll_times: int = 0) -> bytes:
    """Return the properties that a message gets when it leaves; 0 rolls: it is delivered."""
    marks = _MARKS % (enqueued_ms, now_ms)
    if roll_times:
        marks += props.encode({props.TIMER_ROLL_TIMES: str(roll_times)})
    return marks


def _leave_ms(out_ms: Numbers, stored_ms: Numbers, roll_ms: int) -> Numbers:
    """Return when messages leave the queue, to be delivered or rolled; as in Java.

    A slave of RocketMQ, which copies the progress, forgets each of them at the same time.
    """
    rest_ms = out_ms - stored_ms - roll_ms
    wait_ms = np.where(rest_ms < roll_ms // 3, roll_ms // 2, roll_ms)
    return np.where(rest_ms < 0, out_ms, stored_ms + wait_ms)


def _decode(data: bytes | None) -> _Waiting:
    """Decode a message of the queue.

    Raises:
        CorruptRecord: It is missing, damaged, or has no time.
    """
    if data is None:
        raise CorruptRecord("its record does not exist")
    properties = property_bytes(data)
    text = props.find(properties, props.TIMER_OUT_MS) or b""
    out_ms = props.number(text)
    if out_ms is None:
        raise CorruptRecord(f"{props.TIMER_OUT_MS} is {java.decode_utf8(text[:100])!r}")
    key = props.find(properties, props.TIMER_RECALLED_KEY)
    return _Waiting(data, out_ms, record.store_timestamp_of(data), properties, key)


def _fitting_odd(is_odd: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int32]) -> int:
    """Return the number of leading messages that a step handles; at least one."""
    odd = np.flatnonzero(is_odd)
    if not len(odd):
        return len(is_odd)
    count = min(fitting(sizes[odd].tolist(), BYTES_PER_STEP), ODD_PER_STEP)
    return len(is_odd) if count >= len(odd) else max(int(odd[count]), 1)


def _is_positive(text: str | None) -> bool:
    return text is not None and _NUMBER.fullmatch(text) is not None and int(text) > 0


def _read_check(root: str) -> TimerCheck | None:
    """Return the content of timercheck; None if there is none."""
    path = Path(root, paths.TIMER_CHECK)
    try:
        return timer_check.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except CorruptRecord as error:
        _log.error("%s: %s", path, error)
        return None


def _has_wheel(root: str) -> bool:
    """Return True if RocketMQ's timer log exists."""
    folder = Path(root, paths.TIMER_LOG)
    return folder.is_dir() and any(folder.iterdir())
