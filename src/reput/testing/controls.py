"""What a test does to its brokers, on their event loop: time, waits, faults, restarts.

``LocalBroker`` calls it from other threads.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

from reput.broker.parts import Parts
from reput.broker.pop.retry_topics import PopRetries
from reput.broker.server import Broker
from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.broker.topic.topics import READ_WRITE
from reput.client.message import ReceivedMessage, received
from reput.errors import InvalidOption
from reput.format import names
from reput.namesrv.server import NameServer
from reput.remoting.time_slices import run_whole
from reput.store.tables.config_tables import TopicConfig
from reput.testing.faults import Faults
from reput.testing.shifted_clock import ShiftedClock

ADVANCE_MS_MAX = 400 * 86_400_000
"""Maximum of an advance, in ms: 400 days."""
_ADVANCE_TIMEOUT_S = 60
_READ_COUNT = 1_000
_LOOK_S = 0.01
_POP_RETRIES = PopRetries(is_v2=True)
_BROADCASTING = "BROADCASTING"


class Controls:
    """The controls of a name server and its brokers.

    Args:
        name_server: The name server, started.
        brokers: The brokers, started; they share the clock and the faults.
        clock: The clock of the brokers.
        faults: The faults of the brokers.
        topics: Topics that ``clear`` creates again, with their number of queues.
    """

    def __init__(
        self,
        name_server: NameServer,
        brokers: Iterable[Broker],
        clock: ShiftedClock,
        faults: Faults,
        topics: Mapping[str, int],
    ) -> None:
        self.clock = clock
        self.faults = faults
        self._name_server = name_server
        self._brokers = list(brokers)
        self._topics = topics
        self._built_in = {
            broker: (
                frozenset(broker.parts.topics.all()),
                frozenset(broker.parts.subscription_groups.all()),
            )
            for broker in self._brokers
        }
        """Broker -> names of topics and groups that ``clear`` keeps."""
        self._arrived = asyncio.Event()
        self._advancing = asyncio.Lock()
        for broker in self._brokers:
            broker.on_open = lambda broker=broker: self._opened(broker)  # type: ignore[misc]
            self._opened(broker)

    def _opened(self, broker: Broker) -> None:
        broker.store.add_listener(lambda *_: self._arrived.set())
        broker.store.retention.ages.jump_level = logging.DEBUG
        self._arrived.set()

    async def until_open(self) -> None:
        """Wait while a broker reopens its store.

        Raises:
            RuntimeError: It has failed.
        """
        for broker in self._brokers:
            while not broker.is_open:
                if broker.failure is not None:
                    raise RuntimeError(f"the broker could not reopen its store: {broker.failure}")
                await asyncio.sleep(_LOOK_S)

    @property
    def _parts(self) -> list[Parts]:
        """The current parts of each broker: others after a restart or a change of the role."""
        return [broker.parts for broker in self._brokers]

    # Topics -----------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, queue_count: int, message_type: str | None = None
    ) -> None:
        """Create a topic on all brokers, or change its number of queues there.

        Raises:
            RequestRefused: The name is not allowed.
        """
        for parts in self._parts:
            parts.topics.check_name(name)
            self._put_topic(parts, name, queue_count, message_type)
            await parts.registration.register()

    async def create_topics(self) -> None:
        """Create the topics of the start, and register the brokers."""
        for parts in self._parts:
            for topic, queue_count in self._topics.items():
                self._put_topic(parts, topic, queue_count)
            await parts.registration.register()

    @staticmethod
    def _put_topic(
        parts: Parts, name: str, queue_count: int, message_type: str | None = None
    ) -> None:
        topic = TopicConfig(
            name=name,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            perm=READ_WRITE,
            attributes=() if message_type is None else ((MESSAGE_TYPE, message_type),),
        )
        parts.topics.put(topic, parts.clock.now_ms())

    async def clear(self) -> None:
        """Delete all topics and groups created since the start, all offsets and all faults.

        Delayed messages that wait are not delivered any more.
        """
        self.faults.clear()
        for broker in self._brokers:
            parts = broker.parts
            now_ms = parts.clock.now_ms()
            parts.delayed.skip_all()
            parts.timers.skip_all()
            topics, groups = self._built_in[broker]
            for topic in {*parts.topics.all(), *parts.store.queues.topics()} - topics:
                if names.is_system_topic(topic):
                    continue
                parts.topics.delete(topic, now_ms)
                parts.store.delete_topic(topic)
                parts.deliveries.consumer_offsets.delete(topic=topic)
                run_whole(parts.deliveries.stats.forget_topic(topic))
                self._name_server.routes.delete_topic(topic)
            for group in parts.subscription_groups.all().keys() - groups:
                parts.subscription_groups.delete(group, now_ms)
                parts.deliveries.consumer_offsets.delete(group=group)
                run_whole(parts.deliveries.stats.forget_group(group))
        await self.create_topics()

    # Time -------------------------------------------------------------------------------------

    async def advance(self, duration_ms: int) -> None:
        """Advance the brokers' clock, and deliver everything that becomes due, in order of time.

        If a message's time is within the advance and the timer rounds it up to a later one, the
        clock continues to that, which is less than the timer's precision away: a second by default.
        Producers of undecided transactions are asked once, at the end. No log file expires.

        Raises:
            InvalidOption: The duration is not allowed.
            TimeoutError: There is too much to deliver.
        """
        if not 0 <= duration_ms <= ADVANCE_MS_MAX:
            raise InvalidOption("duration_ms", duration_ms, f"0 to {ADVANCE_MS_MAX}")
        async with self._advancing, asyncio.timeout(_ADVANCE_TIMEOUT_S):
            end_ms = self.clock.now_ms() + duration_ms
            while True:
                await self.until_open()
                for broker in self._brokers:
                    await broker.loops.deliver_due(asks_producers=False)
                now_ms = self.clock.now_ms()
                times = (broker.loops.next_due_ms(now_ms, end_ms) for broker in self._brokers)
                due_ms = min((time_ms for time_ms in times if time_ms is not None), default=None)
                if due_ms is None:
                    break
                self.clock.advance(due_ms - now_ms)
            self.clock.advance(max(0, end_ms - self.clock.now_ms()))
            for broker in self._brokers:
                await broker.loops.deliver_due(asks_producers=True)

    # Waiting ----------------------------------------------------------------------------------

    async def messages(self, topic: str, at_least: int, timeout_ms: int) -> list[ReceivedMessage]:
        """Return the messages of a topic on all brokers, in order of arrival.

        Args:
            topic: The topic; an unknown one is empty.
            at_least: Wait for this number of messages.
            timeout_ms: Maximum time to wait, in ms.

        Raises:
            TimeoutError: There are fewer; the text has their number.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            await self.until_open()
            self._arrived.clear()
            messages = self._read(topic)
            if len(messages) >= at_least:
                return messages
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                text = f"{topic} has {len(messages)} messages after {timeout_ms} ms"
                raise TimeoutError(f"{text}, not {at_least}") from None

    def _read(self, topic: str) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for parts in self._parts:
            store, name = parts.store, parts.settings.broker.broker_name
            of_broker: list[ReceivedMessage] = []
            for queue_id, queue in store.queues.of_topic(topic).items():
                queue_offset = queue.min_offset
                while queue_offset < queue.max_offset:
                    result = store.get(topic, queue_id, queue_offset, _READ_COUNT)
                    if result.next_offset <= queue_offset:
                        break
                    of_broker += received(bytes(result.data), name)
                    queue_offset = result.next_offset
            messages += sorted(of_broker, key=lambda message: message.physical_offset)
        if len(self._brokers) > 1:
            messages.sort(key=lambda message: message.stored.store_timestamp)
        return messages

    async def until_consumed(self, group: str, timeout_ms: int) -> None:
        """Wait until a group has consumed all messages of its topics, and committed that.

        Messages that wait for a retry are not counted before their time.

        Raises:
            TimeoutError: It has not; the text names the first queue with messages left.
            InvalidOption: The group is broadcasting: its members keep their offsets.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            await self.until_open()
            obstacle = self._obstacle(group)
            if obstacle is None:
                return
            if asyncio.get_running_loop().time() >= deadline:
                raise TimeoutError(f"group {group} after {timeout_ms} ms: {obstacle}")
            await asyncio.sleep(_LOOK_S)

    def _obstacle(self, group: str) -> str | None:
        """Return why a group has not consumed everything; None if it has."""
        is_known = False
        for parts in self._parts:
            topics = self._topics_of(parts, group)
            is_known = is_known or bool(topics)
            if parts.pops.revive.checkpoints.has_open(group):
                return "its members hold popped messages"
            for topic in sorted(topics):
                for queue_id, queue in parts.store.queues.of_topic(topic).items():
                    # With no popped messages held, all that were popped are consumed.
                    consumed = parts.pops.offsets.find(topic, group, queue_id)
                    place = f"queue {queue_id} of {topic} on {parts.settings.broker.broker_name}"
                    if consumed is None and queue.max_offset > 0:
                        return f"it has no offset in {place}, which ends at {queue.max_offset}"
                    if consumed is not None and consumed < queue.max_offset:
                        return f"it is at {consumed} of {queue.max_offset} in {place}"
        return None if is_known else "it has no members and no offsets"

    @staticmethod
    def _topics_of(parts: Parts, group: str) -> set[str]:
        """Return the topics that a group reads: those of its members, and those with offsets."""
        readers = parts.deliveries.consumer_offsets.readers()
        topics = {topic for topic, reader in readers if reader == group}
        members = parts.groups.consumer(group)
        if members is not None:
            if members.message_model == _BROADCASTING:
                allowed = "one that is not broadcasting: members of such a group keep their offsets"
                raise InvalidOption("group", group, allowed)
            topics |= members.subscriptions.keys()
        if topics:
            topics |= {
                retries for topic in topics for retries in _POP_RETRIES.sources(topic, group)
            }
            topics.add(names.retry_topic(group))
        return topics

    # Faults -----------------------------------------------------------------------------------

    async def restart(self) -> None:
        """Stop all brokers, and start them again at the same ports, with their messages.

        Raises:
            RuntimeError: A broker could not start again.
        """
        for broker in self._brokers:
            await self.until_open()
            await broker.reopen()
        await self.until_open()
        for parts in self._parts:
            with contextlib.suppress(OSError):
                await parts.registration.register()
