"""What the exporter asks brokers and members besides the snapshot."""

import re

from reput.client import Message, Producer
from reput.client.admin import Admin
from reput.clock import ManualClock, SystemClock
from reput.console import exposition
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts
from reput.console.snapshot import GONE_MS, BrokerPlace, Ends, QueueEnds
from reput.console.survey import IDLE, GroupClients, Survey, SurveyFacts
from reput.format.bodies import MessageQueue, SubscriptionGroupConfig
from reput.testing import LocalBroker
from topic_configs import topic_config

TOPIC, GROUP = "Orders", "billing"


async def test_a_survey_knows_producers_members_and_latencies() -> None:
    clock = SystemClock()
    with LocalBroker(topics={TOPIC: 1}) as mq:
        async with (
            Admin(mq.namesrv_addr) as admin,
            Producer("senders", namesrv=mq.namesrv_addr) as producer,
        ):
            await admin.create_group(GROUP)
            for _ in range(5):
                await producer.send(Message(TOPIC, b"body"))
            stored_ms = mq.messages(TOPIC)[2].store_timestamp_ms
            queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)
            await admin.update_consumer_offset(GROUP, queue, 2)
            cluster = WatchedCluster.of(admin, clock)
            await cluster.collector.round()
            (facts,) = cluster.snapshot.masters()
            ends = await cluster.live.ends(facts.place.address, TOPIC, clock.now_ms())
            cluster.snapshot.put_ends(facts.place.address, TOPIC, ends)
            late = ManualClock(clock.now_ms() + 21_000)
            survey = Survey(cluster, late, 500)
            first = [step async for step in survey.steps(facts)]
            key = facts.place.address, TOPIC, GROUP
            # The group reads on before its messages are asked for: the offsets' time counts.
            assert survey.facts.latencies[key] == facts.consumed_ms - stored_ms
            assert survey.facts.producers[facts.place.address]["senders"] == 1
            assert survey.facts.clients[GROUP].connections == []
            text = exposition.render(cluster.snapshot, cluster.rows, 0, survey.facts)
            place = f'cluster="{facts.place.cluster}",broker="broker-a"'
            assert f'rocketmq_producer_count{{{place},group="senders"}} 1' in text
            assert 'rocketmq_group_count{caddr="",localaddr="",group="billing"} 0' in text
            read = f'{place},topic="Orders",group="billing"'
            assert f"rocketmq_group_get_latency_by_storetime{{{read}}}" in text
            rates = re.findall(rf"rocketmq_(?:consumer|group_consume)_tps\{{{read}\}} (.*)\n", text)
            assert len(rates) == 2
            assert rates[0] == rates[1]
            assert f"rocketmq_consumer_offset{{{read}}} 2\n" in text
            assert f"rocketmq_message_accumulation{{{read}}} 3\n" in text
            assert f'rocketmq_producer_tps{{{place},topic="Orders"}}' in text
            diff = r'rocketmq_group_diff\{group="billing",topic="Orders",countOfOnlineConsumers="0"'
            assert re.search(rf'{diff},msgModel="1"\}} 3\n', text)

            # The group, which reads nothing and has no lag any more, is not asked about.
            await admin.update_consumer_offset(GROUP, queue, 5)
            await cluster.collector.round()
            for _ in range(2):
                steps = [step async for step in survey.steps(facts)]
            assert len(steps) < len(first)
            assert survey.facts.latencies[key] == 0

            facts.failure_ms = facts.answer_ms + 1
            assert [step async for step in survey.steps(facts)] == []
            assert survey.facts.topics == {}
            assert survey.facts.groups == {}
            assert survey.facts.latencies == {}


def test_a_broker_that_is_gone_is_forgotten(parts: ConsoleParts, clock: ManualClock) -> None:
    snapshot = parts.cluster.snapshot
    places = [BrokerPlace("c", f"broker-{name}", 0, f"127.0.0.1:{name}") for name in "12"]
    snapshot.put_places(places, clock.now_ms())
    survey = Survey(parts.cluster, clock, 500)
    facts = survey.facts
    for place, group in zip(places, ("billing", "audit"), strict=True):
        groups = {group: SubscriptionGroupConfig(group_name=group)}
        snapshot.put_groups(place.address, groups, clock.now_ms())
        facts.topics[place.address, TOPIC] = IDLE
        facts.groups[place.address, TOPIC, group] = IDLE
        facts.latencies[place.address, TOPIC, group] = 0
        facts.producers[place.address] = {"senders": 1}
        facts.clients[group] = GroupClients([], "CLUSTERING", {})
    survey.forget_gone()
    assert len(facts.producers) == 2
    clock.advance(GONE_MS + 1)
    snapshot.put_places(places[:1], clock.now_ms())
    survey.forget_gone()
    address = places[0].address
    assert facts.topics.keys() == {(address, TOPIC)}
    assert facts.groups.keys() == facts.latencies.keys() == {(address, TOPIC, "billing")}
    assert facts.producers.keys() == {address}
    assert facts.clients.keys() == {"billing"}


def test_values_of_a_broker_that_does_not_answer_expire(
    parts: ConsoleParts, clock: ManualClock
) -> None:
    """As in rocketmq-exporter, whose outOfTimeSeconds is 60."""
    snapshot, rows = parts.cluster.snapshot, parts.cluster.rows
    places = [BrokerPlace("c", f"broker-{name}", 0, f"127.0.0.1:{name}") for name in "12"]
    snapshot.put_places(places, clock.now_ms())

    def answer(place: BrokerPlace) -> None:
        now_ms = clock.now_ms()
        topics = {name: topic_config(name) for name in (TOPIC, f"%DLQ%{GROUP}")}
        snapshot.put_topics(place.address, topics, now_ms)
        for topic in topics:
            snapshot.put_ends(place.address, topic, Ends(now_ms, (QueueEnds(0, 0, 10, 0),)))
        snapshot.put_consumed(place.address, {(TOPIC, GROUP): {0: 4}}, now_ms)

    def text() -> str:
        return exposition.render(snapshot, rows, clock.now_ms(), SurveyFacts())

    for place in places:
        answer(place)
    assert text().count('broker="broker-2",topic="Orders"') == 4
    assert re.findall(r"rocketmq_group_(?:dlq)?diff.* (\d+)", text()) == ["12", "20"]
    clock.advance(59_000)
    answer(places[0])
    assert text().count('broker="broker-2",topic="Orders"') == 4
    clock.advance(1_000)
    assert 'broker="broker-2",topic' not in text()
    assert 'broker="broker-1",topic' in text()
    assert re.findall(r"rocketmq_group_(?:dlq)?diff.* (\d+)", text()) == ["6", "10"]
