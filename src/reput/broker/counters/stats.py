"""Statistics of a broker: messages and bytes, stored and delivered, and their rates.

Puts are counted by the store per topic; gets are counted here, one addition per pull. ``step``
samples the counters at Java's intervals, so that a rate is the difference of two samples:

    minute   a sample every 10 seconds, the last 7 count
    hour     a sample every 10 minutes, the last 7 count
    day      a sample every hour, the last 25 count

Names and keys are Java's (4.9.7 ``BrokerStatsManager``, ``StatsItem``). All samples of a window are
taken at the same time, so the times are stored once; an unchanged counter costs nothing.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NamedTuple, TypeVar

from reput.broker import limits
from reput.broker.pull_subscriptions import Delivery
from reput.format import names
from reput.remoting.time_slices import Steps
from reput.store.getting import GetResult, GetStatus

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
"""Messages put, by topic."""
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
"""Bytes of their records, by topic."""
GROUP_GET_NUMS = "GROUP_GET_NUMS"
"""Messages delivered, by ``topic@group``."""
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
"""Duration of pulls in ms, by ``queueId@topic@group``."""
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
"""Messages that a group sent back, by ``topic@group``."""
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
"""Messages put, by cluster."""
BROKER_GET_NUMS = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
"""Messages put, by cluster, without system topics; like the following counters, only in 5.x."""
BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
SNDBCK2DLQ_TIMES = "SNDBCK2DLQ_TIMES"
"""Messages that became dead letters, by ``null@topic@group@SEND_BACK_TO_DLQ`` (without an owner).
"""
GROUP_ACK_NUMS = "GROUP_ACK_NUMS"
"""Messages that were popped and acknowledged, by ``topic@group``."""
GROUP_CK_NUMS = "GROUP_CK_NUMS"
"""Checkpoints of pops, by ``topic@group``."""
BROKER_ACK_NUMS = "BROKER_ACK_NUMS"
"""Popped messages that were acknowledged, by cluster."""
BROKER_CK_NUMS = "BROKER_CK_NUMS"
TIMER_DEQUEUE_NUMS = "TIMER_DEQUEUE_NUMS"
"""Messages that the timer delivered, by cluster. Not in Java."""

_NO_OWNER, _TO_DLQ = "null@", "@SEND_BACK_TO_DLQ"
_BY_GROUP = (
    GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_LATENCY, SNDBCK_PUT_NUMS, GROUP_ACK_NUMS,
    GROUP_CK_NUMS,
)  # fmt: skip
"""Counters that are deleted with a group."""
_KEYS_PER_STEP = 1_000
"""Counters that are processed in less than 1 ms."""
_TOPICS_PER_STEP = 50
"""Topics whose counters are created in less than 1 ms."""
_SAMPLE_MS = 10_000
_RATE_SAMPLES = 61  # ten minutes

_K = TypeVar("_K", bound=Hashable)

PutNews = tuple[str, int, int]
"""A topic, with the messages and record bytes that were put since the previous call."""


class WindowTotal(NamedTuple):
    """Total of a counter in a window."""

    sum: int = 0
    tps: float = 0.0
    """Rate per second."""
    avgpt: float = 0.0
    """Average per event: bytes per message, messages per pull."""


class _Sample(NamedTuple):
    value: int
    times: int


class _Window:
    """Times of the samples of a minute, hour or day."""

    def __init__(self, interval_ms: int, count_max: int) -> None:
        self.interval_ms = interval_ms
        self.count_max = count_max
        self.times: deque[int] = deque(maxlen=count_max)
        self._due_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Return True if a sample is due; setting the clock back does not delay it for long."""
        due_ms = self._due_ms
        return due_ms is None or now_ms >= due_ms or now_ms < due_ms - 2 * self.interval_ms

    def begin_sample(self, now_ms: int) -> None:
        """Record the time of the samples that follow."""
        if self._due_ms is None:
            self.times.append(now_ms - self.interval_ms)
        self.times.append(now_ms)
        is_late = self._due_ms is None or abs(now_ms - self._due_ms) >= self.interval_ms
        self._due_ms = (now_ms if is_late or self._due_ms is None else self._due_ms) + (
            self.interval_ms
        )


MINUTE, HOUR, DAY = range(3)
_WINDOWS = ((_SAMPLE_MS, 7), (600_000, 7), (3_600_000, 25))


class Series:
    """A counter with its samples."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        """Number of events that the value consists of."""
        # The first sample is 0: the counter did not exist before.
        self._samples = [deque([_Sample(0, 0)], count_max) for _, count_max in _WINDOWS]

    def add(self, value: int, times: int = 1) -> None:
        """Add events."""
        self.value += value
        self.times += times

    def sample(self, window: int) -> None:
        """Sample the value."""
        samples = self._samples[window]
        # An unchanged counter has equal samples, whatever their times are.
        if samples[0].value != self.value or len(samples) < _WINDOWS[window][1]:
            samples.append(_Sample(self.value, self.times))

    def total(self, window: int, times: deque[int]) -> WindowTotal:
        """Return the difference between the first and the last sample."""
        samples = self._samples[window]
        first, last = samples[0], samples[-1]
        if len(samples) < 2:
            return WindowTotal()
        total, events = last.value - first.value, last.times - first.times
        duration_ms = times[-1] - times[-len(samples)]
        return WindowTotal(
            total,
            total * 1000 / duration_ms if duration_ms > 0 else 0.0,
            total / events if events > 0 else 0.0,
        )


class _Popped(NamedTuple):
    """Counters of a group's pops from a queue."""

    messages: Series
    bytes: Series
    latency: Series
    checkpoints: Series
    is_of_system: bool


class Totals(NamedTuple):
    """Totals of all counters at a moment."""

    at_ms: int
    put_count: int
    """Messages put."""
    found_count: int
    """Pulls with messages."""
    missed_count: int
    """Pulls without messages."""
    got_count: int
    """Messages delivered."""


@dataclass(slots=True)
class Mornings:
    """Counts of messages since the start, at the beginning of the last days."""

    put_yesterday: int = 0
    put_today: int = 0
    got_yesterday: int = 0
    got_today: int = 0
    day: date | None = field(default=None, repr=False)


class Stats:
    """The counters of a broker since its start.

    Args:
        cluster_name: Key of the counters of the whole broker.
        put_news: Yields the puts since its previous call.
        timer_count: Returns the number of messages that the timer has delivered.
        series_max: Largest number of counters by topic, group or queue; further ones are only in
            the totals.
    """

    def __init__(
        self,
        cluster_name: str = "",
        put_news: Callable[[], Iterable[PutNews]] = lambda: (),
        timer_count: Callable[[], int] = lambda: 0,
        series_max: int = limits.STATS_SERIES.maximum,
    ) -> None:
        self.series_max = series_max
        self.uncounted_count = 0
        """Events without a counter, as there are too many."""
        self.put_failed_count = 0
        self.put_count = 0
        """Messages put until the last ``update``."""
        self.put_bytes = 0
        self.found_count = 0
        """Pulls with messages."""
        self.missed_count = 0
        self.get_ms_max = 0
        """Duration of the longest measured pull, in ms."""
        self.mornings = Mornings()
        self._put_news = put_news
        self._timer_count = timer_count
        self._windows = [_Window(*window) for window in _WINDOWS]
        self._series: dict[str, dict[str, Series]] = {}
        self._no_series = Series()
        """Shared counter for topics and groups that have no counter."""
        self._gets: dict[tuple[str, str], tuple[Series, Series]] = {}
        self._latencies: dict[tuple[int, str, str], Series] = {}
        self._acks: dict[tuple[str, str], Series] = {}
        self._pops: dict[tuple[int, str, str], _Popped] = {}
        self._broker_put = self._named(BROKER_PUT_NUMS, cluster_name)
        self._broker_got = self._named(BROKER_GET_NUMS, cluster_name)
        self._user_put = self._named(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, cluster_name)
        self._user_got = self._named(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, cluster_name)
        self._broker_acked = self._named(BROKER_ACK_NUMS, cluster_name)
        self._broker_held = self._named(BROKER_CK_NUMS, cluster_name)
        self._timer = self._named(TIMER_DEQUEUE_NUMS, cluster_name)
        self._totals: deque[Totals] = deque(maxlen=_RATE_SAMPLES)

    @property
    def pull_count(self) -> int:
        """Pulls that were answered."""
        return self.found_count + self.missed_count

    @property
    def got_count(self) -> int:
        """Messages delivered."""
        return self._broker_got.value

    # Counting ---------------------------------------------------------------------------------

    def pulled(
        self,
        topic: str,
        group: str,
        result: GetResult,
        *,
        queue_id: int = 0,
        latency_ms: int | None = None,
    ) -> None:
        """Count an answered pull.

        Args:
            topic: The topic.
            group: The consumer group.
            result: The result of the pull.
            queue_id: The queue.
            latency_ms: Duration in ms, if it was measured.
        """
        self.get_ms_max = max(self.get_ms_max, latency_ms or 0)
        if result.status is not GetStatus.FOUND:
            self.missed_count += 1
            return
        self._count_found(topic, group, 1, result.message_count, len(result.data))
        if latency_ms is not None:
            self._latency(topic, group, queue_id).add(latency_ms)

    def delivered(self, delivery: Delivery) -> None:
        """Count pulls that the kernel has answered, each in less than a millisecond."""
        self._count_found(
            delivery.topic,
            delivery.group,
            delivery.pull_count,
            delivery.message_count,
            delivery.byte_count,
        )
        self._latency(delivery.topic, delivery.group, delivery.queue_id).add(0, delivery.pull_count)

    def _count_found(self, topic: str, group: str, pulls: int, messages: int, size: int) -> None:
        self.found_count += pulls
        counters = self._gets.get((topic, group))
        if counters is None:
            key = f"{topic}@{group}"
            counters = self._named(GROUP_GET_NUMS, key), self._named(GROUP_GET_SIZE, key)
            if counters[1] is not self._no_series:
                self._gets[topic, group] = counters
        counters[0].add(messages, pulls)
        counters[1].add(size, pulls)
        self._broker_got.value += messages
        if not names.is_system_topic(topic):
            self._user_got.value += messages

    def _latency(self, topic: str, group: str, queue_id: int) -> Series:
        series = self._latencies.get((queue_id, topic, group))
        if series is None:
            series = self._named(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}")
            if series is not self._no_series:
                self._latencies[queue_id, topic, group] = series
        return series

    def sent_back(self, topic: str, group: str, count: int = 1, *, is_dead: bool = False) -> None:
        """Count messages that a group sent back, or one that became a dead letter."""
        self._named(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(count, count)
        if is_dead:
            self._named(SNDBCK2DLQ_TIMES, f"{_NO_OWNER}{topic}@{group}{_TO_DLQ}").add(1)

    def acknowledged(self, topic: str, group: str, count: int = 1, request_count: int = 1) -> None:
        """Count acknowledged messages of a group, and the requests that acknowledged them."""
        series = self._acks.get((topic, group))
        if series is None:
            series = self._named(GROUP_ACK_NUMS, f"{topic}@{group}")
            if series is not self._no_series:
                self._acks[topic, group] = series
        series.add(count, request_count)
        self._broker_acked.value += count

    def checkpointed(self, topic: str, group: str) -> None:
        """Count a checkpoint of popped messages from a queue."""
        self._named(GROUP_CK_NUMS, f"{topic}@{group}").add(1)
        self._broker_held.value += 1

    def popped(self, topic: str, group: str, queue_id: int, count: int, size: int) -> None:
        """Count a pop from a queue: a pull with messages, and its checkpoint."""
        key = queue_id, topic, group
        counters = self._pops.get(key)
        if counters is None:
            key_of_group = f"{topic}@{group}"
            counters = _Popped(
                self._named(GROUP_GET_NUMS, key_of_group),
                self._named(GROUP_GET_SIZE, key_of_group),
                self._latency(topic, group, queue_id),
                self._named(GROUP_CK_NUMS, key_of_group),
                names.is_system_topic(topic),
            )
            if self._no_series not in counters[:4]:
                self._pops[key] = counters
        self.found_count += 1
        counters.messages.add(count)
        counters.bytes.add(size)
        counters.latency.times += 1
        counters.checkpoints.add(1)
        self._broker_got.value += count
        self._broker_held.value += 1
        if not counters.is_of_system:
            self._user_got.value += count

    def update(self) -> Steps[None]:
        """Fetch the store's counts in steps, as thousands of topics may be new."""
        for number, (topic, new, new_bytes) in enumerate(self._put_news(), 1):
            if number % _TOPICS_PER_STEP == 0:
                yield
            self._named(TOPIC_PUT_NUMS, topic).add(new, new)
            self._named(TOPIC_PUT_SIZE, topic).add(new_bytes, new)
            self._broker_put.value += new
            if not names.is_system_topic(topic):
                self._user_put.value += new
            self.put_count += new
            self.put_bytes += new_bytes
        self._timer.value = self._timer_count()

    def forget_topic(self, topic: str) -> Steps[None]:
        """Delete the counters of a topic in steps; call ``update`` before the store deletes it."""
        for name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            self._series.get(name, {}).pop(topic, None)
        yield from self._forget(lambda name, _: name == topic)

    def forget_group(self, group: str) -> Steps[None]:
        """Delete the counters of a consumer group in steps."""
        yield from self._forget(lambda _, name: name == group)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> Iterator[None]:
        by_pair: tuple[dict[tuple[str, str], Any], ...] = (self._gets, self._acks)
        by_queue: tuple[dict[tuple[int, str, str], Any], ...] = (self._latencies, self._pops)
        for of_pairs in by_pair:
            for pairs in _parts(of_pairs):
                for pair in pairs:
                    if is_gone(*pair):
                        of_pairs.pop(pair, None)
                yield
        for of_queues in by_queue:
            for queues in _parts(of_queues):
                for queue in queues:
                    if is_gone(queue[1], queue[2]):
                        of_queues.pop(queue, None)
                yield
        for name in (*_BY_GROUP, SNDBCK2DLQ_TIMES):
            by_key = self._series.get(name, {})
            for keys in _parts(by_key):
                for key in keys:
                    topic, _, group = key.removesuffix(_TO_DLQ).rpartition("@")
                    if is_gone(topic.rpartition("@")[2], group):
                        by_key.pop(key, None)
                yield

    # Sampling ---------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Take the samples that are due; return whether there were any. Call it once per second."""
        did = False
        for _ in self.sample(now_ms):
            did = True
        return did

    def sample(self, now_ms: int) -> Iterator[None]:
        """Take the samples that are due, in steps: at least one if any is due."""
        is_due = [window.is_due(now_ms) for window in self._windows]
        if not any(is_due):
            return
        yield from self.update()
        yield
        for number, window in enumerate(self._windows):
            if not is_due[number]:
                continue
            window.begin_sample(now_ms)
            for by_key in list(self._series.values()):
                for part in _parts(by_key):
                    for key in part:
                        series = by_key.get(key)
                        if series is not None:
                            series.sample(number)
                    yield
        if is_due[MINUTE]:
            self._totals.append(self.totals(now_ms))
        self._begin_day(now_ms)

    def _begin_day(self, now_ms: int) -> None:
        mornings, today = self.mornings, datetime.fromtimestamp(now_ms / 1000).date()  # noqa: DTZ006 - local days
        if mornings.day is not None and mornings.day != today:
            mornings.put_yesterday, mornings.put_today = mornings.put_today, self.put_count
            mornings.got_yesterday, mornings.got_today = mornings.got_today, self.got_count
        mornings.day = today

    # Queries ----------------------------------------------------------------------------------

    def find(self, name: str, key: str) -> tuple[WindowTotal, WindowTotal, WindowTotal] | None:
        """Return a counter's totals of the last minute, hour and day; None without a counter."""
        series = self._series.get(name, {}).get(key)
        if series is None:
            return None
        minute, hour, day = self._windows
        return (
            series.total(MINUTE, minute.times),
            series.total(HOUR, hour.times),
            series.total(DAY, day.times),
        )

    def values(self, name: str) -> dict[str, int]:
        """Return all counters of a name, by key."""
        return {key: series.value for key, series in self._series.get(name, {}).items()}

    def dead_letters(self) -> dict[tuple[str, str], int]:
        """Return the messages that became dead letters, by topic and group."""
        counts = {}
        for key, value in self.values(SNDBCK2DLQ_TIMES).items():
            topic, _, group = key.removeprefix(_NO_OWNER).removesuffix(_TO_DLQ).rpartition("@")
            counts[topic, group] = value
        return counts

    def tps(self, name: str, key: str) -> float:
        """Return the rate of a counter in the last minute; 0 if there is no counter."""
        totals = self.find(name, key)
        return totals[MINUTE].tps if totals is not None else 0.0

    def get_tps(self, topic: str, group: str) -> float:
        """Return the messages of a topic delivered to a group, per second, in the last minute."""
        return self.tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def put_tps(self, topic: str) -> float:
        """Return the messages put to a topic, per second, in the last minute."""
        return self.tps(TOPIC_PUT_NUMS, topic)

    def totals(self, now_ms: int) -> Totals:
        """Return the totals of all counters; puts are those of the last ``update``."""
        return Totals(now_ms, self.put_count, self.found_count, self.missed_count, self.got_count)

    def rates(self, duration_ms: int) -> tuple[float, float, float, float]:
        """Return rates per second: puts, pulls with messages, pulls without, messages delivered.

        Averaged over ``duration_ms`` before the last sample, or since the first one.
        """
        if len(self._totals) < 2:
            return (0.0, 0.0, 0.0, 0.0)
        last = self._totals[-1]
        back = min(duration_ms // _SAMPLE_MS, len(self._totals) - 1)
        first = self._totals[-1 - back]
        seconds = max(last.at_ms - first.at_ms, 1) / 1000
        return (
            (last.put_count - first.put_count) / seconds,
            (last.found_count - first.found_count) / seconds,
            (last.missed_count - first.missed_count) / seconds,
            (last.got_count - first.got_count) / seconds,
        )

    def _named(self, name: str, key: str) -> Series:
        by_key = self._series.setdefault(name, {})
        series = by_key.get(key)
        if series is None:
            if sum(map(len, self._series.values())) >= self.series_max:
                self.uncounted_count += 1
                return self._no_series
            series = by_key[key] = Series()
        return series


def _parts(table: dict[_K, Any]) -> Iterator[list[_K]]:
    """Yield the current keys of a table in bounded parts."""
    keys = list(table)
    for start in range(0, len(keys), _KEYS_PER_STEP):
        yield keys[start : start + _KEYS_PER_STEP]
