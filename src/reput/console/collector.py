"""Fills the snapshot within a budget of requests, and the history from it.

Every 30 s: the brokers of the name servers; of each broker its runtime values (28) and all consumer
offsets (43). Topics (21) and groups (201) are asked for when the name servers have other topics, or
the offsets other groups, than before; and every five minutes. A name server could say whether the
tables of a broker have moved (322), but that request renews the registration of the broker.

The ends of queues (202, one for each topic and broker) are asked for at 4 requests a second and
broker at most: topics of groups first. What a page shows that is looked at comes before them, in
bursts.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any

from reput.clock import Clock
from reput.console.history import History
from reput.console.rows import Rows
from reput.console.snapshot import BrokerFacts, Members, Snapshot
from reput.console.sources.live import Live
from reput.errors import BrokerError, RemotingError, ReputError
from reput.format import names
from reput.format.codes import MASTER_ID

ROUND_S = 30.0
"""Time between two rounds of requests to every broker."""
FIRST_ROUND_S = 2.0
"""The same interval until a broker is known."""
TABLES_MS = 300_000
"""Time after which topics and groups are asked for even if nothing has moved."""
SWEEP_S = 0.25
"""Time between two requests of a sweep to a broker."""
SWEEP_AGE_MS = 15_000
"""Age of a topic's ends below which a sweep does not request them again."""
VIEWED_AGE_MS = 4_000
"""The same interval for a topic or group on a page that is viewed."""
VIEWED_MS = 15_000
"""Time after a request during which its page is considered viewed."""
VIEWED_COUNT_MAX = 2_000
VIEWED_S = 1.0
"""Time between two looks at the topics and groups of pages."""

_log = logging.getLogger(__name__)


class Collector:
    """Sends requests to brokers, and puts their replies into a snapshot.

    Args:
        live: Requests to brokers and name servers.
        snapshot: The snapshot to fill.
        history: Values over time.
        rows: Rows computed from both.
        clock: The clock.
    """

    def __init__(
        self, live: Live, snapshot: Snapshot, history: History, rows: Rows, clock: Clock
    ) -> None:
        self._live = live
        self._snapshot = snapshot
        self._history = history
        self._rows = rows
        self._clock = clock
        self._topic_names: frozenset[str] = frozenset()
        self._viewed_topics: dict[str, int] = {}
        """Topic -> time until which a page with it is considered viewed."""
        self._viewed_groups: dict[str, int] = {}
        self._sweeps: dict[str, Iterator[str]] = {}
        """Address -> topics that its sweep has not requested yet."""
        self._wanted = asyncio.Event()
        self.request_count = 0
        """Requests that were sent, for tests and ``/metrics``."""

    async def run(self) -> None:
        """Collect until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds())
            tasks.create_task(self._sweep())
            tasks.create_task(self._follow_views())

    def note_viewed(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Note that a page with these topics and groups is viewed."""
        end_ms = self._clock.now_ms() + VIEWED_MS
        for viewed, names_ in ((self._viewed_topics, topics), (self._viewed_groups, groups)):
            for name in names_:
                viewed.pop(name, None)
                viewed[name] = end_ms
            while len(viewed) > VIEWED_COUNT_MAX:
                del viewed[next(iter(viewed))]
        self._wanted.set()

    # --- rounds ---------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(ROUND_S if self._snapshot.brokers else FIRST_ROUND_S)

    async def round(self) -> None:
        """Send requests to name servers and every broker once."""
        now_ms = self._clock.now_ms()
        try:
            places = await self._live.places()
            topic_names = await self._live.topic_names()
        except (ReputError, TimeoutError) as error:
            self._snapshot.put_name_server_problem(str(error) or "no answer in time", now_ms)
            topic_names = self._topic_names
        else:
            self._snapshot.put_places(places, now_ms)
            for address in self._sweeps.keys() - self._snapshot.brokers.keys():
                del self._sweeps[address]
        has_moved = topic_names != self._topic_names
        self._topic_names = topic_names
        await asyncio.gather(
            *(self._round_of(facts, has_moved) for facts in list(self._snapshot.brokers.values()))
        )
        self._note_history()

    async def _round_of(self, facts: BrokerFacts, has_moved: bool) -> None:
        address, snapshot, live = facts.place.address, self._snapshot, self._live
        await self._put(facts, "status", live.status(address), snapshot.put_status)
        # A silent broker costs one request a round.
        if facts.is_silent or facts.place.broker_id != MASTER_ID:
            return
        await self._put(facts, "offsets", live.consumed(address), snapshot.put_consumed)
        now_ms = self._clock.now_ms()
        if has_moved or facts.topics_ms + TABLES_MS <= now_ms:
            await self._put(facts, "topics", live.topics(address), snapshot.put_topics)
        groups = {group for _, group in facts.consumed}
        if not groups <= facts.groups.keys() or facts.groups_ms + TABLES_MS <= now_ms:
            await self._put(facts, "groups", live.groups(address), snapshot.put_groups)

    async def _put(
        self,
        facts: BrokerFacts,
        kind: str,
        request: Awaitable[Any],
        put: Callable[[str, Any, int], None],
    ) -> None:
        """Put the answer of a broker, or its failure."""
        self.request_count += 1
        address, now_ms = facts.place.address, self._clock.now_ms()
        try:
            put(address, await request, now_ms)
        except RemotingError as error:
            if isinstance(error, BrokerError):
                self._snapshot.put_refusal(address, kind, str(error), now_ms)
            else:
                self._snapshot.put_failure(address, str(error), now_ms)
        except ReputError as error:  # a body that is none
            self._snapshot.put_refusal(address, kind, str(error), now_ms)
        if self._rows.has_backlog:
            await self._rows.catch_up()

    async def refresh(self) -> None:
        """Request topics, groups and offsets from all masters after a change."""
        for facts in self._snapshot.masters():
            address, snapshot, live = facts.place.address, self._snapshot, self._live
            await self._put(facts, "topics", live.topics(address), snapshot.put_topics)
            await self._put(facts, "groups", live.groups(address), snapshot.put_groups)
            await self._put(facts, "offsets", live.consumed(address), snapshot.put_consumed)

    # --- ends of queues -------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.gather(*(self.sweep_step(facts) for facts in self._snapshot.masters()))
            await asyncio.sleep(SWEEP_S)

    async def sweep_step(self, facts: BrokerFacts) -> None:
        """Request the ends of the next topic in a broker's sweep, if any."""
        if facts.is_silent:
            return
        address = facts.place.address
        sweep = self._sweeps.get(address)
        topic = next(sweep, None) if sweep is not None else None
        if topic is None:
            self._sweeps[address] = iter(self._order(facts))
            return
        ends = facts.ends.get(topic)
        if ends is None or ends.time_ms + SWEEP_AGE_MS <= self._clock.now_ms():
            await self._ask_ends(facts, topic)

    def _order(self, facts: BrokerFacts) -> list[str]:
        """Return the topics of a sweep, without system topics: topics of groups first."""
        topics = [
            topic
            for topic in facts.topics
            if names.kind_of(topic) not in ("system", "light")
            and not topic.endswith(names.REPLY_TOPIC_SUFFIX)
        ]
        return sorted(topics, key=lambda topic: topic not in facts.readers)

    async def _ask_ends(self, facts: BrokerFacts, topic: str) -> None:
        now_ms, address = self._clock.now_ms(), facts.place.address

        def put(address: str, ends: Any, _now_ms: int) -> None:
            self._snapshot.put_ends(address, topic, ends)
            self._note_topic(topic)

        await self._put(facts, "ends", self._live.ends(address, topic, now_ms), put)

    async def _follow_views(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.view_step()
            await asyncio.sleep(VIEWED_S)
            if self._viewed_topics or self._viewed_groups:
                self._wanted.set()

    async def view_step(self) -> None:
        """Request the outdated facts on the pages that are viewed."""
        now_ms = self._clock.now_ms()
        for viewed in (self._viewed_topics, self._viewed_groups):
            for name in [name for name, end_ms in viewed.items() if end_ms < now_ms]:
                del viewed[name]
        asked: list[Awaitable[None]] = []
        masters = [facts for facts in self._snapshot.masters() if not facts.is_silent]
        for topic in self._viewed_topics:
            for facts in masters:
                ends = facts.ends.get(topic)
                is_old = ends is None or ends.time_ms + VIEWED_AGE_MS <= now_ms
                if topic in facts.topics and is_old:
                    asked.append(self._ask_ends(facts, topic))
        for facts in masters:
            if self._viewed_groups and facts.consumed_ms + VIEWED_AGE_MS <= now_ms:
                request = self._live.consumed(facts.place.address)
                asked.append(self._put(facts, "offsets", request, self._snapshot.put_consumed))
        for group in self._viewed_groups:
            members = self._snapshot.members.get(group)
            if members is None or members.time_ms + VIEWED_AGE_MS <= now_ms:
                asked.append(self._ask_members(group, masters))
        await asyncio.gather(*asked)

    async def _ask_members(self, group: str, masters: Collection[BrokerFacts]) -> None:
        """Count the members of a group, each of which is connected to several brokers."""
        now_ms, clients = self._clock.now_ms(), set[str]()
        for facts in masters:
            if group not in facts.groups:
                continue
            self.request_count += 1
            try:
                members = await self._live.members(facts.place.address, group)
            except ReputError as error:
                _log.debug("members of %s: %s", group, error)
                return
            if members is not None:
                clients.update(member.client_id for member in members.connection_set)
        self._snapshot.put_members(group, Members(now_ms, len(clients)))

    # --- history --------------------------------------------------------------------------------

    def _note_history(self) -> None:
        """Add rates of brokers, and what groups have consumed."""
        consumed: dict[str, int] = {}
        consumed_ms: dict[str, int] = {}
        for facts in self._snapshot.masters():
            if facts.is_silent:
                continue
            name, time_ms = facts.place.name, facts.status_ms
            for series, key in (("in", "putTps"), ("out", "getTransferredTps")):
                rate = first_rate(facts.status, key)
                if rate is not None:
                    self._history.put((series, name), time_ms, rate)
            for (_, group), offsets in facts.consumed.items():
                consumed[group] = consumed.get(group, 0) + sum(offsets.values())
                consumed_ms[group] = facts.consumed_ms
        for group, total in consumed.items():
            self._history.put(("consumed", group), consumed_ms[group], total)
        for group, row in self._rows.groups().rows.items():
            if isinstance(row.lag, int):
                self._history.put(("lag", group), self._clock.now_ms(), row.lag)

    def _note_topic(self, topic: str) -> None:
        """Add the sum of the ends of a topic, once all of its brokers are known."""
        ends = [
            facts.ends.get(topic) for facts in self._snapshot.masters() if topic in facts.topics
        ]
        known = [end for end in ends if end is not None]
        if len(known) == len(ends):
            total = sum(end.stored_count for end in known)
            self._history.put(("end", topic), max(end.time_ms for end in known), total)


def first_rate(status: Any, key: str) -> float | None:
    """Return the rate of the last ten seconds of a runtime value; None if the value is invalid.

    Brokers write three rates: of ten seconds, a minute, and ten minutes.
    """
    with contextlib.suppress(ValueError, IndexError):
        text = status.get(key) or status.get(key.replace("Transferred", "Transfered"), "")
        return float(text.split()[0])
    return None
