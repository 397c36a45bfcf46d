"""Counters and their samples. The expected values follow Java's ``StatsItem`` by hand."""

import itertools
from collections.abc import Iterator

from reput.broker.counters.stats import (
    BROKER_ACK_NUMS,
    BROKER_CK_NUMS,
    BROKER_GET_NUMS,
    BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC,
    BROKER_PUT_NUMS,
    BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC,
    DAY,
    GROUP_ACK_NUMS,
    GROUP_CK_NUMS,
    GROUP_GET_LATENCY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    HOUR,
    MINUTE,
    SNDBCK2DLQ_TIMES,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    Stats,
    WindowTotal,
)
from reput.remoting.time_slices import run_whole
from reput.store.getting import GetResult, GetStatus
from reput.store.hot_state import HotState

START_MS = 1_700_000_000_000
SECOND_MS = 1_000
FOUND = GetResult(GetStatus.FOUND, 2, 0, 2, b"x" * 300, 2)
MISSED = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 2, 0, 2)


class Subject:
    """Counters over a store whose put counts are in ``puts``."""

    def __init__(self) -> None:
        self.puts: dict[str, tuple[int, int]] = {}
        self._reported: dict[str, tuple[int, int]] = {}
        self.stats = Stats("C", self._news)
        self.now_ms = START_MS

    def _news(self) -> list[tuple[str, int, int]]:
        news = []
        for topic, (messages, size) in self.puts.items():
            known_messages, known_size = self._reported.get(topic, (0, 0))
            if messages != known_messages:
                news.append((topic, messages - known_messages, size - known_size))
        self._reported = dict(self.puts)
        return news

    def advance(self, duration_ms: int) -> None:
        """Advance the clock, with a step each second."""
        for _ in range(duration_ms // SECOND_MS):
            self.now_ms += SECOND_MS
            self.stats.step(self.now_ms)

    def total(self, name: str, key: str, window: int = MINUTE) -> WindowTotal:
        item = self.stats.find(name, key)
        assert item is not None, (name, key)
        return item[window]


def test_uncounted_series_do_not_exist() -> None:
    assert Subject().stats.find(TOPIC_PUT_NUMS, "T") is None
    assert Subject().stats.find("NO_SUCH_NAME", "T") is None
    assert Subject().stats.get_tps("T", "g") == 0


def test_puts_of_the_first_ten_seconds() -> None:
    subject = Subject()
    subject.puts["T"] = (30, 6_000)
    subject.stats.step(START_MS)
    # Java begins with a sample of 0, ten seconds earlier.
    assert subject.total(TOPIC_PUT_NUMS, "T") == WindowTotal(30, 3.0, 1.0)
    assert subject.total(TOPIC_PUT_SIZE, "T") == WindowTotal(6_000, 600.0, 200.0)
    assert subject.total(BROKER_PUT_NUMS, "C") == WindowTotal(30, 3.0, 0.0)


def test_a_minute_drops_older_samples() -> None:
    subject = Subject()
    subject.stats.step(START_MS)
    subject.puts["T"] = (60, 600)
    subject.advance(10 * SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T").sum == 60
    for age_s in range(20, 70, 10):
        subject.advance(10 * SECOND_MS)
        assert subject.total(TOPIC_PUT_NUMS, "T") == WindowTotal(
            60, 60 * 1000 / (age_s * 1000), 1.0
        )
    subject.advance(10 * SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T") == WindowTotal(0, 0.0, 0.0)
    # After a pause of any length a rate covers a minute again.
    subject.advance(600 * SECOND_MS)
    subject.puts["T"] = (66, 660)
    subject.advance(10 * SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T") == WindowTotal(6, 0.1, 1.0)


def test_hours_and_days_are_sampled_more_slowly() -> None:
    subject = Subject()
    subject.stats.step(START_MS)
    subject.puts["T"] = (3_600, 3_600)
    subject.advance(599 * SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T", HOUR).sum == 0
    subject.advance(SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T", HOUR) == WindowTotal(3_600, 6.0, 1.0)
    assert subject.total(TOPIC_PUT_NUMS, "T", DAY).sum == 0
    subject.advance(3_000 * SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T", HOUR) == WindowTotal(3_600, 1.0, 1.0)
    assert subject.total(TOPIC_PUT_NUMS, "T", DAY) == WindowTotal(3_600, 1.0, 1.0)
    subject.advance(600 * SECOND_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T", HOUR).sum == 0
    assert subject.total(TOPIC_PUT_NUMS, "T", DAY).sum == 3_600


def test_gets_count_messages_bytes_and_pulls() -> None:
    subject = Subject()
    for _ in range(5):
        subject.stats.pulled("T", "g", FOUND, queue_id=3, latency_ms=4)
    subject.stats.pulled("T", "g", MISSED)
    subject.stats.sent_back("T", "g")
    subject.stats.step(START_MS)
    assert subject.total(GROUP_GET_NUMS, "T@g") == WindowTotal(10, 1.0, 2.0)
    assert subject.total(GROUP_GET_SIZE, "T@g") == WindowTotal(1_500, 150.0, 300.0)
    assert subject.total(GROUP_GET_LATENCY, "3@T@g") == WindowTotal(20, 2.0, 4.0)
    assert subject.total(SNDBCK_PUT_NUMS, "T@g") == WindowTotal(1, 0.1, 1.0)
    assert subject.total(BROKER_GET_NUMS, "C").sum == 10
    assert subject.stats.get_tps("T", "g") == 1.0
    assert (subject.stats.found_count, subject.stats.missed_count) == (5, 1)


def test_system_topics_do_not_count_for_users() -> None:
    subject = Subject()
    subject.puts = {"T": (30, 300), "SCHEDULE_TOPIC_XXXX": (10, 100)}
    subject.stats.pulled("T", "g", FOUND)
    subject.stats.pulled("SCHEDULE_TOPIC_XXXX", "g", FOUND)
    subject.stats.step(START_MS)
    assert subject.total(BROKER_PUT_NUMS, "C").sum == 40
    assert subject.total(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, "C").sum == 30
    assert subject.total(BROKER_GET_NUMS, "C").sum == 4
    assert subject.total(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, "C").sum == 2


def test_dead_letters_are_counted_under_the_key_of_java() -> None:
    subject = Subject()
    subject.stats.sent_back("T", "g")
    subject.stats.sent_back("T", "g", is_dead=True)
    subject.stats.step(START_MS)
    assert subject.total(SNDBCK_PUT_NUMS, "T@g").sum == 2
    # BrokerStatsManager.buildCommercialStatsKey, for a message without an owner
    key = "null@T@g@SEND_BACK_TO_DLQ"
    assert subject.total(SNDBCK2DLQ_TIMES, key).sum == 1
    run_whole(subject.stats.forget_group("g"))
    assert subject.stats.find(SNDBCK2DLQ_TIMES, key) is None


def test_pops_count_checkpoints_and_acknowledgements() -> None:
    subject = Subject()
    subject.stats.checkpointed("T", "g")
    subject.stats.acknowledged("T", "g", 3)
    subject.stats.acknowledged("T", "g")
    subject.stats.step(START_MS)
    assert subject.total(GROUP_CK_NUMS, "T@g").sum == subject.total(BROKER_CK_NUMS, "C").sum == 1
    assert subject.total(GROUP_ACK_NUMS, "T@g").sum == subject.total(BROKER_ACK_NUMS, "C").sum == 4
    run_whole(subject.stats.forget_topic("T"))
    assert subject.stats.find(GROUP_ACK_NUMS, "T@g") is None
    subject.stats.acknowledged("T", "g")
    assert subject.stats.find(GROUP_ACK_NUMS, "T@g") is not None


def test_a_pop_counts_as_a_pull_and_its_checkpoint() -> None:
    result = GetResult(GetStatus.FOUND, 3, 0, 3, b"x" * 70, 3)
    popped, pulled = Subject(), Subject()
    for _ in range(2):
        for topic in ("T", "rmq_sys_T"):
            popped.stats.popped(topic, "g", 5, 3, 70)
            pulled.stats.pulled(topic, "g", result, queue_id=5, latency_ms=0)
            pulled.stats.checkpointed(topic, "g")
        assert counted(popped) == counted(pulled)
        for subject in (popped, pulled):
            run_whole(subject.stats.forget_group("g"))
            assert subject.stats.find(GROUP_CK_NUMS, "T@g") is None


def counted(subject: Subject) -> object:
    stats = subject.stats
    by_key = {
        name: {key: (item.value, item.times) for key, item in series.items()}
        for name, series in stats._series.items()
    }
    return by_key, stats.found_count, stats.missed_count, stats.got_count


class Topics:
    """Rows of topics T0, T1 ..., in which kernels count."""

    def __init__(self, count: int) -> None:
        self.hot_state = HotState()
        self._rows = [self.hot_state.topic(b"T%d" % number).words for number in range(count)]

    def put(self, messages: int, size: int) -> None:
        """Count messages and their bytes in each topic."""
        for row in self._rows:
            row.message_count += messages
            row.byte_count += size

    def put_news(self) -> Iterator[tuple[str, int, int]]:
        for name, messages, size in self.hot_state.put_news():
            yield name.decode(), messages, size


def test_thousands_of_new_topics_are_counted_in_small_steps() -> None:
    """The first query after the creation of 3,000 topics took 77 ms in one step."""
    topics = Topics(3_000)
    stats = Stats("C", topics.put_news)
    topics.put(2, 200)
    counts = [stats.put_count for _ in stats.update()]
    assert len(counts) >= 3_000 / 100
    assert max(after - before for before, after in itertools.pairwise([0, *counts])) <= 200
    assert (stats.put_count, stats.put_bytes) == (6_000, 600_000)


def test_concurrent_queries_count_once() -> None:
    topics = Topics(300)
    stats = Stats("C", topics.put_news)
    updates = []
    for turn in range(3):
        topics.put(1, 10)
        updates.append(stats.update())
        for update in updates[: turn + 1]:
            next(update, None)
    topics.hot_state.drop_topic(b"T299")
    for update in updates:
        run_whole(update)
    run_whole(stats.update())
    assert stats.put_count == 299 * 3
    assert stats.values(TOPIC_PUT_NUMS) == {f"T{number}": 3 for number in range(299)}


def test_a_recreated_topic_continues_its_counters() -> None:
    subject = Subject()
    subject.puts["T"] = (10, 100)
    run_whole(subject.stats.update())
    run_whole(subject.stats.forget_topic("T"))
    del subject.puts["T"]
    run_whole(subject.stats.update())
    assert subject.stats.find(TOPIC_PUT_NUMS, "T") is None
    subject.puts["T"] = (3, 30)
    subject.stats.step(START_MS)
    assert subject.total(TOPIC_PUT_NUMS, "T").sum == 3
    assert (subject.stats.put_count, subject.stats.put_bytes) == (13, 130)


def test_deleted_topics_and_groups_leave_no_counters() -> None:
    subject = Subject()
    for topic in ("T", "U"):
        for group in ("g", "h"):
            subject.stats.pulled(topic, group, FOUND, queue_id=0, latency_ms=1)
            subject.stats.sent_back(topic, group)
    run_whole(subject.stats.forget_topic("T"))
    run_whole(subject.stats.forget_group("h"))
    left = {
        key: [subject.stats.find(name, prefix + key) is not None for name, prefix in (
            (GROUP_GET_NUMS, ""), (GROUP_GET_SIZE, ""), (SNDBCK_PUT_NUMS, ""),
            (GROUP_GET_LATENCY, "0@"))]
        for key in ("T@g", "T@h", "U@g", "U@h")
    }  # fmt: skip
    assert left == {
        "T@g": [False] * 4, "T@h": [False] * 4, "U@g": [True] * 4, "U@h": [False] * 4,
    }  # fmt: skip
    subject.stats.pulled("T", "g", FOUND)
    assert subject.stats.find(GROUP_GET_NUMS, "T@g") is not None


def test_rates_cover_the_existing_samples() -> None:
    subject = Subject()
    assert subject.stats.rates(10_000) == (0.0, 0.0, 0.0, 0.0)
    subject.stats.step(START_MS)
    subject.puts["T"] = (100, 1_000)
    subject.stats.pulled("T", "g", FOUND)
    subject.advance(10 * SECOND_MS)
    assert subject.stats.rates(60_000) == (10.0, 0.1, 0.0, 0.2)
    subject.advance(10 * SECOND_MS)
    assert subject.stats.rates(10_000) == (0.0, 0.0, 0.0, 0.0)
    assert subject.stats.rates(60_000) == (5.0, 0.05, 0.0, 0.1)


def test_a_day_begins_in_the_morning() -> None:
    subject = Subject()
    subject.stats.step(START_MS)
    subject.puts["T"] = (5, 50)
    subject.stats.step(START_MS + 24 * 3_600_000)
    subject.puts["T"] = (9, 90)
    subject.stats.step(START_MS + 48 * 3_600_000)
    mornings = subject.stats.mornings
    assert (mornings.put_yesterday, mornings.put_today) == (5, 9)


def test_a_clock_set_back_does_not_stop_sampling() -> None:
    subject = Subject()
    subject.stats.step(START_MS)
    subject.puts["T"] = (7, 70)
    assert subject.stats.step(START_MS - 10 * 3_600_000)
    assert subject.stats.put_count == 7
    assert subject.total(TOPIC_PUT_NUMS, "T").tps == 0.0


def test_counters_beyond_the_limit_count_only_in_the_totals() -> None:
    stats = Stats("cluster", series_max=20)
    for number in range(1000):
        group = f"group{number}"
        stats.acknowledged("T", group)
        stats.popped("T", group, 0, count=2, size=10)
        stats.sent_back("T", group, is_dead=True)
    names = ("GROUP_ACK_NUMS", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY",
             "GROUP_CK_NUMS", "SNDBCK_PUT_NUMS", "SNDBCK2DLQ_TIMES")  # fmt: skip
    assert sum(len(stats.values(name)) for name in names) <= 20
    # The lookup tables do not grow either.
    assert len(stats._acks) + len(stats._pops) + len(stats._latencies) <= 20
    assert stats.values("BROKER_ACK_NUMS") == {"cluster": 1000}
    assert stats.values("BROKER_GET_NUMS") == {"cluster": 2000}
    assert stats.uncounted_count > 0
    # The first counters keep counting.
    before = stats.values("GROUP_ACK_NUMS")["T@group0"]
    stats.acknowledged("T", "group0")
    assert stats.values("GROUP_ACK_NUMS")["T@group0"] == before + 1
    # Deleted counters make room.
    for _ in stats.forget_group("group0"):
        pass
    stats.acknowledged("T", "late")
    assert stats.values("GROUP_ACK_NUMS")["T@late"] == 1
