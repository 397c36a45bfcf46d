"""The snapshot as metrics of Prometheus, with names and labels of rocketmq-exporter.

Rates of topics and groups, members and clients come from a survey, which ``reput exporter`` has and
the console has not. An unknown value has no series. Topics and groups beyond ``NAMES_MAX`` share
the name ``_other``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from reput.console.rows import Rows
from reput.console.snapshot import BrokerFacts, BrokerPlace, Snapshot
from reput.console.survey import SurveyFacts
from reput.format import names

NAMES_MAX = 500
"""Maximum number of topics, and of groups, that have their own series."""
OTHER = "_other"
OUT_OF_TIME_MS = 60_000
"""Age of a broker's last reply above which its values have no series: ``outOfTimeSeconds`` of
rocketmq-exporter."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOPIC = ("cluster", "broker", "topic")
_GROUP = ("cluster", "broker", "topic", "group")
_DIFF = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_BROKER = ("cluster", "brokerIP", "broker")
_PRODUCER = ("cluster", "broker", "group")
_MEMBERS = ("caddr", "localaddr", "group")
_CLIENT = ("clientAddr", "clientId", "group", "topic")
_CLUSTERING = "1"
"""The message model of groups that keep their offsets at brokers, as Java numbers it."""
_RUNTIME = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")

_NUMBERS = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_minoffset": "commitLogMinOffset",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
}
"""End of the metric's name to the key of the runtime value."""
_RATES = {
    "getfound": "getFoundTps",
    "gettotal": "getTotalTps",
    "gettransfered": "getTransferedTps",
    "getmiss": "getMissTps",
    "put": "putTps",
}
"""Name to key of a runtime value with rates of 10 s, a minute and ten minutes."""
_SPANS = (10, 60, 600)
_PUT_TIMES = {
    "<=0ms": "0ms",
    "0~10ms": "0to10ms",
    "10~50ms": "10to50ms",
    "50~100ms": "50to100ms",
    "100~200ms": "100to200ms",
    "200~500ms": "200to500ms",
    "500ms~1s": "500to1s",
    "1~2s": "1to2s",
    "2~3s": "2to3s",
    "3~4s": "3to4s",
    "4~5s": "4to5s",
    "5~10s": "5to10s",
    "10s~": "10stomore",
}
"""Bounds in the runtime value of put times to the end of the metric's name."""
_PUT_TIME = re.compile(r"\[([^\]]+)\]:(\d+)")
_SIZE = re.compile(r"([\d.]+) *([KMGTPE]?)i?B")
_UNITS = {unit: 1024.0**power for power, unit in enumerate(("", *"KMGTPE"))}


class _Families:
    """Series by metric, in the order in which metrics are added."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, float]] = {}

    def add(self, name: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
        """Add a value; values of the same series, such as ``_other``, are added up."""
        pairs = _pairs(labels, values)
        series = self._series.setdefault(name, {})
        series[pairs] = series.get(pairs, 0.0) + value

    def largest(
        self, name: str, labels: Sequence[str], values: Sequence[str], value: float
    ) -> None:
        """Add a value; of the values of the same series, such as ``_other``, keep the largest."""
        pairs = _pairs(labels, values)
        series = self._series.setdefault(name, {})
        series[pairs] = max(series.get(pairs, value), value)

    def text(self) -> str:
        """Return the text of the metrics."""
        lines = []
        for name, series in self._series.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [f"{name}{{{pairs}}} {value:.15g}" for pairs, value in series.items()]
        return "\n".join(lines) + "\n"


def _pairs(labels: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(
        f'{label}="{_escaped(text)}"' for label, text in zip(labels, values, strict=True)
    )


def _escaped(text: str) -> str:
    printable = text.encode("utf-8", "replace").decode()
    return printable.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def render(snapshot: Snapshot, rows: Rows, now_ms: int, survey: SurveyFacts | None = None) -> str:
    """Return the metrics of a cluster as text.

    Args:
        snapshot: The answers of the cluster.
        rows: The rows computed from them.
        now_ms: The time.
        survey: Rates, members and clients; None: they are left out.
    """
    families = _Families()
    topic_name = _limited(rows.topics().rows)
    group_name = _limited(rows.groups().rows)
    for facts in snapshot.brokers.values():
        _add_broker(families, facts, now_ms)
    masters = [facts for facts in snapshot.masters() if now_ms - facts.answer_ms < OUT_OF_TIME_MS]
    for facts in masters:
        _add_topics(families, facts, topic_name, group_name)
        _add_offsets(families, facts, rows, topic_name, group_name)
    _add_lags(families, snapshot, masters, rows, topic_name, group_name)
    if survey is not None:
        places = {facts.place.address: facts.place for facts in masters}
        groups = {group for facts in masters for group in facts.groups}
        _add_counters(families, survey, places, topic_name, group_name)
        _add_clients(families, survey, groups, topic_name, group_name)
    return families.text()


def _limited(known: Mapping[str, object]) -> Callable[[str], str]:
    """Return a function that returns a name unchanged, or ``_other`` after a number of names."""
    kept = set(list(known)[:NAMES_MAX])
    return lambda name: name if name in kept else OTHER


def _add_broker(families: _Families, facts: BrokerFacts, now_ms: int) -> None:
    place, status = facts.place, facts.status
    broker = (place.cluster, place.address, place.name)
    families.add("reput_console_broker_up", _BROKER, broker, float(not facts.is_silent))
    if facts.answer_ms:
        age_s = max(0, now_ms - facts.answer_ms) / 1000
        families.add("reput_console_answer_age_seconds", _BROKER, broker, age_s)
    if facts.is_silent or not status:
        return
    runtime = (
        *(place.cluster, place.address, ""),
        status.get("brokerVersionDesc", ""),
        status.get("bootTimestamp", ""),
        status.get("brokerVersion", ""),
    )
    for suffix, value in _runtime_values(status):
        families.add(f"rocketmq_brokeruntime_{suffix}", _RUNTIME, runtime, value)
    for metric, key in (("tps", "putTps"), ("qps", "getTransferedTps")):
        minute = _floats(status.get(key, ""))[1:2]
        if minute:
            families.add(f"rocketmq_broker_{metric}", _BROKER, broker, minute[0])


def _runtime_values(status: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for suffix, key in _NUMBERS.items():
        numbers = _floats(status.get(key, ""))
        if len(numbers) == 1:
            yield suffix, numbers[0]
    for name, key in _RATES.items():
        for span_s, rate in zip(_SPANS, _floats(status.get(key, "")), strict=False):
            yield f"{name}_tps{span_s}", rate
    for bounds, count in _PUT_TIME.findall(status.get("putMessageDistributeTime", "")):
        if bounds in _PUT_TIMES:
            yield f"pmdt_{_PUT_TIMES[bounds]}", float(count)
    sizes = _sizes(status.get("commitLogDirCapacity", ""))
    if len(sizes) == 2:
        yield "commitlogdir_capacity_total", sizes[0]
        yield "commitlogdir_capacity_free", sizes[1]
    waiting = _sizes(status.get("remainHowManyDataToFlush", ""))
    if len(waiting) == 1:
        yield "remain_howmanydata_toflush", waiting[0]


def _floats(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split()]
    except ValueError:
        return []


def _sizes(text: str) -> list[float]:
    """Return the sizes in a text in bytes, as ``Total : 9.8 GiB, Free : 512.0 MiB.`` has two."""
    return [float(number) * _UNITS[unit] for number, unit in _SIZE.findall(text)]


def _add_topics(
    families: _Families,
    facts: BrokerFacts,
    topic_name: Callable[[str], str],
    group_name: Callable[[str], str],
) -> None:
    place = facts.place
    for topic, ends in facts.ends.items():
        end = float(ends.stored_count)
        where = (place.cluster, place.name)
        if names.is_dlq_topic(topic):
            group = group_name(topic.removeprefix(names.DLQ_PREFIX))
            labels = ("cluster", "broker", "group")
            families.add("rocketmq_topic_dlq_offset", labels, (*where, group), end)
        else:
            kind = "topic_retry" if names.is_retry_topic(topic) else "producer"
            families.add(f"rocketmq_{kind}_offset", _TOPIC, (*where, topic_name(topic)), end)


def _add_offsets(
    families: _Families,
    facts: BrokerFacts,
    rows: Rows,
    topic_name: Callable[[str], str],
    group_name: Callable[[str], str],
) -> None:
    place = facts.place
    for (topic, group), offsets in facts.consumed.items():
        series = (place.cluster, place.name, topic_name(topic), group_name(group))
        total = float(sum(offsets.values()))
        families.add("rocketmq_consumer_offset", _GROUP, series, total)
        families.add("rocketmq_group_consume_total_offset", _GROUP, series, total)
        if names.is_retry_topic(topic) or names.is_dlq_topic(topic):
            continue  # rocketmq_group_retrydiff and _dlqdiff count them, as producer offsets do not
        lag = rows.broker_lag(facts, topic, group)
        if isinstance(lag, int):
            families.add("rocketmq_message_accumulation", _GROUP, series, lag)


def _add_lags(
    families: _Families,
    snapshot: Snapshot,
    masters: Sequence[BrokerFacts],
    rows: Rows,
    topic_name: Callable[[str], str],
    group_name: Callable[[str], str],
) -> None:
    for group, row in rows.groups().rows.items():
        members = snapshot.members.get(group)
        count = "" if members is None else str(members.count)
        for topic in row.topics:
            lag = _lag(masters, rows, topic, group)
            if lag is not None:
                series = (group_name(group), topic_name(topic), count, _CLUSTERING)
                families.add("rocketmq_group_diff", _DIFF, series, lag)
        retry, dead = names.RETRY_PREFIX + group, names.DLQ_PREFIX + group
        for metric, topic, value in (
            ("rocketmq_group_retrydiff", retry, _lag(masters, rows, retry, group)),
            ("rocketmq_group_dlqdiff", dead, _kept(masters, dead)),
        ):
            if value is not None:
                series = (group_name(group), topic_name(topic), count, _CLUSTERING)
                families.add(metric, _DIFF, series, value)


def _lag(masters: Sequence[BrokerFacts], rows: Rows, topic: str, group: str) -> int | None:
    """Return the lag of a group on some brokers; None if it is unknown or without offsets."""
    lags = [
        rows.broker_lag(facts, topic, group)
        for facts in masters
        if (topic, group) in facts.consumed
    ]
    known = [lag for lag in lags if isinstance(lag, int)]
    return sum(known) if known and len(known) == len(lags) else None


def _kept(masters: Sequence[BrokerFacts], topic: str) -> int | None:
    """Return the number of messages of a topic on some brokers; None if it is unknown."""
    ends = [facts.ends.get(topic) for facts in masters if topic in facts.topics]
    known = [end.message_count for end in ends if end is not None]
    return sum(known) if known and len(known) == len(ends) else None


def _add_counters(
    families: _Families,
    survey: SurveyFacts,
    places: Mapping[str, BrokerPlace],
    topic_name: Callable[[str], str],
    group_name: Callable[[str], str],
) -> None:
    for (address, topic), rates in survey.topics.items():
        place = places.get(address)
        if place is None or names.is_retry_topic(topic):
            continue
        series = (place.cluster, place.name, topic_name(topic))
        families.add("rocketmq_producer_tps", _TOPIC, series, rates.messages)
        families.add("rocketmq_producer_message_size", _TOPIC, series, rates.size_bytes)
    for (address, topic, group), rates in survey.groups.items():
        place = places.get(address)
        if place is None:
            continue
        read = (place.cluster, place.name, topic_name(topic), group_name(group))
        # A broker answers "consume TPS" of a group (208) from the counter of its gets as well.
        for metric in ("rocketmq_consumer_tps", "rocketmq_group_consume_tps"):
            families.add(metric, _GROUP, read, rates.messages)
        families.add("rocketmq_consumer_message_size", _GROUP, read, rates.size_bytes)
        families.add("rocketmq_send_back_nums", _GROUP, read, rates.sent_back)
    for (address, topic, group), age_ms in survey.latencies.items():
        place = places.get(address)
        if place is not None:
            read = (place.cluster, place.name, topic_name(topic), group_name(group))
            families.largest("rocketmq_group_get_latency_by_storetime", _GROUP, read, age_ms)
    for address, groups in survey.producers.items():
        place = places.get(address)
        if place is None:
            continue
        for group, count in list(groups.items())[:NAMES_MAX]:
            series = (place.cluster, place.name, group)
            families.add("rocketmq_producer_count", _PRODUCER, series, count)


_CLIENT_METRICS = {
    "rocketmq_client_consume_fail_msg_count": "consume_failed_msgs",
    "rocketmq_client_consume_fail_msg_tps": "consume_failed_tps",
    "rocketmq_client_consume_ok_msg_tps": "consume_ok_tps",
    "rocketmq_client_consume_rt": "consume_rt",
    "rocketmq_client_consumer_pull_rt": "pull_rt",
    "rocketmq_client_consumer_pull_tps": "pull_tps",
}
"""Metric -> field of a client's measurements."""


def _add_clients(
    families: _Families,
    survey: SurveyFacts,
    groups: Set[str],
    topic_name: Callable[[str], str],
    group_name: Callable[[str], str],
) -> None:
    for group, clients in survey.clients.items():
        if group not in groups:
            continue
        addresses = ",".join(connection.client_addr for connection in clients.connections)
        ids = ",".join(connection.client_id for connection in clients.connections)
        members = (addresses, ids, group_name(group))
        families.add("rocketmq_group_count", _MEMBERS, members, len(clients.connections))
        for connection in clients.connections:
            for topic, status in clients.statuses.get(connection.client_id, {}).items():
                client = (
                    *(connection.client_addr, connection.client_id),
                    *(group_name(group), topic_name(topic)),
                )
                for metric, field in _CLIENT_METRICS.items():
                    families.add(metric, _CLIENT, client, getattr(status, field))
