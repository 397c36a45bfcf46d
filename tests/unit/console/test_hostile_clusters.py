"""Brokers that hang, refuse or lie, and hostile names: marked as such, escaped, and never a 0."""

import asyncio
import html
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asgi import call
from reput.client.admin import Admin
from reput.clock import SystemClock
from reput.console import exposition
from reput.console.app import Console
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts
from reput.console.sources import live
from reput.format import bodies, command
from reput.format.bodies import BrokerData, ClusterInfo
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from scripted_cluster import ScriptedBroker, ScriptedCluster

HOSTILE = "<script>alert('x')</script>\"&\u202e"


class Site:
    """A console of a scripted cluster of two brokers."""

    def __init__(self, script: ScriptedCluster, cluster: WatchedCluster, console: Console) -> None:
        self.script = script
        self.cluster = cluster
        self.console = console

    async def collect(self) -> None:
        await self.cluster.collector.round()
        self.cluster.note_viewed([HOSTILE, "T"], ["G"])
        await self.cluster.collector.view_step()


def body(data: bytes) -> object:
    return lambda request: command.reply(request, body=data)


def answer(broker: ScriptedBroker, name: str) -> None:
    """Let a broker answer like one with two topics and a group."""
    topic = bodies.TopicConfigData(
        order=False,
        perm=6,
        read_queue_nums=1,
        topic_filter_type="SINGLE_TAG",
        topic_name="T",
        topic_sys_flag=0,
        write_queue_nums=1,
    )
    topics = bodies.TopicConfigTable(
        data_version=bodies.DataVersion(), topic_config_table={"T": topic, HOSTILE: topic}
    )
    group = bodies.SubscriptionGroupConfig(group_name="G")
    groups = bodies.SubscriptionGroupTable(
        data_version=bodies.DataVersion(), subscription_group_table={"G": group}
    )
    offsets = bodies.ConsumerOffsetTable(offset_table={"T@G": {0: 3}})
    status = {"brokerVersionDesc": HOSTILE, "putTps": "1.5 1 1", "commitLogDiskRatio": "-1.0"}

    def ends(request: Command) -> Command:
        assert request.ext_fields is not None
        queue = bodies.MessageQueue(request.ext_fields["topic"], name, 0)
        offset = bodies.TopicOffset(last_update_timestamp=0, max_offset=10, min_offset=0)
        stats = bodies.TopicStats(offset_table=bodies.TopicOffsets({queue: offset}))
        return command.reply(request, body=bodies.encode(stats))

    broker.answers |= {
        Code.GET_BROKER_RUNTIME_INFO: body(bodies.encode(bodies.KvTable(table=status))),
        Code.GET_ALL_TOPIC_CONFIG: body(bodies.encode(topics)),
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: body(bodies.encode(groups)),
        Code.GET_ALL_CONSUMER_OFFSET: body(bodies.encode(offsets)),
        Code.GET_TOPIC_STATS_INFO: ends,
    }  # type: ignore[operator]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(live, "DEADLINE_S", 0.3)
    async with ScriptedCluster({"T": {"broker-a": 1, "broker-b": 1}}, brokers=2) as script:
        info = ClusterInfo(
            broker_addr_table={
                broker.name: BrokerData(
                    broker_addrs={0: broker.address}, broker_name=broker.name, cluster="c"
                )
                for broker in script.brokers
            },
            cluster_addr_table={"c": [broker.name for broker in script.brokers]},
        )
        script.name_server.answers |= {
            Code.GET_BROKER_CLUSTER_INFO: body(bodies.encode(info)),
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: body(
                bodies.encode(bodies.TopicList(topic_list=["T"]))
            ),
        }  # type: ignore[operator]
        for broker in script.brokers:
            answer(broker, broker.name)
        async with Admin(script.namesrv) as admin:
            clock = SystemClock()
            cluster = WatchedCluster.of(admin, clock)
            parts = ConsoleParts(clock, script.namesrv, cluster, AuditLog(tmp_path / "audit.jsonl"))
            yield Site(script, cluster, Console(parts))


async def test_a_broker_that_hangs_is_silent_and_its_numbers_are_unknown(site: Site) -> None:
    for code in (Code.GET_BROKER_RUNTIME_INFO, Code.GET_TOPIC_STATS_INFO):
        site.script.brokers[1].answers[code] = lambda _: None
    await site.collect()
    brokers = (await call(site.console, "/brokers?format=json")).data["rows"]
    assert [(row["name"], row["state"]) for row in brokers] == [
        ("broker-a", "ok"),
        ("broker-b", "silent"),
    ]
    assert "unknown" in brokers[1]["put_rate"]
    assert brokers[0]["put_rate"] == 1.5
    overview = (await call(site.console, "/?format=json")).data
    assert any("broker-b" in problem["text"] for problem in overview["problems"])
    # The sum of broker-a alone is not that of both: broker-b has never named its topics.
    topic = (await call(site.console, "/topics/T?format=json")).data
    assert [queue["max_offset"] for queue in topic["queues"]] == [10]
    metrics = exposition.render(site.cluster.snapshot, site.cluster.rows, 0)
    assert 'broker="broker-b"} 0' in metrics


async def test_a_broker_that_falls_silent_keeps_its_numbers_with_their_age(site: Site) -> None:
    await site.collect()
    for code in site.script.brokers[1].answers:
        site.script.brokers[1].answers[code] = lambda _: None
    await site.collect()
    topic = (await call(site.console, "/topics/T?format=json")).data
    assert topic["topic"]["messages"] == 20  # as of before
    by_broker = {queue["broker"]: queue["max_offset"] for queue in topic["queues"]}
    assert by_broker["broker-a"] == 10
    assert "silent" in by_broker["broker-b"]["unknown"]
    assert any("broker-b is silent" in problem for problem in topic["problems"])


async def test_pages_answer_within_the_deadline_when_a_broker_hangs(site: Site) -> None:
    await site.collect()
    for code in (Code.GET_TOPIC_STATS_INFO, Code.GET_CONSUME_STATS, Code.GET_BROKER_CONFIG):
        site.script.brokers[1].answers[code] = lambda _: None
    async with asyncio.timeout(30):
        for url in ("/topics/T", "/groups/G", "/brokers/broker-b"):
            answered = await call(site.console, url)
            assert answered.status == 200
            assert "has not answered" in answered.text or "unknown" in answered.text, url


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"table":7}', b"\xff\xfe", b"{}" * 100])
async def test_a_body_that_is_none_is_a_refusal_and_not_an_empty_table(
    site: Site, data: bytes
) -> None:
    for code in (Code.GET_BROKER_RUNTIME_INFO, Code.GET_ALL_CONSUMER_OFFSET):
        site.script.brokers[0].answers[code] = body(data)  # type: ignore[assignment]
    await site.collect()
    row = (await call(site.console, "/brokers?format=json")).data["rows"][0]
    assert row["state"] == "refuses"
    assert "unknown" in row["put_rate"]
    assert (await call(site.console, "/")).status == 200


async def test_offsets_after_the_end_are_no_negative_lag(site: Site) -> None:
    lie = bodies.ConsumerOffsetTable(offset_table={"T@G": {0: 2**62}, "@": {0: 1}, "": {}})
    for broker in site.script.brokers:
        broker.answers[Code.GET_ALL_CONSUMER_OFFSET] = body(bodies.encode(lie))  # type: ignore[assignment]
    await site.collect()
    groups = (await call(site.console, "/groups?format=json&kind=all")).data["rows"]
    assert {row["name"]: row["lag"] for row in groups}["G"] == 0


async def test_hostile_names_are_escaped_on_every_page(site: Site) -> None:
    await site.collect()
    from urllib.parse import quote

    for url in ("/", "/topics", f"/topics/{quote(HOSTILE, safe='')}", "/brokers", "/groups"):
        answered = await call(site.console, url)
        assert answered.status == 200, url
        assert "<script>alert" not in answered.text
    page = html.unescape((await call(site.console, "/topics")).text)
    assert "<script>alert" in page  # it is there, as text
    metrics = exposition.render(site.cluster.snapshot, site.cluster.rows, 0)
    assert all(line.count('"') % 2 == 0 for line in metrics.replace('\\"', "").splitlines())


async def test_no_name_server_is_a_problem_and_not_an_empty_cluster(site: Site) -> None:
    for code in site.script.name_server.answers:
        site.script.name_server.answers[code] = lambda _: None
    await site.cluster.collector.round()
    overview = (await call(site.console, "/?format=json")).data
    assert any("ame server" in problem["text"] for problem in overview["problems"])
    topics = await call(site.console, "/topics")
    assert "Not known: " in topics.text


async def test_a_sweep_asks_for_one_topic_at_a_time_and_not_for_fresh_ones(site: Site) -> None:
    await site.cluster.collector.round()
    facts = site.cluster.snapshot.masters()[0]
    broker = site.script.brokers[0]
    for _ in range(8):
        await site.cluster.collector.sweep_step(facts)
    asked = broker.asked(Code.GET_TOPIC_STATS_INFO)
    topics = [(request.ext_fields or {})["topic"] for request in asked]
    assert topics == ["T", HOSTILE]  # topics of groups first; each once while it is fresh
