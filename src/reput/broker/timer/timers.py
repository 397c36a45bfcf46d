"""Messages with a time of their own: they wait in the timer's queue, and leave when it is time.

    send -> park -> rmq_sys_wheel_timer -> taken up -> runs, by time -> the queue it is for

What waits stands in the log as RocketMQ 5.x parks it: TIMER_OUT_MS says when it leaves, REAL_TOPIC
and REAL_QID where to. All else follows from that queue: ``TimerRuns`` holds 36 bytes a message, and
is made again at start. There is no wheel, and no second log of what waits
(docs/decisions/0015-the-timer-is-its-queue.md).

A message that says T leaves at the first multiple of ``timerPrecisionMs`` that is not before T;
TIMER_OUT_MS is one precision less, as in Java. One that waits for long is put again ("rolled"), so
that it does not expire in the meantime. A recall is a message too, which waits beside the one
that it recalls and takes it away.

Progress is saved once the delivered copies are on disk: a crash delivers some again, and loses
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

from reput import limits, small_file
from reput.broker.quarantine import Quarantine
from reput.broker.republish import (
    Parcel,
    destination,
    fitting,
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
from reput.format.timer_check import TimerCheck
from reput.store import paths
from reput.store.consume_queue import ConsumeQueue
from reput.store.consume_queue_view import UnitArray
from reput.store.copying import CopyRule, Places, places_of
from reput.store.incoming import PutStatus
from reput.store.kernels import copy_args as words
from reput.store.kernels.send_rules import TIMER_UNITS_MS
from reput.store.message_store import MessageStore
from reput.store.timer_table import JavaTimer, TimerProgress, TimerTable

MESSAGES_PER_STEP = 1024
"""What a step takes up or delivers at most: 1 to 3 ms, in which nobody else is served."""
BYTES_PER_STEP = 1024 * 1024
"""Likewise, of records; the first one always goes."""
ODD_PER_STEP = 256
"""Likewise, of those that Python looks at: recalls, and what may have been recalled."""
LOOP = "timers"
RETRY_MS = 1_000
"""After the store refused a message, the timer stands still for so long."""

RECALLS_KEPT_MS = 60_000
"""How long a recall is remembered behind the time at which its message leaves."""

_TOPIC = names.TIMER_TOPIC.encode()
_DELIVERY = CopyRule()
_ROLL = CopyRule(_TOPIC)
_MARKS = f"{props.TIMER_ENQUEUE_MS}\x01%d\x02{props.TIMER_DEQUEUE_MS}\x01%d\x02".encode()
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LONG_MAX = (1 << 63) - 1

Numbers = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """What a record in the timer's queue says."""

    data: bytes
    """The record."""
    out_ms: int
    stored_ms: int
    properties: bytes
    recalled_key: bytes | None
    """Of a recall: the unique key of the message that it takes away."""

    @property
    def topic(self) -> str:
        """Where it is to go; empty if it does not say."""
        return java.decode_utf8(props.find(self.properties, props.REAL_TOPIC) or b"")


class Timers:
    """Parks messages, and delivers them, never early.

    For the thread that puts. ``load`` comes first: until then nothing is delivered or saved.

    Args:
        store: Where messages wait, and where they go.
        table: How far the timer is.
        quarantine: Takes what cannot be processed.
    """

    def __init__(
        self, store: MessageStore, table: TimerTable, quarantine: Quarantine | None = None
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.table = table
        """Saved by its owner, who saves other tables too."""
        self.delivered_count = 0
        self.recalled_count = 0
        self.metrics = TimerMetrics()
        self._store = store
        self.config = store.config
        """In force. Precision and rolls are as at the start."""
        self._precision_ms = store.config.timer_precision_ms
        self._roll_ms = store.config.timer_roll_ms
        self._runs = TimerRuns()
        self._recalls: dict[int, set[bytes]] = {}
        """TIMER_OUT_MS -> unique keys of messages that are recalled."""
        self._recall_count = 0
        """Those keys."""
        self._recall_times: list[int] = []
        """Those times, a heap."""
        self._recall_places: OrderedDict[int, int] = OrderedDict()
        """TIMER_OUT_MS -> lowest queue offset of its recalls, in the order of the queue."""
        self._taken_up = 0
        """Queue offset of the next message to be taken up."""
        self._before = TimerProgress()
        """How far the timer was when the store was opened."""
        self._noted: tuple[TimerProgress, int] | None = None
        """Progress that waits until the log is on disk up to a physical offset."""
        self._has_news = False
        """Something has left since progress was last noted."""
        self._saved_end = 0
        self._last_ms = 0
        """All that left before this was delivered, whatever the clock says now."""
        self._refused_ms: int | None = None
        self._problem = ""

    # Parking ----------------------------------------------------------------------------------

    def park(
        self, topic: str, queue_id: int, properties: MutableMapping[str, str], now_ms: int
    ) -> bool:
        """Decide whether a message is to wait, and mark its properties if so.

        One that does goes to queue 0 of ``names.TIMER_TOPIC`` instead. A delay level wins over
        times, and a time that is past is none.

        Args:
            topic: Where the message is to go.
            queue_id: Which queue there.
            properties: Its properties.
            now_ms: The time.

        Raises:
            RequestRefused: There is no timer, the time is no number or too far away, or too many
                leave at that time.
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
        out_ms = -(-deliver_ms // precision_ms) * precision_ms - precision_ms
        self._refuse_crowd(out_ms)
        properties.pop(props.TIMER_ROLL_TIMES, None)  # of a message that has waited before
        properties[props.TIMER_OUT_MS] = str(out_ms)
        properties[props.REAL_TOPIC] = topic
        properties[props.REAL_QUEUE_ID] = str(queue_id)
        return True

    @property
    def takes_all(self) -> bool:
        """Whether messages can be parked without a look at how many wait already."""
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
        """Refuse a recall that there is no room for: each waits in memory. None: it is none."""
        if key is not None:
            limits.RECALLED_KEY_BYTES.check(len(java.encode_utf8(key)), key[:100])
            limits.RECALLS.check(self._recall_count + 1)

    def _refuse_crowd(self, out_ms: int) -> None:
        limit = self.config.timer_congest_num_each_slot
        if len(self._runs) <= limit:
            return
        count = self._runs.count_at(out_ms)
        # Between once and twice the limit the more are refused the more there are.
        if count > limit and random.random() * limit < count - limit:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {limit} or the current "
                f"value is greater than {limit} and less than {limit * 2}, trigger random flow "
                "control",
            )

    # Where the timer is -----------------------------------------------------------------------

    def load(self) -> None:
        """Take up where the table says, or where RocketMQ went on since.

        See known-bugs.md#positions-after-a-cut.
        """
        queue = self._find_queue()
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        progress = self.table.progress or TimerProgress()
        check = _read_check(self._store.root)
        if check is not None and (check.read_time_ms, check.queue_offset) != self.table.java[:2]:
            _log.info(
                "RocketMQ's timer was at message %d of its queue, ms %d; it goes on there",
                check.queue_offset, check.read_time_ms,
            )  # fmt: skip
            progress = TimerProgress(check.read_time_ms, 0, check.queue_offset, low)
            in_wheel = check.queue_offset if _has_wheel(self._store.root) else 0
            known = JavaTimer(check.read_time_ms, check.queue_offset, in_wheel)
            self.table.put(progress, known)
        if progress.oldest < low and progress.taken_up:
            _log.error(
                "messages %d to %d of the timer's queue have expired; those that waited are lost",
                progress.oldest, low - 1,
            )  # fmt: skip
        # A log that was cut ends before what was saved.
        self._before = progress._replace(taken_up=min(progress.taken_up, high))
        self._taken_up = max(low, min(progress.oldest, high))
        self._last_ms = progress.leaves_ms

    def _find_queue(self) -> ConsumeQueue | None:
        return self._store.queues.find(names.TIMER_TOPIC, 0)

    def __len__(self) -> int:
        """How many messages wait, as far as they are taken up."""
        return len(self._runs)

    @property
    def behind_count(self) -> int:
        """How many messages of the timer's queue are not taken up yet."""
        queue = self._find_queue()
        return max(0, queue.max_offset - self._taken_up) if queue is not None else 0

    def check(self, now_ms: int) -> TimerCheck:
        """Return where the timer is, as RocketMQ tells it."""
        progress = self._progress(now_ms)
        return TimerCheck(progress.leaves_ms, 0, progress.taken_up, progress.taken_up)

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Take up what was parked, then deliver what is due: a bounded piece of it.

        Args:
            now_ms: What the time is.

        Returns:
            Whether there was anything to do: call it again, there may be more.
        """
        if not self.config.timer_stop_enqueue and self._take_up(now_ms):
            return True  # there may be recalls among the rest
        did = False
        if not self._is_left_alone(now_ms):
            did = self._deliver(now_ms)
        self._note(now_ms)
        return did

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when there is work again, ``now_ms`` if there is some; None if nothing waits.

        A message that is parked later may be due before that.
        """
        if self._is_left_alone(now_ms):
            return (self._refused_ms or 0) + RETRY_MS
        if self.behind_count and not self.config.timer_stop_enqueue:
            return now_ms
        first_ms = self._runs.first_ms()
        return None if first_ms is None else max(now_ms, first_ms + self._precision_ms)

    def close(self, now_ms: int) -> None:
        """Make durable what was delivered, so that the table says all of it; save that then.

        RocketMQ is told as well: where it goes on if it opens the store next.
        """
        try:
            self._store.flusher.commit()
            self._store.sync()
        except WriteFailed as error:
            _log.error("messages that were delivered last may be delivered again: %s", error)
            return
        if self.behind_count and self._taken_up < self._before.taken_up:
            return  # it was not taken up yet: what was saved still holds
        self._note(now_ms)
        self._note(now_ms)  # the first one may have found an older one in its place
        self._tell_java(now_ms)

    def _is_left_alone(self, now_ms: int) -> bool:
        # A clock that was set back must not keep the timer waiting.
        return self._refused_ms is not None and 0 <= now_ms - self._refused_ms < RETRY_MS

    # Taking up --------------------------------------------------------------------------------

    def _take_up(self, now_ms: int) -> bool:
        """Take up messages of the queue; return whether there are more."""
        queue = self._find_queue()
        if queue is None or self._taken_up >= queue.max_offset:
            return False
        if self._taken_up < queue.min_offset:
            _log.error(
                "messages %d to %d of the timer's queue have expired; those that waited are lost",
                self._taken_up, queue.min_offset - 1,
            )  # fmt: skip
            self._taken_up = queue.min_offset
        units = queue.units(self._taken_up, MESSAGES_PER_STEP)
        if not len(units):
            # Its file is missing.
            self._taken_up = min(queue.following_file(self._taken_up), queue.max_offset)
        else:
            self._runs.add(self._entries(units, now_ms))
        self._has_news = True
        return self._taken_up < queue.max_offset

    def _entries(self, units: UnitArray, now_ms: int) -> Entries:
        """Return those of the messages that wait."""
        places = places_of(units, self._taken_up)
        said = self._store.copier.waiting(places)
        is_odd = (said[:, words.WAITING_OUT_MS] < 0) | (said[:, words.WAITING_IS_RECALL] != 0)
        count = _fitting_odd(is_odd, units["size"])
        places, said, is_odd = places[:count], said[:count], is_odd[:count]
        out_ms, stored_ms = said[:, words.WAITING_OUT_MS], said[:, words.WAITING_STORED_MS]
        queue_offsets = places[:, words.PLACE_QUEUE_OFFSET]
        entries = np.empty(len(places), ENTRY_TYPE)
        entries["leaves_ms"] = np.minimum(out_ms, stored_ms + self._roll_ms)
        entries["queue_offset"] = queue_offsets
        entries["physical_offset"] = places[:, words.PLACE_PHYSICAL_OFFSET]
        entries["size"] = places[:, words.PLACE_SIZE]
        waits = ~self._have_left(out_ms, queue_offsets)
        self._count(entries[waits & ~is_odd], said[waits & ~is_odd], 1, now_ms)
        for number in np.flatnonzero(is_odd):
            place = entries[number].tolist()[1:]
            leaves_ms = self._take_up_one(self._read(place), place[0], now_ms)
            waits[number] = leaves_ms is not None
            entries["leaves_ms"][number] = leaves_ms or 0
        self._taken_up += count
        return entries[waits]

    def _read(self, place: tuple[int, int, int]) -> _Waiting | None:
        """Return what a message of the queue says; None if it is lost, which is reported."""
        try:
            (data,) = records_of(self._store, [place])
            return _said(data)
        except (WriteFailed, OSError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - clients decide what is in a message
            self._pass_over(place[0], error)
            return None

    def _pass_over(self, queue_offset: int, reason: Exception | str) -> None:
        """Report a message of the queue that is lost."""
        self._quarantine.add(LOOP, f"{names.TIMER_TOPIC}, message {queue_offset}", reason)

    def _take_up_one(self, one: _Waiting | None, queue_offset: int, now_ms: int) -> int | None:
        """Return when a message leaves; None if it does not wait, or among the recalls alone."""
        if one is None:
            return None
        leaves_ms = min(one.out_ms, one.stored_ms + self._roll_ms)
        if one.recalled_key is None:
            if self._have_left(np.array([one.out_ms]), np.array([queue_offset]))[0]:
                return None
            self.metrics.add(one.topic, 1, now_ms)
            return leaves_ms
        before = self._before
        if queue_offset < before.taken_up and one.out_ms < before.leaves_ms - RECALLS_KEPT_MS:
            return None
        if len(one.recalled_key) > limits.RECALLED_KEY_BYTES.maximum:
            self._pass_over(queue_offset, f"it recalls a key of {len(one.recalled_key)} bytes")
            return None
        if one.out_ms not in self._recalls:
            self._recalls[one.out_ms] = set()
            self._recall_places[one.out_ms] = queue_offset  # those that follow are higher
            heapq.heappush(self._recall_times, one.out_ms)
        keys = self._recalls[one.out_ms]
        if one.recalled_key not in keys:
            keys.add(one.recalled_key)
            self._recall_count += 1
        self.metrics.add(one.topic, -1, now_ms)  # for the message that it takes away
        return None if leaves_ms == one.out_ms else leaves_ms

    def _count(self, entries: Entries, said: Numbers, change: int, now_ms: int) -> None:
        """Count messages that came, or left, by their topics."""

        def topic_of(number: int) -> str:
            one = self._read(entries[number].tolist()[1:])
            return one.topic if one is not None else ""

        self.metrics.add_all(said[:, words.WAITING_TOPIC], change, topic_of, now_ms)

    def _have_left(self, out_ms: Numbers, queue_offsets: Numbers) -> npt.NDArray[np.bool_]:
        """Whether messages were delivered before the store was opened."""
        before = self._before
        is_earlier: npt.NDArray[np.bool_] = out_ms < before.leaves_ms
        is_earlier |= (out_ms == before.leaves_ms) & (queue_offsets < before.queue_offset)
        is_earlier &= queue_offsets < before.taken_up
        return is_earlier

    # Delivering -------------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> bool:
        entries = self._runs.first(now_ms - self._precision_ms, MESSAGES_PER_STEP)
        if not len(entries):
            self._forget_recalls(now_ms - self._precision_ms)
            return False
        entries = entries[: fitting(entries["size"].tolist(), BYTES_PER_STEP)]
        places = np.zeros((len(entries), words.PLACE_WORDS), np.int64)
        places[:, words.PLACE_QUEUE_OFFSET] = entries["queue_offset"]
        places[:, words.PLACE_PHYSICAL_OFFSET] = entries["physical_offset"]
        places[:, words.PLACE_SIZE] = entries["size"]
        said = self._store.copier.waiting(places)
        out_ms = said[:, words.WAITING_OUT_MS]
        leave_ms = np.maximum(entries["leaves_ms"], now_ms - self._precision_ms)
        is_rolled = out_ms > leave_ms
        # Python looks at what is not common, and at what may have been recalled.
        is_odd = out_ms < 0
        if self._recalls:
            recalled = [one for one in np.unique(out_ms).tolist() if one in self._recalls]
            is_odd |= ~is_rolled & np.isin(out_ms, recalled)
            count = _fitting_odd(is_odd, entries["size"])
            entries, places, said = entries[:count], places[:count], said[:count]
            is_rolled, is_odd = is_rolled[:count], is_odd[:count]
        places[is_odd, words.PLACE_SIZE] = -1
        more = self._mark(places, said, is_rolled, now_ms)
        begin = 0
        for end in (*(np.flatnonzero(np.diff(is_rolled)) + 1).tolist(), len(entries)):
            rule = _ROLL if is_rolled[begin] else _DELIVERY
            done = self._put(entries[begin:end], places[begin:end], rule, more, now_ms)
            begin += done
            if begin < end:
                break
        has_left = ~is_odd[:begin]
        self._count(entries[:begin][has_left], said[:begin][has_left], -1, now_ms)
        self._runs.drop(begin)
        self._has_news = self._has_news or begin > 0
        return begin > 0

    def _mark(
        self, places: Places, said: Numbers, is_rolled: npt.NDArray[np.bool_], now_ms: int
    ) -> bytes:
        """Return the marks of messages that leave; their places say which are whose."""
        precision_ms = self._precision_ms
        enqueued_ms = said[:, words.WAITING_STORED_MS] // precision_ms * precision_ms
        if is_rolled.any():
            times = said[:, words.WAITING_ROLL_TIMES].tolist()
            rows = zip(enqueued_ms.tolist(), times, is_rolled.tolist(), strict=True)
            texts = [_marks(ms, now_ms, count + 1 if rolls else 0) for ms, count, rolls in rows]
            numbers = np.arange(len(texts))
        else:
            distinct, numbers = np.unique(enqueued_ms, return_inverse=True)
            texts = [_marks(ms, now_ms) for ms in distinct.tolist()]
        sizes = np.array([len(one) for one in texts], np.int64)
        places[:, words.PLACE_MORE] = (np.cumsum(sizes) - sizes)[numbers]
        places[:, words.PLACE_MORE_SIZE] = sizes[numbers]
        return b"".join(texts)

    def _put(
        self, entries: Entries, places: Places, rule: CopyRule, more: bytes, now_ms: int
    ) -> int:
        """Put messages again; return how many of them the timer is done with."""
        done = 0

        def parcel_of(number: int) -> Parcel | None:
            entry = entries[done + number].tolist()
            one = None
            try:
                one = self._parcel(entry, now_ms)
            except (WriteFailed, OSError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - clients decide what is in a message
                self._pass_over(entry[1], error)
            self.delivered_count -= one is None
            return one

        while done < len(places):
            outcome = put_places(self._store, places[done:], rule, parcel_of, now_ms, more=more)
            self._saved_end = max(self._saved_end, outcome.end_offset)
            self.delivered_count += outcome.stored_count
            done += outcome.stored_count
            if done == len(places):
                break
            if not outcome.status.is_final:
                self._refused(outcome.status, outcome.reason, now_ms)
                return done
            self._pass_over(int(entries["queue_offset"][done]), outcome.reason)
            done += 1
        if self._problem:
            _log.info("the timer delivers again")
        self._refused_ms, self._problem = None, ""
        return done

    def _refused(self, status: PutStatus, reason: str, now_ms: int) -> None:
        self._refused_ms = now_ms
        problem = f"{status.name}: {reason}"
        if problem != self._problem:
            self._problem = problem
            _log.error(
                "the timer cannot deliver, and tries again every %d ms: %s", RETRY_MS, problem
            )

    def _parcel(self, entry: tuple[int, int, int, int], now_ms: int) -> Parcel | None:
        """Return what is put in place of a message that leaves; None if nothing is."""
        leaves_ms, queue_offset = entry[:2]
        one = self._read(entry[1:])
        if one is None:
            return None
        enqueued_ms = one.stored_ms // self._precision_ms * self._precision_ms
        if one.out_ms > max(leaves_ms, now_ms - self._precision_ms):
            times = props.number(props.find(one.properties, props.TIMER_ROLL_TIMES), JAVA_INT_MAX)
            count = (times or 0) + 1
            self.metrics.add(one.topic, -1, now_ms)  # it comes again
            return parcel(self._store, one.data, _TOPIC, 0, _marks(enqueued_ms, now_ms, count))
        if self._is_recalled(one):
            self.recalled_count += 1
            return None
        self.metrics.add(one.topic, -1, now_ms)
        place = destination(one.properties)
        if place is None:
            self._pass_over(queue_offset, "it belongs nowhere")
            return None
        return parcel(self._store, one.data, *place, _marks(enqueued_ms, now_ms))

    # Recalls ----------------------------------------------------------------------------------

    def _is_recalled(self, one: _Waiting) -> bool:
        keys = self._recalls.get(one.out_ms)
        if not keys:
            return False
        key = props.find(one.properties, props.UNIQ_KEY)
        if key is None:
            return False
        topic = props.find(one.properties, props.REAL_TOPIC) or b""
        # With appendTopicForTimerDeleteKey, and before 5.4, RocketMQ writes the topic too.
        return key in keys or topic + b"+" + key in keys

    def _forget_recalls(self, limit_ms: int) -> None:
        """Forget the recalls of times at which all has left.

        Not at once: the message that one is of may have been rolled, and not be taken up yet.
        """
        times = self._recall_times
        for _ in range(MESSAGES_PER_STEP):
            if not times or times[0] > limit_ms - RECALLS_KEPT_MS:
                break
            out_ms = heapq.heappop(times)
            self._recall_count -= len(self._recalls.pop(out_ms))
            del self._recall_places[out_ms]
            self._has_news = True

    def _first_recall(self) -> int | None:
        """Return the lowest queue offset of the recalls; None if there are none."""
        return next(iter(self._recall_places.values()), None)

    # Progress ---------------------------------------------------------------------------------

    def _progress(self, now_ms: int) -> TimerProgress:
        limit_ms = now_ms - self._precision_ms + 1
        first_ms = self._runs.first_ms()
        # A clock that was set back takes nothing back that was delivered.
        leaves_ms = max(self._last_ms, limit_ms)
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

    def _note(self, now_ms: int) -> None:
        """Tell the table what is on disk; take note of what will be."""
        if self._noted is not None:
            progress, end_offset = self._noted
            if self._store.log.flushed_offset < end_offset:
                return
            self._noted = None
            self.table.put(progress)
        if self._has_news:
            self._has_news = False
            progress = self._progress(now_ms)
            self._last_ms = max(self._last_ms, progress.leaves_ms)
            self._noted = progress, self._saved_end

    def _tell_java(self, now_ms: int) -> None:
        """Write timercheck: RocketMQ takes up all that may wait, but for what is in its wheel."""
        if self._find_queue() is None:
            return
        progress = self._progress(now_ms)
        known = self.table.java
        queue_offset = max(progress.oldest, known.in_wheel)
        check = _read_check(self._store.root) or TimerCheck(0, 0, 0, 0)
        # No message leaves in between, and RocketMQ goes on slot by slot from there.
        slot_ms = -(-progress.leaves_ms // self._precision_ms) * self._precision_ms
        check = check._replace(
            read_time_ms=slot_ms,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
        )
        self.table.put(progress, known._replace(read_time_ms=check[0], queue_offset=check[2]))
        try:
            small_file.replace_file(
                f"{self._store.root}/{paths.TIMER_CHECK}", timer_check.encode_file(check)
            )
        except WriteFailed as error:
            _log.error("RocketMQ would not know how far the timer is: %s", error)


TIMES = frozenset(TIMER_UNITS_MS)
"""What asks for the timer; the first that is there counts, in this order."""


def _marks(enqueued_ms: int, now_ms: int, roll_times: int = 0) -> bytes:
    """Return the properties that a message gets as it leaves; 0: it is not to wait on."""
    marks = _MARKS % (enqueued_ms, now_ms)
    if roll_times:
        marks += props.encode({props.TIMER_ROLL_TIMES: str(roll_times)})
    return marks


def _said(data: bytes | None) -> _Waiting:
    """Return what a message of the queue says.

    Raises:
        CorruptRecord: It is not there, damaged, or has no time.
    """
    if data is None:
        raise CorruptRecord("it is not there")
    properties = property_bytes(data)
    text = props.find(properties, props.TIMER_OUT_MS) or b""
    out_ms = props.number(text)
    if out_ms is None:
        raise CorruptRecord(f"{props.TIMER_OUT_MS} is {java.decode_utf8(text[:100])!r}")
    key = props.find(properties, props.TIMER_RECALLED_KEY)
    return _Waiting(data, out_ms, record.store_timestamp_of(data), properties, key)


def _fitting_odd(is_odd: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int32]) -> int:
    """Return how many messages, the first ones, are done in a step; at least one."""
    odd = np.flatnonzero(is_odd)
    if not len(odd):
        return len(is_odd)
    count = min(fitting(sizes[odd].tolist(), BYTES_PER_STEP), ODD_PER_STEP)
    return len(is_odd) if count >= len(odd) else max(int(odd[count]), 1)


def _is_positive(text: str | None) -> bool:
    return text is not None and _NUMBER.fullmatch(text) is not None and int(text) > 0


def _read_check(root: str) -> TimerCheck | None:
    """Return what timercheck says; None if there is none."""
    path = Path(root, paths.TIMER_CHECK)
    try:
        return timer_check.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except CorruptRecord as error:
        _log.error("%s: %s", path, error)
        return None


def _has_wheel(root: str) -> bool:
    """Whether RocketMQ's own record of what waits is there."""
    folder = Path(root, paths.TIMER_LOG)
    return folder.is_dir() and any(folder.iterdir())
