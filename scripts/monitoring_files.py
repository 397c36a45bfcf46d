"""Write ``ops/grafana`` and ``ops/prometheus``: the boards and alert rules for brokers.

    python scripts/monitoring_files.py

Boards and rules are listed here, and nowhere else: a test compares the files with this list, and
others check that each metric and label exists, and that Prometheus returns series for each panel.

Most expressions have RocketMQ's names, which Java's brokers export from 5.1 on, and ours with
``metricsExporterType=PROM``. Panels with ``only`` exist on one side. Ours, ``reput_...``, come from
another port: there ``reput_info`` has the names of cluster and broker.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

OPS = Path(__file__).parents[1] / "ops"
RULES_FILE = OPS / "prometheus" / "rules.yml"
SCHEMA = 39
"""Version of Grafana's boards, that of Grafana 11; later ones convert it."""
WIDTH, HEIGHT = 24, 8

BROKER = 'cluster=~"$cluster",node_id=~"$broker"'
OWN = (
    "on (instance, job) group_left (cluster, broker) "
    'reput_info{cluster=~"$cluster",broker=~"$broker"}'
)
IN = f'rocketmq_messages_in_total{{{BROKER},is_system="false"}}'
OUT = f'rocketmq_messages_out_total{{{BROKER},is_system="false"}}'
LAG = f'rocketmq_consumer_lag_messages{{{BROKER},is_system="false"}}'
AGE = f'rocketmq_consumer_lag_latency_milliseconds{{{BROKER},is_system="false"}}'
RATE = "[$__rate_interval]"


def own(expression: str) -> str:
    """Return an expression of our own names for the chosen clusters and brokers."""
    return f"{expression} * {OWN}"


@dataclass(frozen=True)
class Panel:
    """A panel; ``only`` is ``java`` or ``reput`` if the other one does not have its metrics."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expressions, each with the template of its legend."""
    width: int = 8
    only: str = ""
    is_number: bool = False
    """True for the current value instead of a curve."""
    text: str = ""


@dataclass(frozen=True)
class Variable:
    """A list to choose from, with the metric and label that its values come from."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True)
class Board:
    """A board; its panels are in rows of 24 columns."""

    uid: str
    title: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Rule:
    """An alert rule; ``for_minutes`` is how long the expression must have had a value."""

    name: str
    expression: str
    for_minutes: int
    severity: str
    summary: str
    advice: str


def _curve(title: str, unit: str, expression: str, legend: str, **more: Any) -> Panel:
    return Panel(title, unit, ((expression, legend),), **more)


def _number(title: str, unit: str, expression: str, **more: Any) -> Panel:
    return Panel(title, unit, ((expression, ""),), width=4, is_number=True, **more)


CLUSTER = Variable("cluster", "rocketmq_broker_permission", "cluster")
BROKERS = Variable("broker", 'rocketmq_broker_permission{cluster=~"$cluster"}', "node_id")
TOPIC = 'topic=~"$topic"'
GROUP = 'consumer_group=~"$group"'
BY_BROKER = "{{cluster}} {{node_id}}"
BY_OWN = "{{cluster}} {{broker}}"
BY_GROUP = "{{consumer_group}} {{topic}}"


def _sum(labels: str, expression: str) -> str:
    return f"sum by ({labels}) ({expression})"


def _per_second(labels: str, metric: str) -> str:
    return _sum(labels, f"rate({metric}{RATE})")


def _of_99_percent(labels: str, rate: str) -> str:
    return f"histogram_quantile(0.99, {_sum(f'le, {labels}', rate)})"


def _with(series: str, matcher: str) -> str:
    return series.replace("{", f"{{{matcher},", 1)


OVERVIEW = Board(
    "rocketmq-overview",
    "RocketMQ overview",
    (CLUSTER, BROKERS),
    (
        _number("Brokers", "none", f"count(rocketmq_broker_permission{{{BROKER}}})"),
        _number("Messages in", "cps", f"sum(rate({IN}{RATE}))"),
        _number("Messages out", "cps", f"sum(rate({OUT}{RATE}))"),
        _number("Consumer lag", "none", f"sum({LAG})"),
        _number("Members of groups", "none", f"sum(rocketmq_consumer_connections{{{BROKER}}})"),
        _number("Healthy", "percentunit", f"avg({own('reput_healthy')})", only="reput"),
        _curve("Messages in", "cps", _per_second("cluster, node_id", IN), BY_BROKER),
        _curve("Messages out", "cps", _per_second("cluster, node_id", OUT), BY_BROKER),
        _curve(
            "Bytes in",
            "Bps",
            _per_second("cluster, node_id", f"rocketmq_throughput_in_total{{{BROKER}}}"),
            BY_BROKER,
        ),
        _curve(
            "Ten groups with most lag",
            "none",
            f"topk(10, {_sum('consumer_group, topic', LAG)})",
            BY_GROUP,
        ),
        _curve(
            "Ten groups with the oldest messages",
            "ms",
            f"topk(10, max by (consumer_group, topic) ({AGE}))",
            BY_GROUP,
        ),
        _curve(
            "Dead letters",
            "cps",
            _per_second(
                "consumer_group, topic", f"rocketmq_send_to_dlq_messages_total{{{BROKER}}}"
            ),
            BY_GROUP,
        ),
        _curve(
            "Clients by version",
            "none",
            _sum("language, version", f"rocketmq_producer_connections{{{BROKER}}}"),
            "producers {{language}} {{version}}",
            width=12,
        ),
        _curve(
            "Registered brokers of a name server",
            "none",
            "reput_namesrv_brokers",
            "{{instance}}",
            width=12,
            only="reput",
        ),
    ),
)

ONE_BROKER = Board(
    "rocketmq-broker",
    "RocketMQ brokers",
    (CLUSTER, BROKERS),
    (
        _number("Topics", "none", f"sum(rocketmq_topic_number{{{BROKER}}})"),
        _number("Groups", "none", f"sum(rocketmq_consumer_group_number{{{BROKER}}})"),
        _number(
            "Permission",
            "none",
            f"min(rocketmq_broker_permission{{{BROKER}}})",
            text="2: write, 4: read, 6: both.",
        ),
        _number("Producers", "none", f"sum(rocketmq_producer_connections{{{BROKER}}})"),
        _number("Consumers", "none", f"sum(rocketmq_consumer_connections{{{BROKER}}})"),
        _number(
            "Accepts messages", "bool_yes_no", f"min({own('reput_store_writable')})", only="reput"
        ),
        _curve(
            "Waiting requests",
            "none",
            f"rocketmq_processor_watermark{{{BROKER}}}",
            BY_BROKER + " {{processor}}",
            text="Requests in the queue of a thread pool; of reput, sends that wait for the disk "
            "or slaves.",
        ),
        _curve(
            "Bytes to flush",
            "bytes",
            f"rocketmq_storage_flush_behind_bytes{{{BROKER}}}",
            BY_BROKER,
        ),
        _curve(
            "Bytes to dispatch",
            "bytes",
            f"rocketmq_storage_dispatch_behind_bytes{{{BROKER}}}",
            BY_BROKER,
        ),
        _curve(
            "Time of 99 % of requests",
            "ms",
            _of_99_percent(
                "request_code",
                f"rate(rocketmq_rpc_latency_milliseconds_bucket{{{BROKER},"
                f'is_long_polling="false"}}{RATE})',
            ),
            "{{request_code}}",
            only="java",
        ),
        _curve(
            "Time of 99 % of sends",
            "s",
            _of_99_percent(
                "cluster, broker", own(f"rate(reput_put_duration_seconds_bucket{RATE})")
            ),
            BY_OWN,
            only="reput",
        ),
        _curve(
            "Time of 99 % of syncs of the log",
            "s",
            _of_99_percent("cluster, broker", own(f"rate(reput_log_sync_seconds_bucket{RATE})")),
            BY_OWN,
            only="reput",
        ),
        _curve(
            "Time of 99 % of commits of pool buffers",
            "s",
            _of_99_percent("cluster, broker", own(f"rate(reput_log_commit_seconds_bucket{RATE})")),
            BY_OWN,
            only="reput",
        ),
        _curve(
            "Sends refused after a put that stalled",
            "ops",
            own(f"rate(reput_sends_refused_busy_total{RATE})"),
            BY_OWN,
            only="reput",
        ),
        _curve(
            "Used share of disks",
            "percentunit",
            own("reput_disk_used_ratio"),
            BY_OWN + " {{folder}}",
            only="reput",
        ),
        _curve(
            "Connections",
            "none",
            own("reput_connections"),
            BY_OWN + " {{port}}",
            only="reput",
        ),
        _curve(
            "Processor cores",
            "none",
            own(f"rate(process_cpu_seconds_total{RATE})"),
            BY_OWN,
            only="reput",
        ),
        _curve("Memory", "bytes", own("process_resident_memory_bytes"), BY_OWN, only="reput"),
        _curve(
            "Refused messages",
            "cps",
            own(f"rate(reput_put_failed_total{RATE})"),
            BY_OWN,
            only="reput",
        ),
        _curve(
            "Requests over a limit",
            "cps",
            f"topk(10, {own(f'rate(reput_limit_refusals_total{RATE})')})",
            BY_OWN + " {{limit}}",
            only="reput",
        ),
        _curve(
            "Time since a turn of each background loop",
            "s",
            own("reput_loop_silent_seconds"),
            BY_OWN + " {{loop}}",
            only="reput",
        ),
        _curve(
            "Pulls answered by the fast path",
            "percentunit",
            "("
            + _sum("instance, job", f'rate(reput_pull_frames_total{{path="kernel"}}{RATE})')
            + " / "
            + _sum("instance, job", f"rate(reput_pull_frames_total{RATE})")
            + f") * {OWN}",
            BY_OWN,
            width=12,
            only="reput",
        ),
        _curve(
            "Sends on the fast path",
            "percentunit",
            "("
            + _sum("instance, job", f'rate(reput_send_frames_total{{path="kernel"}}{RATE})')
            + " / "
            + _sum("instance, job", f"rate(reput_send_frames_total{RATE})")
            + f") * {OWN}",
            BY_OWN,
            width=12,
            only="reput",
        ),
    ),
)

TOPIC_BOARD = Board(
    "rocketmq-topic",
    "RocketMQ topics",
    (
        CLUSTER,
        BROKERS,
        Variable("topic", f"rocketmq_messages_in_total{{{BROKER}}}", "topic"),
    ),
    (
        _curve("Messages in", "cps", _per_second("topic", _with(IN, TOPIC)), "{{topic}}"),
        _curve(
            "Bytes in",
            "Bps",
            _per_second("topic", f"rocketmq_throughput_in_total{{{BROKER},{TOPIC}}}"),
            "{{topic}}",
        ),
        _curve(
            "Mean size of a record",
            "bytes",
            _per_second("topic", f"rocketmq_throughput_in_total{{{BROKER},{TOPIC}}}")
            + " / "
            + _per_second("topic", f"rocketmq_messages_in_total{{{BROKER},{TOPIC}}}"),
            "{{topic}}",
        ),
        _curve(
            "Messages out by group",
            "cps",
            _per_second("topic, consumer_group", _with(OUT, TOPIC)),
            BY_GROUP,
        ),
        _curve(
            "Bytes out by group",
            "Bps",
            _per_second(
                "topic, consumer_group", f"rocketmq_throughput_out_total{{{BROKER},{TOPIC}}}"
            ),
            BY_GROUP,
        ),
        _curve(
            "Consumer lag by group",
            "none",
            _sum("topic, consumer_group", _with(LAG, TOPIC)),
            BY_GROUP,
        ),
        _curve(
            "Messages in by broker",
            "cps",
            _per_second("topic, cluster, node_id", _with(IN, TOPIC)),
            "{{topic}} " + BY_BROKER,
        ),
        _curve(
            "Messages by type",
            "cps",
            _per_second("message_type", _with(IN, TOPIC)),
            "{{message_type}}",
        ),
        _curve(
            "Size of 99 % of messages",
            "bytes",
            _of_99_percent(
                "topic", f"rate(rocketmq_message_size_bucket{{{BROKER},{TOPIC}}}{RATE})"
            ),
            "{{topic}}",
            only="java",
        ),
        _curve(
            "Messages that wait for their time",
            "none",
            _sum("topic", f"rocketmq_timing_messages{{{BROKER},{TOPIC}}}"),
            "{{topic}}",
            width=12,
        ),
        _curve(
            "Dead letters",
            "cps",
            _per_second(
                "topic, consumer_group", f"rocketmq_send_to_dlq_messages_total{{{BROKER},{TOPIC}}}"
            ),
            BY_GROUP,
            width=12,
        ),
    ),
)

GROUP_BOARD = Board(
    "rocketmq-group",
    "RocketMQ consumer groups",
    (
        CLUSTER,
        BROKERS,
        Variable("group", f"rocketmq_messages_out_total{{{BROKER}}}", "consumer_group"),
    ),
    (
        _number("Lag", "none", f"sum({_with(LAG, GROUP)})"),
        _number("Age of the oldest message", "ms", f"max({_with(AGE, GROUP)})"),
        _number("Messages out", "cps", f"sum(rate({_with(OUT, GROUP)}{RATE}))"),
        _number("Members", "none", f"sum(rocketmq_consumer_connections{{{BROKER},{GROUP}}})"),
        _number(
            "Dead letters in an hour",
            "none",
            f"sum(increase(rocketmq_send_to_dlq_messages_total{{{BROKER},{GROUP}}}[1h]))",
        ),
        _number(
            "Lag of retries",
            "none",
            f'sum(rocketmq_consumer_lag_messages{{{BROKER},{GROUP},is_retry="true"}}) or vector(0)',
        ),
        _curve("Consumer lag", "none", _sum("consumer_group, topic", _with(LAG, GROUP)), BY_GROUP),
        _curve(
            "Age of the oldest message",
            "ms",
            f"max by (consumer_group, topic) ({_with(AGE, GROUP)})",
            BY_GROUP,
        ),
        _curve(
            "Messages out",
            "cps",
            _per_second("consumer_group, topic", _with(OUT, GROUP)),
            BY_GROUP,
        ),
        _curve(
            "Lag by broker",
            "none",
            _sum("consumer_group, cluster, node_id", _with(LAG, GROUP)),
            "{{consumer_group}} " + BY_BROKER,
        ),
        _curve(
            "Members by version and mode",
            "none",
            _sum(
                "consumer_group, language, version, consume_mode",
                f"rocketmq_consumer_connections{{{BROKER},{GROUP}}}",
            ),
            "{{consumer_group}} {{language}} {{version}} {{consume_mode}}",
        ),
        _curve(
            "Dead letters",
            "cps",
            _per_second(
                "consumer_group, topic", f"rocketmq_send_to_dlq_messages_total{{{BROKER},{GROUP}}}"
            ),
            BY_GROUP,
        ),
        _curve(
            "Messages that were pulled and not consumed",
            "none",
            _sum(
                "consumer_group, topic",
                f"rocketmq_consumer_inflight_messages{{{BROKER},{GROUP}}}",
            ),
            BY_GROUP,
            width=12,
            only="java",
        ),
        _curve(
            "Checkpoints and acknowledgements of pops",
            "cps",
            _per_second(
                "consumer_group, topic, revive_message_type",
                f"rocketmq_pop_revive_in_message_total{{{BROKER},{GROUP}}}",
            ),
            BY_GROUP + " {{revive_message_type}}",
            width=12,
        ),
    ),
)

STORE = Board(
    "rocketmq-store",
    "RocketMQ stores",
    (CLUSTER, BROKERS),
    (
        _curve(
            "Used bytes of the file system",
            "bytes",
            f"rocketmq_storage_size_bytes{{{BROKER}}}",
            BY_BROKER,
        ),
        _curve(
            "Age of the first message",
            "ms",
            f"rocketmq_storage_message_reserve_time_milliseconds{{{BROKER}}}",
            BY_BROKER,
        ),
        Panel(
            "Bytes to flush and to dispatch",
            "bytes",
            (
                (f"rocketmq_storage_flush_behind_bytes{{{BROKER}}}", BY_BROKER + " flush"),
                (f"rocketmq_storage_dispatch_behind_bytes{{{BROKER}}}", BY_BROKER + " dispatch"),
            ),
        ),
        Panel(
            "Timer: waiting messages",
            "none",
            (
                (f"rocketmq_timer_enqueue_lag{{{BROKER}}}", BY_BROKER + " not taken up"),
                (f"rocketmq_timer_dequeue_lag{{{BROKER}}}", BY_BROKER + " taken up"),
            ),
        ),
        Panel(
            "Timer: delay",
            "ms",
            (
                (
                    f"rocketmq_timer_enqueue_latency_milliseconds{{{BROKER}}}",
                    BY_BROKER + " taking up",
                ),
                (
                    f"rocketmq_timer_dequeue_latency_milliseconds{{{BROKER}}}",
                    BY_BROKER + " delivering",
                ),
            ),
        ),
        Panel(
            "Timer: messages in and out",
            "cps",
            (
                (
                    _per_second("cluster, node_id", f"rocketmq_timer_enqueue_total{{{BROKER}}}"),
                    BY_BROKER + " in",
                ),
                (
                    _per_second("cluster, node_id", f"rocketmq_timer_dequeue_total{{{BROKER}}}"),
                    BY_BROKER + " out",
                ),
            ),
        ),
        _curve(
            "Undecided transactions",
            "none",
            _sum("cluster, node_id", f"rocketmq_half_messages{{{BROKER}}}"),
            BY_BROKER,
        ),
        Panel(
            "Decided transactions",
            "cps",
            (
                (
                    _per_second("cluster, node_id", f"rocketmq_commit_messages_total{{{BROKER}}}"),
                    BY_BROKER + " committed",
                ),
                (
                    _per_second(
                        "cluster, node_id", f"rocketmq_rollback_messages_total{{{BROKER}}}"
                    ),
                    BY_BROKER + " rolled back",
                ),
            ),
        ),
        _curve(
            "Checkpoints of pops that are not finished",
            "none",
            f"rocketmq_pop_checkpoint_buffer_size{{{BROKER}}}",
            BY_BROKER,
        ),
        _curve(
            "Physical offsets",
            "bytes",
            own("reput_store_offset_bytes"),
            BY_OWN + " {{kind}}",
            only="reput",
        ),
        _curve(
            "Slaves: bytes that they lack",
            "bytes",
            own("reput_replica_lag_bytes") + " or " + own("reput_slave_lag_bytes"),
            BY_OWN + " {{replica}}",
            only="slave",
            text="Of a master, by slave; and of a slave itself.",
        ),
        _curve(
            "Stored records that were skipped",
            "none",
            own("increase(reput_records_passed_over_total[1h])"),
            BY_OWN + " {{loop}}",
            only="reput",
        ),
    ),
)

_BY_GROUP_NAME = "{{cluster}} {{broker_name}}"

CONTROLLER = Board(
    "reput-controller",
    "Replica groups of reput's controllers",
    (),
    (
        _number("Leads", "bool_yes_no", "max(reput_controller_leading)", only="controller"),
        _number("Groups", "none", "max(reput_controller_groups)", only="controller"),
        _number(
            "Groups without a master",
            "none",
            "max(reput_controller_groups_without_master)",
            only="controller",
        ),
        _number("Healthy", "percentunit", "avg(reput_healthy)", only="controller"),
        _number("Connections", "none", "sum(reput_connections)", only="controller"),
        _number(
            "Durable changes",
            "none",
            "sum(increase(reput_controller_changes_total[1h]))",
            only="controller",
            text="Of the last hour.",
        ),
        _curve(
            "Replicas in sync",
            "none",
            "max by (cluster, broker_name) (reput_controller_in_sync_replicas)",
            _BY_GROUP_NAME,
            only="controller",
        ),
        _curve(
            "Living brokers",
            "none",
            "max by (cluster, broker_name) (reput_controller_active_brokers)",
            _BY_GROUP_NAME,
            only="controller",
        ),
        _curve(
            "Epoch of the master",
            "none",
            "max by (cluster, broker_name) (reput_controller_master_epoch)",
            _BY_GROUP_NAME,
            only="controller",
        ),
        _curve(
            "Elections",
            "none",
            _sum("result", "increase(reput_controller_elections_total[5m])"),
            "{{result}}",
            width=24,
            only="controller",
            text="In five minutes.",
        ),
    ),
)

BOARDS = {
    "overview": OVERVIEW,
    "broker": ONE_BROKER,
    "topic": TOPIC_BOARD,
    "group": GROUP_BOARD,
    "store": STORE,
    "controller": CONTROLLER,
}
"""Boards by the name of their file."""

# --- rules --------------------------------------------------------------------------------------

_LAG_BY_GROUP = (
    'sum by (cluster, topic, consumer_group) (rocketmq_consumer_lag_messages{is_system="false"})'
)
_GROWTH_BY_GROUP = (
    "sum by (cluster, topic, consumer_group) "
    '(deriv(rocketmq_consumer_lag_messages{is_system="false",topic!="_other"}[10m]))'
)
_OWN_NAMES = "* on (instance, job) group_left (cluster, broker) reput_info"
_ON = "{{ $labels.cluster }}/{{ $labels.node_id }}"
_AT = "{{ $labels.instance }}"
_OF = "{{ $labels.consumer_group }} on {{ $labels.topic }}"
_GROUP_AT = "{{ $labels.cluster }}/{{ $labels.broker_name }}"
_SET = "{{ $labels.cluster }}/{{ $labels.broker_set }}"
_EXPORTED = "{{ $labels.cluster }}/{{ $labels.broker }}"
_EXPORTED_GROUP = "{{ $labels.group }} on {{ $labels.topic }}"

GROUPS = {
    "rocketmq-brokers": (
        Rule(
            "RocketmqBrokerSilent",
            "count by (cluster, node_id) (last_over_time(rocketmq_broker_permission[6h])) "
            "unless count by (cluster, node_id) (rocketmq_broker_permission)",
            2,
            "critical",
            f"Broker {_ON} has no metrics any more",
            "It has stopped, or cannot be scraped. The alert ends 6 hours after a planned removal.",
        ),
        Rule(
            "RocketmqBrokerReadOnly",
            "rocketmq_broker_permission == 4",
            60,
            "warning",
            f"Broker {_ON} has taken no messages for an hour",
            "If its draining is over, stop it, or give it permission to write again.",
        ),
        Rule(
            "RocketmqSendsWait",
            'rocketmq_processor_watermark{processor="send"} > 5000',
            5,
            "warning",
            f"More than 5000 sends wait on {_ON}",
            "The disk, or a slave that sends wait for, is slower than the producers.",
        ),
        Rule(
            "RocketmqFlushBehind",
            "rocketmq_storage_flush_behind_bytes > 268435456",
            5,
            "warning",
            f"{_ON} has more than 256 MiB that are not on the disk",
            "The disk is too slow; a loss of power would lose these messages.",
        ),
        Rule(
            "RocketmqDispatchBehind",
            "rocketmq_storage_dispatch_behind_bytes > 67108864",
            5,
            "warning",
            f"{_ON} has more than 64 MiB that consumers cannot see yet",
            "Dispatch to the queues is late: look at the disk and at the log of the broker.",
        ),
        Rule(
            "RocketmqTimerLate",
            "rocketmq_timer_dequeue_latency_milliseconds > 60000",
            5,
            "warning",
            f"{_ON} delivers delayed messages more than a minute late",
            "Too many are due at once, or the timer has stopped: look at the log of the broker.",
        ),
        Rule(
            "RocketmqTransactionsUndecided",
            "sum by (cluster, node_id) (rocketmq_half_messages) > 0 "
            "unless sum by (cluster, node_id) (increase(rocketmq_commit_messages_total[15m])) > 0 "
            "unless sum by (cluster, node_id) "
            "(increase(rocketmq_rollback_messages_total[15m])) > 0",
            15,
            "warning",
            f"Transactions on {_ON} wait, and none is decided",
            "Their producers are gone, or their checks do not answer.",
        ),
    ),
    "rocketmq-groups": (
        Rule(
            "RocketmqLagGrows",
            f"{_GROWTH_BY_GROUP} > 0 and {_LAG_BY_GROUP} > 1000",
            15,
            "warning",
            f"Group {_OF} has a lag that is growing",
            "Its lag has grown for 15 minutes: look for slow or failing members, or add some.",
        ),
        Rule(
            "RocketmqConsumedLate",
            "max by (cluster, topic, consumer_group) "
            '(rocketmq_consumer_lag_latency_milliseconds{is_system="false"}) > 3600000',
            5,
            "warning",
            f"Group {_OF} has a message that is older than an hour",
            "One queue may have stopped: /metrics/queues of our brokers shows which.",
        ),
        Rule(
            "RocketmqLagWithoutMembers",
            "sum by (cluster, consumer_group) "
            '(rocketmq_consumer_lag_messages{is_system="false",consumer_group!="_other"}) > 0 '
            "unless on (cluster, consumer_group) rocketmq_consumer_connections "
            'unless on (cluster) rocketmq_consumer_connections{consumer_group="_other"}',
            10,
            "warning",
            "Group {{ $labels.consumer_group }} has messages, and no members",
            "Its consumers are not running. A group that is not needed can be deleted.",
        ),
        Rule(
            "RocketmqDeadLetters",
            "sum by (cluster, topic, consumer_group) "
            "(increase(rocketmq_send_to_dlq_messages_total[10m])) > 0",
            0,
            "warning",
            f"Group {_OF} has new dead letters",
            "It gave up messages; reput dlq shows them with the reason, if there is one.",
        ),
    ),
    # Of our controllers; a controller that does not lead knows nothing new.
    "reput-controllers": (
        Rule(
            "ReputNoControllerLeads",
            "max by (job) (last_over_time(reput_controller_leading[6h])) "
            "unless max by (job) (reput_controller_leading) == 1",
            1,
            "critical",
            "No controller of {{ $labels.job }} leads",
            "Brokers continue without it, but a master that dies has no successor: start one; if "
            "it runs, its /health says why it does not lead.",
        ),
        Rule(
            "ReputGroupWithoutMaster",
            "reput_controller_groups_without_master > 0 "
            "and on (instance, job) reput_controller_leading == 1",
            1,
            "critical",
            f"{_AT} has replica groups without a master",
            "They wait for a replica that was in sync: reput cluster replicas says which, and what "
            "electing another one would lose.",
        ),
        Rule(
            "ReputReplicaOutOfSync",
            "max_over_time(reput_controller_in_sync_replicas[1d]) > "
            "reput_controller_in_sync_replicas",
            15,
            "warning",
            f"{_GROUP_AT} has fewer replicas in sync than before",
            "One has stopped, or is too slow: reput cluster replicas shows its lag. With "
            "minInSyncReplicas, sends are refused when too few are left.",
        ),
        Rule(
            "ReputControllerFails",
            'increase(reput_controller_elections_total{result="failed"}[5m]) > 0',
            0,
            "critical",
            f"Elections of {_AT} cannot be saved",
            "Its disk, or the store that it shares with others, fails: see /health.",
        ),
        Rule(
            "ReputMasterChangesOften",
            "changes(reput_controller_master_epoch[1h]) > 3",
            0,
            "warning",
            f"{_GROUP_AT} has changed its master more than three times in an hour",
            "Heartbeats are missed, or brokers restart: look at the log of the controller, and at "
            "controllerHeartBeatTimeoutMills.",
        ),
    ),
    # Of RocketMQ's controllers 5.x, with metricsExporterType=PROM.
    "rocketmq-controllers": (
        Rule(
            "JavaControllerSilent",
            "count by (group, peer_id) (last_over_time(role[6h])) "
            "unless count by (group, peer_id) (role)",
            2,
            "critical",
            "Controller {{ $labels.peer_id }} of {{ $labels.group }} has no metrics any more",
            "It has stopped, or cannot be scraped: without a majority there are no elections.",
        ),
        Rule(
            "JavaGroupWithoutMaster",
            "sum by (cluster, broker_set) "
            '(increase(election_total{election_result="no_master_elected"}[5m])) > 0',
            0,
            "critical",
            f"No replica of {_SET} could be elected",
            "It waits for a replica that was in sync: reput cluster replicas says which, and what "
            "electing another one would lose.",
        ),
        Rule(
            "JavaReplicaMissing",
            "max by (cluster, broker_set) (max_over_time(active_broker_num[1d])) > "
            "max by (cluster, broker_set) (active_broker_num)",
            15,
            "warning",
            f"{_SET} has fewer living brokers than before",
            "One has stopped, or does not reach the controllers.",
        ),
        Rule(
            "JavaMasterChangesOften",
            "sum by (cluster, broker_set) "
            '(increase(election_total{election_result="new_master_elected"}[1h])) > 3',
            0,
            "warning",
            f"{_SET} has changed its master more than three times in an hour",
            "Heartbeats are missed, or brokers restart: look at the log of the controller.",
        ),
    ),
    # Of brokers without metrics, 4.x above all: names of rocketmq-exporter and `reput exporter`.
    "rocketmq-exporter": (
        Rule(
            "ExporterBrokerSilent",
            "reput_console_broker_up == 0",
            2,
            "critical",
            f"Broker {_EXPORTED} does not answer the exporter",
            "It has stopped, or its network has. The alert ends when name servers forget it.",
        ),
        Rule(
            "ExporterDiskFull",
            "rocketmq_brokeruntime_commitlog_disk_ratio > 0.85",
            5,
            "warning",
            "The disk of {{ $labels.cluster }}/{{ $labels.brokerIP }} is used by more than 85 %",
            "Old files are deleted early at this level: shorten fileReservedTime, or add space.",
        ),
        Rule(
            "ExporterSendsWait",
            "rocketmq_brokeruntime_send_threadpool_queue_size > 5000",
            5,
            "warning",
            "More than 5000 sends wait on {{ $labels.cluster }}/{{ $labels.brokerIP }}",
            "The disk, or a slave that sends wait for, is slower than the producers.",
        ),
        Rule(
            "ExporterDispatchBehind",
            "rocketmq_brokeruntime_dispatch_behind_bytes > 67108864",
            5,
            "warning",
            "{{ $labels.cluster }}/{{ $labels.brokerIP }} has more than 64 MiB that consumers "
            "cannot see yet",
            "Dispatch to the queues is late: look at the disk and at the log of the broker.",
        ),
        Rule(
            "ExporterLagGrows",
            "sum by (cluster, topic, group) "
            '(deriv(rocketmq_message_accumulation{topic!="_other"}[10m])) > 0 '
            "and sum by (cluster, topic, group) (rocketmq_message_accumulation) > 1000",
            15,
            "warning",
            f"Group {_EXPORTED_GROUP} has a lag that is growing",
            "Its lag has grown for 15 minutes: look for slow or failing members, or add some.",
        ),
        Rule(
            "ExporterConsumedLate",
            "max by (cluster, topic, group) (rocketmq_group_get_latency_by_storetime) > 3600000",
            5,
            "warning",
            f"Group {_EXPORTED_GROUP} has a message that is older than an hour",
            "One queue may have stopped: the page of the group in reput console shows which.",
        ),
        Rule(
            "ExporterLagWithoutMembers",
            'rocketmq_group_diff{countOfOnlineConsumers="0"} > 0',
            10,
            "warning",
            f"Group {_EXPORTED_GROUP} has messages, and no members",
            "Its consumers are not running. A group that is not needed can be deleted.",
        ),
        Rule(
            "ExporterDeadLetters",
            "sum by (cluster, group) (delta(rocketmq_topic_dlq_offset[10m])) > 0",
            0,
            "warning",
            "Group {{ $labels.group }} has new dead letters",
            "It gave up messages; reput dlq shows them with the reason, if there is one.",
        ),
    ),
    "reput": (
        Rule(
            "ReputUnhealthy",
            "reput_healthy == 0",
            2,
            "critical",
            f"{_AT} is not healthy",
            "/health at the same address has the reasons.",
        ),
        Rule(
            "ReputRefusesMessages",
            "reput_store_writable == 0",
            1,
            "critical",
            f"{_AT} accepts no messages",
            "The disk is full or has failed: /health has the reason.",
        ),
        Rule(
            "ReputPutsFail",
            "rate(reput_put_failed_total[5m]) > 0",
            5,
            "warning",
            f"{_AT} refuses messages",
            "Its log has the reasons; producers get them, too.",
        ),
        Rule(
            "ReputDiskSlow",
            "histogram_quantile(0.99, rate(reput_log_sync_seconds_bucket[5m])) > 0.5",
            10,
            "warning",
            f"The disk of {_AT} is slow: 1 % of the syncs of the log take more than 0.5 s",
            "Under SYNC_FLUSH sends wait for it; a power cut loses unsynced messages.",
        ),
        Rule(
            "ReputPutsStall",
            "increase(reput_sends_refused_busy_total[10m]) > 0",
            1,
            "warning",
            f"Puts of {_AT} stall, and sends that waited for them were refused",
            "The system could not write pages of the log in time: the disk, or memory, is short.",
        ),
        Rule(
            "ReputDiskFull",
            f"(reput_disk_used_ratio > 0.85) {_OWN_NAMES}",
            5,
            "warning",
            f"The disk of {_AT} is used by more than 85 %",
            "Old files are deleted early at this level: shorten fileReservedTime, or add space.",
        ),
        Rule(
            "ReputLoopFails",
            "reput_loop_failing == 1 or reput_loop_silent_seconds > 120",
            2,
            "critical",
            "Loop {{ $labels.loop }} of " + _AT + " fails or hangs",
            "The log of the broker has the error.",
        ),
        Rule(
            "ReputNotRegistered",
            "reput_name_server_failing == 1",
            3,
            "warning",
            f"{_AT} is not registered with {{{{ $labels.name_server }}}}",
            "New clients that ask this name server do not find the broker.",
        ),
        Rule(
            "ReputRecordsSkipped",
            "increase(reput_records_passed_over_total[15m]) > 0",
            0,
            "warning",
            "Loop {{ $labels.loop }} of " + _AT + " has skipped stored records",
            "/health lists them with the reasons.",
        ),
        Rule(
            "ReputSlavesMissing",
            "reput_replicas < reput_replicas_needed",
            1,
            "critical",
            f"{_AT} has fewer slaves than its sends wait for",
            "Sends are answered with an error or late until a slave is back.",
        ),
        Rule(
            "ReputSlaveBehind",
            "reput_slave_lag_bytes > 268435456",
            5,
            "warning",
            f"Slave {_AT} lacks more than 256 MiB",
            "A failover to it would lose these messages: look at its network and its disk.",
        ),
        Rule(
            "ReputSlowKernels",
            'reput_kernels{engine="reference"} == 1',
            5,
            "warning",
            f"{_AT} runs without compiled kernels",
            "It is several times slower: install the wheel of this platform, or the extra kernels.",
        ),
        Rule(
            "ReputBrokerTakenOver",
            "increase(reput_namesrv_takeovers_total[10m]) > 0",
            0,
            "warning",
            f"Two brokers register at {_AT} with one name and id",
            "/health of the name server has their addresses: change brokerName or brokerId of one.",
        ),
    ),
}
"""Rules by the name of their group."""
_SIDES = {
    "reput": "reput",
    "reput-controllers": "controller",
    "rocketmq-controllers": "java controller",
    "rocketmq-exporter": "exporter",
}
"""Group of rules to the only side that has its metrics."""


# --- files --------------------------------------------------------------------------------------


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield each expression with the place of its use, and the side that has it."""
    for board in BOARDS.values():
        for panel in board.panels:
            for expression, _ in panel.queries:
                yield f"{board.title}: {panel.title}", expression, panel.only
        for variable in board.variables:
            yield f"{board.title}: ${variable.name}", variable.metric, ""
    for name, rules in GROUPS.items():
        for rule in rules:
            yield rule.name, rule.expression, _SIDES.get(name, "")


def board_json(board: Board) -> str:
    """Return a board as Grafana imports it."""
    column = row = 0
    panels = []
    for number, panel in enumerate(board.panels, 1):
        height = HEIGHT // 2 if panel.is_number else HEIGHT
        if column + panel.width > WIDTH:
            raise ValueError(f"{board.title}: {panel.title} does not fit into its row")
        panels.append(_panel(panel, number, {"x": column, "y": row}, height))
        column += panel.width
        if column == WIDTH:
            column, row = 0, row + height
    if column:
        raise ValueError(f"{board.title}: the last row has {column} of {WIDTH} columns")
    content = {
        "uid": board.uid,
        "title": board.title,
        "tags": ["rocketmq"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "tags": ["rocketmq"],
                "title": "RocketMQ",
                "asDropdown": True,
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": [_SOURCE_VARIABLE, *map(_variable, board.variables)]},
        "panels": panels,
    }
    return json.dumps(content, indent=1) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SOURCE_VARIABLE = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panel(panel: Panel, number: int, place: dict[str, int], height: int) -> dict[str, Any]:
    notes = {
        "java": "Brokers of reput have no such metric.",
        "reput": "Only brokers of reput have it: metricsPort.",
        "slave": "Only brokers of reput that are replicated have it: metricsPort.",
    }
    text = " ".join(filter(None, (panel.text, notes.get(panel.only))))
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}}
    if panel.is_number:
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    return {
        "id": number,
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": {**place, "w": panel.width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for position, (expression, legend) in enumerate(panel.queries)
        ],
    }


def rules_text() -> str:
    """Return the file of rules for Prometheus."""
    groups = [
        {"name": name, "rules": [_rule(rule) for rule in rules]} for name, rules in GROUPS.items()
    ]
    head = "# Written by scripts/monitoring_files.py.\n"
    return head + yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.expression,
        **({"for": f"{rule.for_minutes}m"} if rule.for_minutes else {}),
        "labels": {"severity": rule.severity},
        "annotations": {"summary": rule.summary, "description": rule.advice},
    }


def files() -> dict[Path, str]:
    """Return the content of each file."""
    boards = {OPS / "grafana" / f"{name}.json": board_json(b) for name, b in BOARDS.items()}
    return {**boards, RULES_FILE: rules_text()}


def main() -> int:
    """Write the files."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
