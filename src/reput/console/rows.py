"""Rows of topics and groups, computed from snapshot and history, and kept until these move."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from reput.console.access import User
from reput.console.history import History, time_of
from reput.console.listing import Listing
from reput.console.snapshot import BrokerFacts, Members, Snapshot
from reput.console.unknown import Unknown
from reput.format import names

TOPIC_KINDS = ("user", "retry", "dead letter", "system", "light", "all")
TOPIC_FIELDS = ("name", "queues", "messages", "rate", "last_ms", "groups", "lag")
GROUP_KINDS = ("user", "system", "all")
GROUP_FIELDS = ("name", "lag", "delay_ms", "rate", "members", "retries", "dead_letters")
NOT_YET = Unknown("not asked for yet")
NO_OFFSETS = Unknown("the group has no offsets in the topic")
"""Reasons without names of topics and groups, as a user may not see all parts of a total."""
TREND_MS = 300_000
"""Time over which a trend is computed."""
TREND_SHARE = 0.05
"""Relative change of the lag below which it is steady."""
TREND_MESSAGES = 10
LAST_SHARE = 0.1
"""Minimum share of a change that happens in the last third of its time, else it has ended."""
NOT_CONSUMED = "not consumed"
STEP_ROWS = 100
"""Number of rows computed in one turn of the loop, which takes some milliseconds."""
ABOUT_MS = 2_000
"""Time between the offsets and the ends from which on a lag is an estimate."""

Number = int | Unknown
Rate = float | Unknown


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic, summed over its brokers."""

    name: str
    kind: str
    """``user``, ``retry``, ``dead letter``, ``system`` or ``light``."""
    brokers: tuple[str, ...]
    queues: int
    """Readable queues."""
    messages: Number
    """Number of messages in the queues."""
    rate: Rate
    """Messages stored per second."""
    last_ms: Number | None
    """Store time of the last message; None without messages."""
    groups: int
    """Groups with offsets."""
    lag: Number | None
    """The largest lag of a group; None without groups."""
    ends_ms: Number
    """Time of the oldest answer that the row comes from."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group, summed over its topics and brokers."""

    name: str
    kind: str
    """``user`` or ``system``."""
    topics: tuple[str, ...]
    lag: Number
    """Messages that are not consumed, without its retry topic."""
    is_about: bool
    """True if the lag is an estimate: ends and offsets are old or from different times."""
    delay_ms: Number | None
    """Estimated age of the first unconsumed message; None without one."""
    is_delay_least: bool
    """True if the message is older than the history, whose age ``delay_ms`` then is."""
    rate: Rate
    """Messages consumed per second."""
    trend: str | Unknown | None
    """``growing``, ``steady`` or ``shrinking`` over five minutes, or ``not consumed``: there is a
    lag, and no member; None without a lag."""
    catch_up_ms: int | None
    """Time until the lag is 0, while it shrinks; None: it does not."""
    retries: Number | None
    """Messages of its retry topic that are not consumed; None without one."""
    dead_letters: Number | None
    """Messages of its dead letter topic; None without one."""
    members: Number
    ends_ms: Number
    """Time of the oldest answer that the row comes from."""

    def seen_by(self, user: User) -> "GroupRow":
        """Return the row without the names of topics that a user does not see."""
        return replace(self, topics=tuple(filter(user.sees_topic, self.topics)))


class Rows:
    """Rows by name.

    Args:
        snapshot: Answers of the cluster.
        history: Values over time.
    """

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self._snapshot = snapshot
        self._history = history
        self._topics = Listing[TopicEntry](TOPIC_KINDS, TOPIC_FIELDS, "name")
        self._groups = Listing[GroupRow](GROUP_KINDS, GROUP_FIELDS, "-lag")
        self._version = -1
        self._holders: dict[str, list[BrokerFacts]] = {}
        self._readers: dict[str, set[str]] = {}
        self._reads: dict[str, set[str]] = {}
        self._own_names: set[str] = set()
        self._tables: object = None
        self._moved_topics: set[str] = set()
        """Topics whose rows are to be computed."""
        self._moved_groups: set[str] = set()
        self._is_stepping = False

    def topics(self) -> Listing[TopicEntry]:
        """Return the rows of all topics."""
        self._update()
        return self._topics

    def groups(self) -> Listing[GroupRow]:
        """Return the rows of all groups."""
        self._update()
        return self._groups

    def readers(self, topic: str) -> Sequence[str]:
        """Return the groups with offsets in a topic."""
        self._update()
        return sorted(self._readers.get(topic, ()))

    def lag(self, topic: str, group: str) -> Number:
        """Return the messages of a topic that a group has not consumed."""
        self._update()
        return self._lag(topic, group)[0]

    def broker_lag(self, facts: BrokerFacts, topic: str, group: str) -> Number:
        """Return the messages of a topic on a broker that a group has not consumed."""
        return self._broker_lag(facts, topic, group)[0]

    @property
    def has_backlog(self) -> bool:
        """True if more rows have changed than a request should compute."""
        snapshot = self._snapshot
        moved = (snapshot.moved_topics, snapshot.moved_groups)
        return sum(map(len, (*moved, self._moved_topics, self._moved_groups))) > STEP_ROWS

    async def catch_up(self) -> None:
        """Update the changed rows in steps; meanwhile requests see the old rows."""
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            self._take_moves()
            while self._moved_topics or self._moved_groups:
                self._step(STEP_ROWS)
                await asyncio.sleep(0)
        finally:
            self._is_stepping = False

    def _update(self) -> None:
        self._take_moves()
        if self._is_stepping:  # a row that is not there would be a topic that does not exist
            self._put_groups(self._moved_groups - self._groups.rows.keys())
            self._put_topics(self._moved_topics - self._topics.rows.keys())
        else:
            while self._moved_topics or self._moved_groups:
                self._step(STEP_ROWS)

    def _take_moves(self) -> None:
        """Adopt the changes of the snapshot."""
        snapshot = self._snapshot
        if snapshot.version == self._version:
            return
        self._version = snapshot.version
        masters = snapshot.masters()
        self._moved_topics |= snapshot.moved_topics
        self._moved_groups |= snapshot.moved_groups
        # A group's row has its retry and dead letter topics as well.
        for topic in snapshot.moved_topics:
            for prefix in (names.RETRY_PREFIX, names.DLQ_PREFIX):
                if topic.startswith(prefix):
                    self._moved_groups.add(topic.removeprefix(prefix))
        snapshot.moved_topics, snapshot.moved_groups = set(), set()
        tables = [(id(facts.topics), id(facts.groups), id(facts.consumed)) for facts in masters]
        if tables != self._tables:
            self._tables = tables
            self._index(masters)
            for gone in self._topics.rows.keys() - self._holders.keys():
                self._topics.remove(gone)
                self._history.remove(("end", gone))
            for gone in self._groups.rows.keys() - self._reads.keys():
                self._groups.remove(gone)
                self._history.remove(("consumed", gone))
                self._history.remove(("lag", gone))
            self._moved_topics |= self._holders.keys() - self._topics.rows.keys()
            self._moved_groups |= self._reads.keys() - self._groups.rows.keys()

    def _step(self, row_count: int) -> None:
        """Compute some of the changed rows: groups first, as rows of topics have their lags."""
        if self._moved_groups:
            self._put_groups(set(itertools.islice(self._moved_groups, row_count)))
        else:
            self._put_topics(set(itertools.islice(self._moved_topics, row_count)))

    def _put_groups(self, groups: Set[str]) -> None:
        self._moved_groups -= groups
        for group in groups:
            if group in self._reads:
                self._groups.put(self._group_row(group))
                self._moved_topics |= self._reads[group]

    def _put_topics(self, topics: Set[str]) -> None:
        self._moved_topics -= topics
        for topic in topics:
            if topic in self._holders:
                self._topics.put(self._topic_row(topic))

    def _index(self, masters: Iterable[BrokerFacts]) -> None:
        """Find the brokers of each topic, and which group reads which topic."""
        holders: dict[str, list[BrokerFacts]] = defaultdict(list)
        readers: dict[str, set[str]] = defaultdict(set)
        reads: dict[str, set[str]] = defaultdict(set)
        for facts in masters:
            for topic in facts.topics:
                holders[topic].append(facts)
            for group in facts.groups:
                reads[group].update(())
            for topic, groups in facts.readers.items():
                readers[topic] |= groups
                for group in groups:
                    reads[group].add(topic)
        places = [facts.place for facts in self._snapshot.brokers.values()]
        self._own_names = {name for place in places for name in (place.name, place.cluster)}
        self._holders, self._readers, self._reads = dict(holders), dict(readers), dict(reads)

    # --- rows -----------------------------------------------------------------------------------

    def _topic_row(self, topic: str) -> TopicEntry:
        holders = self._holders[topic]
        ends = [facts.ends.get(topic) for facts in holders]
        known = [end for end in ends if end is not None]
        messages: Number = NOT_YET
        last_ms: Number | None = NOT_YET
        ends_ms: Number = NOT_YET
        if len(known) == len(ends):
            messages = sum(end.message_count for end in known)
            last_ms = (
                max((queue.last_ms for end in known for queue in end.queues), default=0) or None
            )
            ends_ms = min(end.time_ms for end in known)
        readers = self._readers.get(topic, set())
        rate = self._history.rate(("end", topic))
        return TopicEntry(
            name=topic,
            kind=self._kind(topic),
            brokers=tuple(facts.place.name for facts in holders),
            queues=sum(facts.topics[topic].read_queue_nums for facts in holders),
            messages=messages,
            rate=NOT_YET if rate is None else rate,
            last_ms=last_ms,
            groups=len(readers),
            lag=_largest(self._lag(topic, group)[0] for group in readers),
            ends_ms=ends_ms,
        )

    def _kind(self, topic: str) -> str:
        """Return the kind of a topic; brokers create topics named after themselves and clusters."""
        if topic in self._own_names or topic.endswith(names.REPLY_TOPIC_SUFFIX):
            return "system"
        return names.kind_of(topic)

    def _group_row(self, group: str) -> GroupRow:
        retry, dead = names.RETRY_PREFIX + group, names.DLQ_PREFIX + group
        topics = tuple(sorted(self._reads[group] - {retry, dead}))
        lags = [self._lag(topic, group) for topic in topics]
        lag = _sum(lag for lag, _, _ in lags)
        is_about = any(is_about for _, is_about, _ in lags)
        times = [time_ms for _, _, time_ms in lags if isinstance(time_ms, int)]
        rate = self._history.rate(("consumed", group))
        members = self._snapshot.members.get(group)
        trend, slope = self._trend(group, lag, members)
        delay_ms, is_delay_least = self._delay(group, topics, lag)
        is_shrinking = trend == "shrinking" and isinstance(lag, int)
        return GroupRow(
            name=group,
            kind="system" if names.is_system_group(group) else "user",
            topics=topics,
            lag=lag,
            is_about=is_about,
            delay_ms=delay_ms,
            is_delay_least=is_delay_least,
            rate=NOT_YET if rate is None else rate,
            trend=trend,
            catch_up_ms=round(lag / slope) if is_shrinking and isinstance(lag, int) else None,
            retries=self._lag(retry, group)[0] if retry in self._reads[group] else None,
            dead_letters=self._kept(dead) if dead in self._holders else None,
            members=NOT_YET if members is None else members.count,
            ends_ms=min(times) if len(times) == len(topics) and times else NOT_YET,
        )

    def _lag(self, topic: str, group: str) -> tuple[Number, bool, Number]:
        """Return the lag of a group on a topic, whether it is an estimate, and its time."""
        total, is_any_about, oldest_ms = 0, False, None
        for facts in self._holders.get(topic, ()):
            if (topic, group) not in facts.consumed:
                continue
            lag, is_about, time_ms = self._broker_lag(facts, topic, group)
            if isinstance(lag, Unknown) or isinstance(time_ms, Unknown):
                return lag, False, NOT_YET
            total += lag
            is_any_about = is_any_about or is_about
            oldest_ms = time_ms if oldest_ms is None else min(oldest_ms, time_ms)
        if oldest_ms is None:
            return NO_OFFSETS, False, NOT_YET
        return total, is_any_about, oldest_ms

    def _broker_lag(
        self, facts: BrokerFacts, topic: str, group: str
    ) -> tuple[Number, bool, Number]:
        """Return the lag and age of a group on one broker."""
        offsets, ends = facts.consumed.get((topic, group)), facts.ends.get(topic)
        if offsets is None:
            return NO_OFFSETS, False, NOT_YET
        if ends is None:
            reason = f"the ends of its queues on {facts.place.name} are not known yet"
            return Unknown(reason), False, NOT_YET
        # Of a queue without an offset, the group has not consumed a message: Java counts it too.
        lag = sum(
            max(0, queue.max_offset - offsets.get(queue.queue_id, queue.min_offset))
            for queue in ends.queues
        )
        late_ms = ends.time_ms - facts.consumed_ms
        is_about = facts.is_silent or (lag > 0 and abs(late_ms) > ABOUT_MS)
        if late_ms > ABOUT_MS:
            # Consumed since the offsets were read: otherwise a busy group seems to lag.
            lag = max(0, round(lag - self._consumed_within(group, late_ms)))
        return lag, is_about, min(ends.time_ms, facts.consumed_ms)

    def _consumed_within(self, group: str, duration_ms: int) -> float:
        rate = self._history.rate(("consumed", group))
        return 0.0 if rate is None else rate * duration_ms / 1000

    def _kept(self, topic: str) -> Number:
        """Return the messages of a topic that are kept."""
        total = 0
        for facts in self._holders.get(topic, ()):
            ends = facts.ends.get(topic)
            if ends is None:
                return NOT_YET
            total += ends.message_count
        return total

    def _trend(
        self, group: str, lag: Number, members: Members | None
    ) -> tuple[str | Unknown | None, float]:
        """Return the trend of a group, and the messages a ms by which its lag shrinks."""
        if lag == 0:
            return None, 0.0
        if members is not None and not members.count and isinstance(lag, int):
            return NOT_CONSUMED, 0.0
        return _trend(self._history.newest_first(("lag", group)))

    def _delay(self, group: str, topics: Sequence[str], lag: Number) -> tuple[Number | None, bool]:
        """Return about how long ago the first unconsumed message was stored.

        Also return whether that is a lower bound: the message is older than the known history.
        """
        if lag == 0 or isinstance(lag, Unknown):
            return lag or None, False
        worst, is_least = 0, False
        for topic in topics:
            topic_lag = self._lag(topic, group)[0]
            newest = next(self._history.newest_first(("end", topic)), None)
            if not isinstance(topic_lag, int) or not topic_lag or newest is None:
                continue
            newest_ms, end = newest
            stored_ms = time_of(self._history.newest_first(("end", topic)), end - topic_lag)
            if stored_ms is None:
                *_, (stored_ms, _) = self._history.newest_first(("end", topic))
                is_least = True
            worst = max(worst, newest_ms - stored_ms)
        if is_least and not worst:
            return Unknown("the first message is older than the history, which begins now"), False
        return worst, is_least


def _sum(values: Iterable[Number]) -> Number:
    """Return a sum, or its first unknown part."""
    total = 0
    for value in values:
        if isinstance(value, Unknown):
            return value
        total += value
    return total


def _largest(values: Iterable[Number]) -> Number | None:
    """Return the largest value, or the first unknown one; None without values."""
    largest: int | None = None
    for value in values:
        if isinstance(value, Unknown):
            return value
        largest = value if largest is None else max(largest, value)
    return largest


def _trend(newest_first: Iterable[tuple[int, float]]) -> tuple[str | Unknown, float]:
    """Return the trend of a lag, and the messages a ms by which it shrinks."""
    samples: list[tuple[int, float]] = []
    for sample in newest_first:
        if samples and sample[0] < samples[0][0] - TREND_MS:
            break
        samples.append(sample)
    if len(samples) < 4:
        return Unknown("less than two minutes of history"), 0.0
    third = max(1, len(samples) // 3)
    last = sum(lag for _, lag in samples[:third]) / third
    middle = sum(lag for _, lag in samples[third : 2 * third]) / third
    first = sum(lag for _, lag in samples[-third:]) / third
    change = last - first
    # A lag that has grown and is flat now does not grow.
    has_ended = (last - middle) * change <= LAST_SHARE * change * change
    if has_ended or abs(change) <= max(TREND_MESSAGES, TREND_SHARE * max(first, last)):
        return "steady", 0.0
    slope = -change / (samples[0][0] - samples[-1][0])
    return ("growing", slope) if change > 0 else ("shrinking", slope)
