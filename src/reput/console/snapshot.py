"""Everything that is known of a cluster, and since when.

Each answer of a broker replaces an older one of the same kind, whatever the order in which answers
arrive. A broker is silent if its last failure is newer than its last answer; what it had answered
before stays, with its age.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reput.format.bodies import SubscriptionGroupConfig, TopicConfigData
from reput.format.codes import MASTER_ID

GONE_MS = 3_600_000
"""Time for which a broker is shown after name servers have forgotten it."""


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Facts of name servers about a broker."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The ends of a queue."""

    queue_id: int
    min_offset: int
    """Queue offset of the first message that is kept."""
    max_offset: int
    """Queue offset after the last message."""
    last_ms: int
    """Store time of the last message; 0 without messages."""

    @property
    def message_count(self) -> int:
        """Messages that are kept."""
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a topic's queues on a broker."""

    time_ms: int
    queues: tuple[QueueEnds, ...]

    @property
    def message_count(self) -> int:
        """Messages that are kept."""
        return sum(queue.message_count for queue in self.queues)

    @property
    def stored_count(self) -> int:
        """Number of messages ever stored: the sum of the maximum offsets of the queues."""
        return sum(queue.max_offset for queue in self.queues)

    def queue(self, queue_id: int) -> QueueEnds | None:
        """Return the ends of a queue; None without them."""
        return next((queue for queue in self.queues if queue.queue_id == queue_id), None)


@dataclass(slots=True)
class BrokerFacts:
    """Everything that is known of a broker."""

    place: BrokerPlace
    listed_ms: int
    """Last time at which name servers had the broker."""
    answer_ms: int = 0
    """Time of the broker's last answer; 0 before the first."""
    failure_ms: int = 0
    """Time of the broker's last failure; 0 without one."""
    problem: str = ""
    """The last failure."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Kind of request to the error with which the broker answers it."""
    status: Mapping[str, str] = field(default_factory=dict)
    status_ms: int = 0
    topics: Mapping[str, TopicConfigData] = field(default_factory=dict)
    topics_ms: int = 0
    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    groups_ms: int = 0
    consumed: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    """(topic, group) to queue id to consumer offset."""
    readers: Mapping[str, set[str]] = field(default_factory=dict)
    """Topic to the groups in ``consumed`` that read it."""
    consumed_ms: int = 0
    ends: dict[str, Ends] = field(default_factory=dict)
    """Topic to the ends of its queues here."""

    @property
    def is_silent(self) -> bool:
        """Whether the last request failed."""
        return self.failure_ms > self.answer_ms

    @property
    def silent_since_ms(self) -> int:
        """Time of the last answer of a silent broker; 0 if it has never answered."""
        return self.answer_ms


@dataclass(frozen=True, slots=True)
class Members:
    """Members of a group, as its brokers know them."""

    time_ms: int
    count: int


class Snapshot:
    """Everything that is known of the clusters of some name servers."""

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerFacts] = {}
        """Address to facts."""
        self.members: dict[str, Members] = {}
        """Group -> members, for groups on viewed pages."""
        self.listed_ms = 0
        """Time of the last answer of name servers; 0 before the first."""
        self.name_server_problem = ""
        """Reason why name servers do not answer; empty if they do."""
        self.version = 0
        """Number of changes so far."""
        self.moved_topics: set[str] = set()
        """Topics with changed facts, until ``rows`` processes them."""
        self.moved_groups: set[str] = set()

    def masters(self) -> list[BrokerFacts]:
        """Return the masters, by cluster and name."""
        masters = (facts for facts in self.brokers.values() if facts.place.broker_id == MASTER_ID)
        return sorted(masters, key=lambda facts: (facts.place.cluster, facts.place.name))

    def silent(self) -> dict[str, int]:
        """Return silent brokers by name, with the time of the last answer; 0 without one."""
        return {
            _name(facts.place): facts.silent_since_ms
            for facts in self.brokers.values()
            if facts.is_silent
        }

    # --- answers ------------------------------------------------------------------------------

    def put_places(self, places: Iterable[BrokerPlace], time_ms: int) -> None:
        """Put the brokers that name servers have."""
        if time_ms < self.listed_ms:
            return
        self.listed_ms, self.name_server_problem = time_ms, ""
        for place in places:
            facts = self.brokers.get(place.address)
            if facts is None:
                self.brokers[place.address] = BrokerFacts(place, time_ms)
            else:
                facts.place, facts.listed_ms = place, time_ms
        for address, facts in list(self.brokers.items()):
            if facts.listed_ms + GONE_MS < time_ms:
                del self.brokers[address]
                self._move(facts.ends, ())
        self.version += 1

    def put_name_server_problem(self, problem: str, time_ms: int) -> None:
        """Put that no name server answers."""
        if time_ms >= self.listed_ms:
            self.name_server_problem = problem
            self.version += 1

    def put_failure(self, address: str, problem: str, time_ms: int) -> None:
        """Put that a broker did not answer."""
        facts = self.brokers[address]
        if time_ms > facts.failure_ms:
            was_silent = facts.is_silent
            facts.failure_ms, facts.problem = time_ms, problem
            self._follow_silence(facts, was_silent=was_silent)

    def put_refusal(self, address: str, kind: str, problem: str, time_ms: int) -> None:
        """Put that a broker answered with an error, or with an unreadable body."""
        facts = self.brokers[address]
        if time_ms >= facts.answer_ms:
            facts.refusals[kind] = problem
            self._answered(facts, time_ms)

    def put_status(self, address: str, status: Mapping[str, str], time_ms: int) -> None:
        """Put the runtime values of a broker."""
        facts = self.brokers[address]
        self._answered(facts, time_ms)
        if time_ms > facts.status_ms:
            facts.status, facts.status_ms = status, time_ms
            facts.refusals.pop("status", None)

    def put_topics(self, address: str, topics: Mapping[str, TopicConfigData], time_ms: int) -> None:
        """Put the topics of a broker."""
        facts = self.brokers[address]
        self._answered(facts, time_ms)
        if time_ms > facts.topics_ms:
            changed = {
                topic
                for topic in {*topics, *facts.topics}
                if topics.get(topic) != facts.topics.get(topic)
            }
            facts.topics, facts.topics_ms = topics, time_ms
            facts.refusals.pop("topics", None)
            for topic in [topic for topic in facts.ends if topic not in topics]:
                del facts.ends[topic]
            self._move(changed, ())

    def put_groups(
        self, address: str, groups: Mapping[str, SubscriptionGroupConfig], time_ms: int
    ) -> None:
        """Put the consumer groups of a broker."""
        facts = self.brokers[address]
        self._answered(facts, time_ms)
        if time_ms > facts.groups_ms:
            self._move((), groups.keys() ^ facts.groups.keys())
            facts.groups, facts.groups_ms = groups, time_ms
            facts.refusals.pop("groups", None)

    def put_consumed(
        self, address: str, consumed: Mapping[tuple[str, str], Mapping[int, int]], time_ms: int
    ) -> None:
        """Put the consumer offsets of all groups on a broker."""
        facts = self.brokers[address]
        self._answered(facts, time_ms)
        if time_ms > facts.consumed_ms:
            changed = {
                pair
                for pair in {*consumed, *facts.consumed}
                if consumed.get(pair) != facts.consumed.get(pair)
            }
            facts.consumed, facts.consumed_ms = consumed, time_ms
            facts.readers = _readers(consumed)
            facts.refusals.pop("offsets", None)
            self._move({topic for topic, _ in changed}, {group for _, group in changed})

    def put_ends(self, address: str, topic: str, ends: Ends) -> None:
        """Put the ends of a topic's queues on a broker."""
        facts = self.brokers[address]
        self._answered(facts, ends.time_ms)
        before = facts.ends.get(topic)
        if before is None or ends.time_ms > before.time_ms:
            facts.ends[topic] = ends
            facts.refusals.pop("ends", None)
            self._move({topic}, facts.readers.get(topic, ()))

    def put_members(self, group: str, members: Members) -> None:
        """Put the number of a group's members."""
        before = self.members.get(group)
        if before is None or members.time_ms > before.time_ms:
            self.members[group] = members
            self._move((), {group})

    def _answered(self, facts: BrokerFacts, time_ms: int) -> None:
        was_silent = facts.is_silent
        facts.answer_ms = max(facts.answer_ms, time_ms)
        self._follow_silence(facts, was_silent=was_silent)

    def _follow_silence(self, facts: BrokerFacts, *, was_silent: bool) -> None:
        """Mark the rows with values of a broker as changed when it becomes silent or answers."""
        self.version += 1
        if facts.is_silent != was_silent:
            self._move((), {group for _, group in facts.consumed})

    def _move(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        self.moved_topics.update(topics)
        self.moved_groups.update(groups)
        self.version += 1


def _readers(pairs: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    """Return the groups of each topic."""
    readers: dict[str, set[str]] = defaultdict(set)
    for topic, group in pairs:
        readers[topic].add(group)
    return dict(readers)


def _name(place: BrokerPlace) -> str:
    suffix = "" if place.broker_id == MASTER_ID else f" (slave {place.broker_id})"
    return f"{place.name}{suffix}"
