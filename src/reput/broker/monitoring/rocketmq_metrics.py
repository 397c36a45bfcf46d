"""The metrics of a broker under RocketMQ's names, served on ``metricsPromExporterPort``.

Names, kinds and labels are those of a broker of 5.5.0 with ``metricsExporterType=PROM``, including
the units that its library appends. ``LEFT_OUT`` has the metrics that are missing here. The number
of series is bounded as in ``metrics``; values without a topic are in the series ``_other``.

Source: rocketmq 5.5.0 ``BrokerMetricsManager``, ``DefaultStoreMetricsManager``,
``RemotingMetricsManager``, ``PopMetricsManager``, ``ConsumerLagCalculator``; recorded in
tests/data/metrics.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from reput.broker.counters import stats
from reput.broker.loops import Loops
from reput.broker.monitoring import health, lags
from reput.broker.monitoring.metrics import OTHER, Names
from reput.broker.parts import Parts
from reput.broker.settings.exporter import COMMON_LABELS
from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.format import names
from reput.format.codes import LanguageCode, version_desc
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, HistogramFamily, Turns

LEFT_OUT: Mapping[str, str] = {
    name: reason
    for reason, listed in {
        "there are no such times here: kernels serve many requests together": """
            rocketmq_rpc_latency_milliseconds""",
        "sizes are counted by topic only as a sum: rocketmq_throughput_in_total": """
            rocketmq_message_size""",
        "not measured": """
            rocketmq_consumer_group_create_execution_time_milliseconds
            rocketmq_topic_create_execution_time_milliseconds
            rocketmq_delay_message_latency_seconds rocketmq_finish_message_latency_milliseconds
            rocketmq_timer_message_snapshot""",
        "the broker does not record what members have pulled and not consumed": """
            rocketmq_consumer_inflight_messages rocketmq_consumer_ready_messages
            rocketmq_consumer_queueing_latency_milliseconds""",
        "acks of pops are in memory, and due messages are delivered again at once": """
            rocketmq_pop_buffer_scan_time_consume_milliseconds rocketmq_pop_offset_buffer_size
            rocketmq_pop_revive_lag_milliseconds rocketmq_pop_revive_latency_milliseconds""",
    }.items()
    for name in listed.split()
}
"""Metrics of RocketMQ that are missing, each with the reason."""

PROCESSORS = (
    *("ack", "admin", "async_put", "client_manager", "consumer_manager", "heartbeat"),
    *("lite_pull", "pull", "query_message", "reply", "send", "transaction"),
)
"""Java's thread pools, whose queues ``rocketmq_processor_watermark`` measures."""

_SCOPE = "broker-meter"
_ON_DISK = ("local", "disk")
_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_LANGUAGES = {int(code): code.name.lower() for code in LanguageCode}
_HIGHER_VERSION = 612
_TYPES = frozenset({"normal", "fifo", "delay", "transaction", "priority"})
_TYPES_OF_SYSTEM = {
    names.SCHEDULE_TOPIC: "delay",
    names.TIMER_TOPIC: "delay",
    names.HALF_TOPIC: "transaction",
}

_OF_STORE = ("storage_type", "storage_medium")
_OF_GROUP = ("topic", "consumer_group", "is_retry", "is_system")
_OF_CONNECTION = ("consumer_group", "language", "version", "consume_mode", "is_system")


class RocketmqMeter:
    """Measures a broker. To be used only on the event loop. Arguments are those of BrokerMeter."""

    def __init__(
        self,
        parts: Parts,
        loops: Loops,
        connection_counts: Callable[[], Mapping[str, int]],
        names_max: int,
    ) -> None:
        self._parts = parts
        self._loops = loops
        self._started_ms = parts.clock.monotonic_ms()
        config = parts.settings.broker
        common = (
            dict(
                zip(
                    COMMON_LABELS,
                    (config.broker_cluster_name, "broker", config.broker_name, _SCOPE),
                    strict=True,
                )
            )
            | config.metric_labels
        )
        self._label_names, self._label_values = tuple(common), tuple(common.values())
        self._names_max = names_max
        self._topics = Names(names_max)
        self._pairs = Names(names_max)
        self._connections = Names(names_max)
        self._lagging: frozenset[lags.Pair] = frozenset()

    async def check_health(self) -> Health:
        """Return the health of the broker."""
        return health.check(self._parts, self._loops, self._started_ms)

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""
        return await metrics_server.gather(
            self._plain,
            self._storage,
            self._timer,
            self._transactions,
            self._clients,
            self._messages_in,
            self._messages_out,
            self._lags,
        )

    def _family(
        self, name: str, text: str, labels: tuple[str, ...] = (), *, is_counter: bool = False
    ) -> Family:
        return Family(name, text, (*self._label_names, *labels), is_counter)

    def _add(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        key = (*self._label_values, *labels)
        family.values[key] = family.values.get(key, 0.0) + value

    def _made(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        values: Iterable[tuple[tuple[str, ...], float]],
        *,
        is_counter: bool = False,
    ) -> Family:
        """Return a family with a few series."""
        family = self._family(name, text, labels, is_counter=is_counter)
        for series, value in values:
            self._add(family, series, value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Family:
        return self._made(name, text, (), [((), value)])

    # Broker, store, timer -----------------------------------------------------------------------

    async def _plain(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        config = parts.settings.broker
        yield self._gauge(
            "rocketmq_broker_permission", "2: write, 4: read.", config.broker_permission
        )
        yield self._gauge("rocketmq_topic_number", "Topics.", len(parts.topics.all()))
        yield self._gauge(
            "rocketmq_consumer_group_number",
            "Consumer groups.",
            len(parts.subscription_groups.all()),
        )
        yield self._gauge(
            "rocketmq_pop_checkpoint_buffer_size",
            "Checkpoints of pops that are not finished.",
            len(parts.pops.revive.checkpoints),
        )
        # Requests are not queued: only sends wait, for the disk or slaves.
        waiting = {"send": len(parts.pending_replies)}
        yield self._made(
            "rocketmq_processor_watermark",
            "Waiting requests.",
            ("processor",),
            (((name,), waiting.get(name, 0)) for name in PROCESSORS),
        )

    async def _storage(self, turns: Turns) -> AsyncIterator[Family]:
        store, log = self._parts.store, self._parts.store.log
        earliest_ms = log.store_timestamp_at(log.min_offset)
        age_ms = 0 if earliest_ms is None else max(0, self._parts.clock.now_ms() - earliest_ms)
        usage = await asyncio.to_thread(shutil.disk_usage, store.root)
        for name, text, value in (
            ("size_bytes", "Used bytes of the store's file system.", usage.used),
            ("flush_behind_bytes", "Bytes to flush.", log.written_offset - log.flushed_offset),
            (
                "dispatch_behind_bytes",
                "Bytes to dispatch.",
                log.written_offset - store.dispatcher.dispatched_offset,
            ),
            ("message_reserve_time_milliseconds", "Age of the first message.", age_ms),
        ):
            yield self._made(f"rocketmq_storage_{name}", text, _OF_STORE, [(_ON_DISK, value)])

    async def _timer(self, turns: Turns) -> AsyncIterator[Family]:
        parts, timers = self._parts, self._parts.timers
        now_ms = parts.clock.now_ms()
        lag_ms = max(0, now_ms - timers.check(now_ms).read_time_ms)
        taken_up = sum(parts.deliveries.stats.values(stats.TIMER_DEQUEUE_NUMS).values())
        put = parts.deliveries.stats.values(stats.TOPIC_PUT_NUMS).get(names.TIMER_TOPIC, 0)
        for name, text, value in (
            ("enqueue_lag", "Messages to take up.", timers.pending_count),
            ("enqueue_latency_milliseconds", "Delay of taking up.", self._enqueue_ms(now_ms)),
            ("dequeue_lag", "Messages that wait for their time.", len(timers)),
            ("dequeue_latency_milliseconds", "Delay of delivering.", lag_ms),
        ):
            yield self._made(f"rocketmq_timer_{name}", text, _OF_STORE, [(_ON_DISK, value)])
        other = (*_ON_DISK, OTHER)
        for name, text, value in (
            ("enqueue_total", "Messages put into the timer; not by topic.", put),
            ("dequeue_total", "Messages that it delivered; not by topic.", taken_up),
        ):
            yield self._made(
                f"rocketmq_timer_{name}",
                text,
                (*_OF_STORE, "topic"),
                [(other, value)],
                is_counter=True,
            )
        timing = self._family(
            "rocketmq_timing_messages", "Messages that wait for their time.", (*_OF_STORE, "topic")
        )
        for topic, count in timers.metrics.counts().items():
            await turns.rest()
            self._add(timing, (*_ON_DISK, *self._topics.label((topic,))), count)
        yield timing

    def _enqueue_ms(self, now_ms: int) -> int:
        """Return the age of the first message that the timer has not taken up."""
        store, pending_count = self._parts.store, self._parts.timers.pending_count
        if not pending_count:
            return 0
        first = store.max_offset(names.TIMER_TOPIC, 0) - pending_count
        stored_ms = store.store_time(names.TIMER_TOPIC, 0, first)
        return 0 if stored_ms is None else max(0, now_ms - stored_ms)

    async def _transactions(self, turns: Turns) -> AsyncIterator[Family]:
        transactions = self._parts.transactions
        for name, text, value, is_counter in (
            ("half_messages", "Undecided messages", transactions.waiting_count, False),
            ("commit_messages_total", "Committed messages", transactions.committed_count, True),
            (
                "rollback_messages_total",
                "Messages rolled back",
                transactions.rolled_back_count,
                True,
            ),
        ):
            yield self._made(
                f"rocketmq_{name}",
                f"{text}; not by topic.",
                ("topic",),
                [((OTHER,), value)],
                is_counter=is_counter,
            )

    # Clients ------------------------------------------------------------------------------------

    async def _clients(self, turns: Turns) -> AsyncIterator[Family]:
        groups = self._parts.groups
        consumers: Counter[tuple[str, ...]] = Counter()
        for group in groups.consumers():
            mode = _MODES.get(group.consume_type, "unknown")
            for member in list(group.members.values()):
                await turns.rest()
                client = _language(member.language), _version(member.version)
                consumers[group.name, *client, mode] += 1
        for _ in self._connections.keep(list(consumers)):
            await turns.rest()
        family = self._family(
            "rocketmq_consumer_connections",
            "Members of consumer groups.",
            (*_OF_CONNECTION, "protocol_type"),
        )
        for key, count in consumers.items():
            await turns.rest()
            labels = self._connections.label(key)
            self._add(family, (*labels, _flag(_is_system_group(key[0])), "remoting"), count)
        yield family
        producers: Counter[tuple[str, str]] = Counter()
        for members in groups.producer_groups().values():
            for member in members:
                await turns.rest()
                producers[_language(member.language), _version(member.version)] += 1
        yield self._made(
            "rocketmq_producer_connections",
            "Members of producer groups.",
            ("language", "version", "protocol_type"),
            (((*client, "remoting"), count) for client, count in producers.items()),
        )

    # Messages -----------------------------------------------------------------------------------

    async def _messages_in(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        for _ in parts.deliveries.stats.update():
            await turns.rest()
        for _ in self._topics.keep((name,) for name in list(parts.topics.all())):
            await turns.rest()
        for name, text, kind in (
            ("rocketmq_messages_in_total", "Messages stored.", stats.TOPIC_PUT_NUMS),
            ("rocketmq_throughput_in_total", "Bytes of their records.", stats.TOPIC_PUT_SIZE),
        ):
            labels = ("topic", "message_type", "is_system")
            family = self._family(name, text, labels, is_counter=True)
            for topic, value in parts.deliveries.stats.values(kind).items():
                await turns.rest()
                # Java counts neither: a message that is sent back was counted before.
                if not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
                    is_system = _flag(names.is_system_topic(topic))
                    label = self._topics.label((topic,))
                    self._add(family, (*label, self._message_type(topic), is_system), value)
            yield family

    def _message_type(self, topic: str) -> str:
        """Return the type of a topic's messages: that of the topic, since counters are by topic.

        Java: the type of each message.
        """
        known = self._parts.topics.get(topic)
        text = "" if known is None else dict(known.attributes).get(MESSAGE_TYPE, "").lower()
        return _TYPES_OF_SYSTEM.get(topic, text if text in _TYPES else "normal")

    async def _messages_out(self, turns: Turns) -> AsyncIterator[Family]:
        counters = self._parts.deliveries.stats
        got = counters.values(stats.GROUP_GET_NUMS)
        await turns.rest()
        for _ in self._pairs.keep(map(_pair, got)):
            await turns.rest()
        for name, text, values in (
            ("rocketmq_messages_out_total", "Messages delivered.", got),
            (
                "rocketmq_throughput_out_total",
                "Bytes of their records.",
                counters.values(stats.GROUP_GET_SIZE),
            ),
        ):
            family = self._family(name, text, _OF_GROUP, is_counter=True)
            for key, value in values.items():
                await turns.rest()
                self._add(family, self._group_labels(_pair(key), self._pairs), value)
            yield family
        dead = self._family(
            "rocketmq_send_to_dlq_messages_total",
            "Messages that became dead letters.",
            ("topic", "consumer_group", "is_system"),
            is_counter=True,
        )
        for pair, value in counters.dead_letters().items():
            await turns.rest()
            self._add(dead, (*self._pairs.label(pair), _is_system(pair)), value)
        yield dead
        revived = self._family(
            "rocketmq_pop_revive_in_message_total",
            "Checkpoints and acknowledgements of popped messages.",
            ("topic", "consumer_group", "revive_message_type", "put_status"),
            is_counter=True,
        )
        for kind, name in (("CK", stats.GROUP_CK_NUMS), ("ACK", stats.GROUP_ACK_NUMS)):
            for key, value in counters.values(name).items():
                await turns.rest()
                self._add(revived, (*self._pairs.label(_pair(key)), kind, "PUT_OK"), value)
        yield revived

    def _group_labels(self, pair: lags.Pair, named: Names) -> tuple[str, ...]:
        return (*named.label(pair), _is_retry(pair), _is_system(pair))

    async def _lags(self, turns: Turns) -> AsyncIterator[Family]:
        current = await lags.measure(self._parts, self._names_max, self._lagging, turns)
        self._lagging = frozenset(current.messages)
        messages = self._family(
            "rocketmq_consumer_lag_messages", "Messages after the consumer offset.", _OF_GROUP
        )
        latency = self._family(
            "rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest of them.", _OF_GROUP
        )
        for pair, count in current.messages.items():
            await turns.rest()
            if pair[1] in names.GROUPS_OF_BROKERS:
                continue  # these are no consumers, and their topics have no other use
            labels = (*pair, _is_retry(pair), _is_system(pair))
            self._add(messages, labels, count)
            if pair in current.seconds:
                self._add(latency, labels, current.seconds[pair] * 1000)
        if current.other_messages is not None:
            self._add(messages, (OTHER, OTHER, "false", "false"), current.other_messages)
        yield messages
        yield latency


def _pair(key: str) -> lags.Pair:
    topic, _, group = key.rpartition("@")
    return topic, group


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _is_retry(pair: lags.Pair) -> str:
    return _flag(pair[0].startswith(names.RETRY_PREFIX))


def _is_system(pair: lags.Pair) -> str:
    return _flag(names.is_system_topic(pair[0]) or _is_system_group(pair[1]))


def _is_system_group(group: str) -> bool:
    return group.startswith(names.SYSTEM_GROUP_PREFIX)


def _language(code: int) -> str:
    return _LANGUAGES.get(code, "unknown")


def _version(number: int) -> str:
    """Return Java's name of a version; the number of names is bounded."""
    if number >= _HIGHER_VERSION:
        return "higher_version"
    return version_desc(number).lower() if number >= 0 else "unknown"
