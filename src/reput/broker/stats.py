"""What a broker counts: messages and bytes, in and out, and how many of them in a minute.

Puts are counted by the store, a word a topic; gets here, an addition a pull. ``step`` looks at the
counters at Java's paces and remembers what it saw, so that a rate is a difference of two samples:

    minute   a sample every 10 seconds, the last 7 count
    hour     a sample every 10 minutes, the last 7 count
    day      a sample every hour, the last 25 count

Names and keys are Java's (4.9.7 ``BrokerStatsManager``, ``StatsItem``). All samples of a window are
taken at the same time, so the times are kept once; a counter that stands still costs nothing.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple

from reput.format import names
from reput.store.delivering import Delivery
from reput.store.getting import GetResult, GetStatus

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
"""Messages put; by topic."""
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
"""Bytes of their records."""
GROUP_GET_NUMS = "GROUP_GET_NUMS"
"""Messages got; by ``topic@group``."""
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
"""Milliseconds that pulls took; by ``queueId@topic@group``."""
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
"""Messages that a group sent back; by ``topic@group``."""
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
"""Messages put; by cluster."""
BROKER_GET_NUMS = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
"""Of 5.x, as those that follow; by cluster."""
BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
SNDBCK2DLQ_TIMES = "SNDBCK2DLQ_TIMES"
"""Messages that became dead letters; by ``null@topic@group@SEND_BACK_TO_DLQ``: it has no owner."""
GROUP_ACK_NUMS = "GROUP_ACK_NUMS"
"""Messages that were popped and acknowledged; by ``topic@group``."""
GROUP_CK_NUMS = "GROUP_CK_NUMS"
"""Checkpoints of pops; by ``topic@group``."""
BROKER_ACK_NUMS = "BROKER_ACK_NUMS"
"""By cluster."""
BROKER_CK_NUMS = "BROKER_CK_NUMS"
TIMER_DEQUEUE_NUMS = "TIMER_DEQUEUE_NUMS"
"""Messages that the timer delivered; by cluster. Not in Java."""

_BY_GROUP = (
    GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_LATENCY, SNDBCK_PUT_NUMS, GROUP_ACK_NUMS,
    GROUP_CK_NUMS,
)  # fmt: skip
"""What ends with a group."""
_SAMPLE_MS = 10_000
_RATE_SAMPLES = 61  # ten minutes

PutCounts = Mapping[str, tuple[int, int]]
"""Topic -> messages and bytes put since the start."""


class Sums(NamedTuple):
    """What a counter did in a time."""

    sum: int = 0
    tps: float = 0.0
    """Per second."""
    avgpt: float = 0.0
    """Per event: bytes a message, messages a pull."""


class _Sample(NamedTuple):
    value: int
    times: int


class _Window:
    """When the samples were taken that a minute, an hour or a day is made of."""

    def __init__(self, interval_ms: int, count_max: int) -> None:
        self.interval_ms = interval_ms
        self.count_max = count_max
        self.times: deque[int] = deque(maxlen=count_max)
        self._due_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether to sample now; a clock that was set back does not stop it."""
        due_ms = self._due_ms
        return due_ms is None or now_ms >= due_ms or now_ms < due_ms - 2 * self.interval_ms

    def begin_sample(self, now_ms: int) -> None:
        """Take note of the time of the samples that follow."""
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
    """One counter, and what it was when it was sampled."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        """How many events made up the value."""
        # It was 0 when the last sample was taken: it did not exist.
        self._samples = [deque([_Sample(0, 0)], count_max) for _, count_max in _WINDOWS]

    def add(self, value: int, times: int = 1) -> None:
        """Count events."""
        self.value += value
        self.times += times

    def sample(self, window: int) -> None:
        """Remember the value."""
        samples = self._samples[window]
        # A counter that stands still has equal samples, whatever their times are.
        if samples[0].value != self.value or len(samples) < _WINDOWS[window][1]:
            samples.append(_Sample(self.value, self.times))

    def sums(self, window: int, times: deque[int]) -> Sums:
        """Return what was counted between the first and the last sample."""
        samples = self._samples[window]
        first, last = samples[0], samples[-1]
        if len(samples) < 2:
            return Sums()
        total, events = last.value - first.value, last.times - first.times
        duration_ms = times[-1] - times[-len(samples)]
        return Sums(
            total,
            total * 1000 / duration_ms if duration_ms > 0 else 0.0,
            total / events if events > 0 else 0.0,
        )


class _Popped(NamedTuple):
    """What counts the pops of a group from a queue."""

    messages: Series
    bytes: Series
    latency: Series
    checkpoints: Series
    is_of_system: bool


class Totals(NamedTuple):
    """What all counters together say at a moment."""

    at_ms: int
    put: int
    """Messages put."""
    found: int
    """Pulls that found something."""
    missed: int
    """Pulls that did not."""
    got: int
    """Messages got."""


@dataclass(slots=True)
class Mornings:
    """Messages since the start, as they stood when the last days began."""

    put_yesterday: int = 0
    put_today: int = 0
    got_yesterday: int = 0
    got_today: int = 0
    day: date | None = field(default=None, repr=False)


class Stats:
    """The counters of a broker since its start.

    Args:
        cluster_name: The key of the counters of the whole broker.
        put_counts: Returns what the store has counted.
        timer_count: Returns how many messages the timer has delivered.
    """

    def __init__(
        self,
        cluster_name: str = "",
        put_counts: Callable[[], PutCounts] = lambda: {},
        timer_count: Callable[[], int] = lambda: 0,
    ) -> None:
        self.put_failed_count = 0
        self.put_count = 0
        """Messages put, as of the last look at the store; see ``look``."""
        self.put_bytes = 0
        self.found_count = 0
        """Pulls that found something."""
        self.missed_count = 0
        self.get_ms_max = 0
        """The longest that a pull took, of those that were measured."""
        self.mornings = Mornings()
        self._put_counts = put_counts
        self._timer_count = timer_count
        self._seen: PutCounts = {}
        self._windows = [_Window(*one) for one in _WINDOWS]
        self._series: dict[str, dict[str, Series]] = {}
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
        """Messages got."""
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
        """Count a pull that was answered.

        Args:
            topic: What was pulled.
            group: By whom.
            result: What it found.
            queue_id: Where.
            latency_ms: How long it took, if that was measured.
        """
        self.get_ms_max = max(self.get_ms_max, latency_ms or 0)
        if result.status is not GetStatus.FOUND:
            self.missed_count += 1
            return
        self._count_found(topic, group, 1, result.message_count, len(result.data))
        if latency_ms is not None:
            self._latency(topic, group, queue_id).add(latency_ms)

    def delivered(self, one: Delivery) -> None:
        """Count pulls that the kernel answered, which takes it less than a millisecond."""
        self._count_found(one.topic, one.group, one.pull_count, one.message_count, one.byte_count)
        self._latency(one.topic, one.group, one.queue_id).add(0, one.pull_count)

    def _count_found(self, topic: str, group: str, pulls: int, messages: int, size: int) -> None:
        self.found_count += pulls
        counters = self._gets.get((topic, group))
        if counters is None:
            key = f"{topic}@{group}"
            counters = self._named(GROUP_GET_NUMS, key), self._named(GROUP_GET_SIZE, key)
            self._gets[topic, group] = counters
        counters[0].add(messages, pulls)
        counters[1].add(size, pulls)
        self._broker_got.value += messages
        if not names.is_system_topic(topic):
            self._user_got.value += messages

    def _latency(self, topic: str, group: str, queue_id: int) -> Series:
        found = self._latencies.get((queue_id, topic, group))
        if found is None:
            found = self._named(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}")
            self._latencies[queue_id, topic, group] = found
        return found

    def sent_back(self, topic: str, group: str, count: int = 1, *, is_dead: bool = False) -> None:
        """Count messages that a group wants to see again; or one that it has now given up."""
        self._named(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(count, count)
        if is_dead:
            self._named(SNDBCK2DLQ_TIMES, f"null@{topic}@{group}@SEND_BACK_TO_DLQ").add(1)

    def acknowledged(self, topic: str, group: str, count: int = 1) -> None:
        """Count messages that a group has popped and consumed."""
        series = self._acks.get((topic, group))
        if series is None:
            series = self._named(GROUP_ACK_NUMS, f"{topic}@{group}")
            self._acks[topic, group] = series
        series.add(count)
        self._broker_acked.value += count

    def checkpointed(self, topic: str, group: str) -> None:
        """Count a checkpoint: what a pop got from a queue and has to be acknowledged."""
        self._named(GROUP_CK_NUMS, f"{topic}@{group}").add(1)
        self._broker_held.value += 1

    def popped(self, topic: str, group: str, queue_id: int, count: int, size: int) -> None:
        """Count what a pop took of a queue: a pull that found messages, and its checkpoint."""
        key = queue_id, topic, group
        one = self._pops.get(key)
        if one is None:
            key_of_group = f"{topic}@{group}"
            one = self._pops[key] = _Popped(
                self._named(GROUP_GET_NUMS, key_of_group),
                self._named(GROUP_GET_SIZE, key_of_group),
                self._latency(topic, group, queue_id),
                self._named(GROUP_CK_NUMS, key_of_group),
                names.is_system_topic(topic),
            )
        self.found_count += 1
        one.messages.add(count)
        one.bytes.add(size)
        one.latency.times += 1
        one.checkpoints.add(1)
        self._broker_got.value += count
        self._broker_held.value += 1
        if not one.is_of_system:
            self._user_got.value += count

    def look(self) -> None:
        """Take over what the store has counted."""
        counts = self._put_counts()
        for topic, (messages, size) in counts.items():
            known_messages, known_size = self._seen.get(topic, (0, 0))
            if messages < known_messages:  # deleted and made anew
                known_messages, known_size = 0, 0
            new, new_bytes = messages - known_messages, size - known_size
            if not new:
                continue
            self._named(TOPIC_PUT_NUMS, topic).add(new, new)
            self._named(TOPIC_PUT_SIZE, topic).add(new_bytes, new)
            self._broker_put.value += new
            if not names.is_system_topic(topic):
                self._user_put.value += new
            self.put_count += new
            self.put_bytes += new_bytes
        self._seen = counts
        self._timer.value = self._timer_count()

    def topic_deleted(self, topic: str) -> None:
        """Forget the counters of a topic. ``look`` before the store forgets it."""
        for name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            self._series.get(name, {}).pop(topic, None)
        self._seen = {one: counts for one, counts in self._seen.items() if one != topic}
        self._forget(lambda one, _: one == topic)

    def group_deleted(self, group: str) -> None:
        """Forget the counters of a consumer group."""
        self._forget(lambda _, one: one == group)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        self._gets = {key: one for key, one in self._gets.items() if not is_gone(*key)}
        self._latencies = {
            key: one for key, one in self._latencies.items() if not is_gone(key[1], key[2])
        }
        self._acks = {key: one for key, one in self._acks.items() if not is_gone(*key)}
        self._pops = {key: one for key, one in self._pops.items() if not is_gone(key[1], key[2])}
        for name in _BY_GROUP:
            by_key = self._series.get(name, {})
            for key in list(by_key):
                topic, _, group = key.rpartition("@")
                if is_gone(topic.rpartition("@")[2], group):
                    del by_key[key]
        dead = self._series.get(SNDBCK2DLQ_TIMES, {})
        for key in list(dead):
            _, topic, group, _ = key.split("@")
            if is_gone(topic, group):
                del dead[key]

    # Time -------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Sample what is due; return whether anything was. Call it about once a second."""
        is_due = [window.is_due(now_ms) for window in self._windows]
        if not any(is_due):
            return False
        self.look()
        for number, window in enumerate(self._windows):
            if is_due[number]:
                window.begin_sample(now_ms)
                for by_key in self._series.values():
                    for series in by_key.values():
                        series.sample(number)
        if is_due[MINUTE]:
            self._totals.append(self.totals(now_ms))
        self._begin_day(now_ms)
        return True

    def _begin_day(self, now_ms: int) -> None:
        mornings, today = self.mornings, datetime.fromtimestamp(now_ms / 1000).date()  # noqa: DTZ006 - local days
        if mornings.day is not None and mornings.day != today:
            mornings.put_yesterday, mornings.put_today = mornings.put_today, self.put_count
            mornings.got_yesterday, mornings.got_today = mornings.got_today, self.got_count
        mornings.day = today

    # Asking -----------------------------------------------------------------------------------

    def find(self, name: str, key: str) -> tuple[Sums, Sums, Sums] | None:
        """Return what a counter did in the last minute, hour and day; None if there is none."""
        series = self._series.get(name, {}).get(key)
        if series is None:
            return None
        minute, hour, day = self._windows
        return (
            series.sums(MINUTE, minute.times),
            series.sums(HOUR, hour.times),
            series.sums(DAY, day.times),
        )

    def values(self, name: str) -> dict[str, int]:
        """Return all counters of a name, by key."""
        return {key: one.value for key, one in self._series.get(name, {}).items()}

    def tps(self, name: str, key: str) -> float:
        """Return the rate of a counter in the last minute; 0 if there is none."""
        found = self.find(name, key)
        return found[MINUTE].tps if found is not None else 0.0

    def get_tps(self, topic: str, group: str) -> float:
        """Return how many messages of a topic a group got a second, in the last minute."""
        return self.tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def totals(self, now_ms: int) -> Totals:
        """Return what all counters together say; puts as of the last ``look``."""
        return Totals(now_ms, self.put_count, self.found_count, self.missed_count, self.got_count)

    def rates(self, duration_ms: int) -> tuple[float, float, float, float]:
        """Return puts, pulls that found, pulls that missed, messages got; a second.

        Over the last so many ms before the last sample, or since the first one.
        """
        if len(self._totals) < 2:
            return (0.0, 0.0, 0.0, 0.0)
        last = self._totals[-1]
        back = min(duration_ms // _SAMPLE_MS, len(self._totals) - 1)
        first = self._totals[-1 - back]
        seconds = max(last.at_ms - first.at_ms, 1) / 1000
        return (
            (last.put - first.put) / seconds,
            (last.found - first.found) / seconds,
            (last.missed - first.missed) / seconds,
            (last.got - first.got) / seconds,
        )

    def _named(self, name: str, key: str) -> Series:
        by_key = self._series.setdefault(name, {})
        found = by_key.get(key)
        if found is None:
            found = by_key[key] = Series()
        return found
