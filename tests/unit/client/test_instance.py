import asyncio
from collections.abc import Collection

import pytest

from reput.client.admin import Admin
from reput.client.config import ClientConfig
from reput.client.connection_events import ConnectionEvent
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.client.instance import (
    Answer,
    ClientInstance,
    Guest,
    MemberKind,
    StartedElsewhere,
)
from reput.client.message import Message
from reput.client.pop_consumer import PopConsumer
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.client.push_consumer import PushConsumer
from reput.errors import BrokerError, InvalidOption, RemotingError
from reput.format import bodies, command, message as records, properties as props
from reput.format.bodies import ConsumerData, HeartbeatData, ProducerData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.message import Host, StoredMessage
from scripted_cluster import ScriptedCluster


class Recorder:
    """A member that records its notifications and requests."""

    def __init__(self, kind: MemberKind, group: str, topics: Collection[str] = ()) -> None:
        self._kind = kind
        self.group = group
        self.in_use = topics
        self.routes: asyncio.Queue[TopicRoute] = asyncio.Queue()
        self.requests: list[tuple[str, int]] = []
        self.changes = asyncio.Semaphore(0)
        self.is_mine = True

    def _heartbeat_part(self) -> ConsumerData | ProducerData | None:
        if self._kind is MemberKind.PRODUCER:
            return ProducerData(group_name=self.group)
        return ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_PASSIVELY",
            group_name=self.group,
            message_model="CLUSTERING",
            subscription_data_set=[],
            unit_mode=False,
        )

    def _topics(self) -> Collection[str]:
        return self.in_use

    def _on_members_changed(self) -> None:
        self.changes.release()

    def _on_route_changed(self, route: TopicRoute) -> None:
        self.routes.put_nowait(route)

    def _on_connection(self, event: ConnectionEvent) -> None:
        pass

    def _on_request(self, address: str, request: Command) -> Answer:
        self.requests.append((address, request.code))
        return command.reply(request, body=self.group.encode()) if self.is_mine else None


def producer(group: str = "P", topics: Collection[str] = ()) -> Recorder:
    return Recorder(MemberKind.PRODUCER, group, topics)


def consumer(group: str = "C", topics: Collection[str] = ()) -> Recorder:
    return Recorder(MemberKind.CONSUMER, group, topics)


# --- who shares what --------------------------------------------------------------


async def test_clients_of_one_configuration_share_an_instance() -> None:
    members = [producer(), consumer(), producer("P2"), Guest(), Guest()]
    config = ClientConfig(namesrv_addr="127.0.0.1:1")
    instances = [await ClientInstance.join(config, member) for member in members]

    assert len(set(instances)) == 1
    for member in members:
        await instances[0].leave(member)
    again = await ClientInstance.join(config, members[0])
    assert again is not instances[0]
    await again.leave(members[0])


async def test_two_members_of_one_group_are_two_clients() -> None:
    config = ClientConfig(namesrv_addr="127.0.0.1:1")
    members = [consumer(), consumer()]
    first, second = [await ClientInstance.join(config, member) for member in members]

    assert first.client_id != second.client_id
    await first.leave(members[0])
    await second.leave(members[1])


async def test_a_chosen_instance_name_is_part_of_the_id_and_has_a_group_once() -> None:
    config = ClientConfig(
        namesrv_addr="127.0.0.1:1", instance_name="mine", client_ip="192.0.2.9", unit_name="u"
    )
    member = consumer()
    instance = await ClientInstance.join(config, member)

    assert instance.client_id == "192.0.2.9@mine@u"
    with pytest.raises(InvalidOption, match=r"consumer group 'C' is in it already"):
        await ClientInstance.join(config, consumer())
    await instance.leave(member)


# --- name servers and routes --------------------------------------------------------


async def test_name_servers_are_tried_in_turn_until_one_answers() -> None:
    async with ScriptedCluster({"T": {"broker-a": 4}}) as cluster:
        config = ClientConfig(namesrv_addr=f"127.0.0.1:1;{cluster.namesrv};127.0.0.1:2")
        guest = Guest()
        instance = await ClientInstance.join(config, guest)
        for _ in range(3):
            assert len((await instance.route("T", refresh=True)).publish_queues) == 4
        await instance.leave(guest)


async def test_when_no_name_server_answers() -> None:
    guest = Guest()
    instance = await ClientInstance.join(
        ClientConfig(namesrv_addr="127.0.0.1:1;127.0.0.1:2"), guest
    )
    with pytest.raises(RemotingError, match=r"127\.0\.0\.1:[12]"):
        await instance.route("T")
    await instance.leave(guest)


async def test_concurrent_route_queries_share_a_request() -> None:
    async with ScriptedCluster({"T": {"broker-a": 4}}) as cluster:
        guest = Guest()
        instance = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), guest)
        routes = await asyncio.gather(*(instance.route("T", refresh=True) for _ in range(50)))

        assert len({id(route) for route in routes}) == 1
        assert len(cluster.name_server.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
        await instance.leave(guest)


async def test_an_unknown_topic_and_a_refusal() -> None:
    async with ScriptedCluster({}) as cluster:
        guest = Guest()
        instance = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), guest)
        with pytest.raises(NoRoute, match="'T'"):
            await instance.route("T")
        cluster.name_server.answers.clear()
        with pytest.raises(BrokerError, match="code 3"):
            await instance.route("T")
        await instance.leave(guest)


async def test_members_are_notified_of_changed_routes() -> None:
    async with ScriptedCluster({"T": {"broker-a": 4}}) as cluster:
        config = ClientConfig(namesrv_addr=cluster.namesrv, poll_name_server_ms=1)
        member = consumer(topics=["T", "Absent"])
        instance = await ClientInstance.join(config, member)

        assert len((await member.routes.get()).subscribe_queues) == 4
        cluster.topics["T"] = {"broker-a": 6}
        assert len((await member.routes.get()).subscribe_queues) == 6
        known = instance.known_route("T")
        assert known is not None
        assert len(known.subscribe_queues) == 6
        await instance.leave(member)


async def test_a_deleted_topic_keeps_its_last_route() -> None:
    async with ScriptedCluster({"T": {"broker-a": 4}}) as cluster:
        config = ClientConfig(namesrv_addr=cluster.namesrv, poll_name_server_ms=1)
        member = consumer(topics=["T"])
        instance = await ClientInstance.join(config, member)
        await member.routes.get()
        del cluster.topics["T"]
        asked = len(cluster.name_server.requests)
        await cluster.name_server.until_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked + 3)

        assert instance.known_route("T") is not None
        await instance.leave(member)


# --- heartbeats -----------------------------------------------------------------------


async def test_brokers_get_heartbeats_and_unregistrations_of_members() -> None:
    async with ScriptedCluster({"T": {"broker-a": 1, "broker-b": 1}}, brokers=2) as cluster:
        config = ClientConfig(namesrv_addr=cluster.namesrv)
        members = [producer(), consumer()]
        for member in members:
            instance = await ClientInstance.join(config, member)
        await instance.route("T")
        for broker in cluster.brokers:
            (beat, *_) = await broker.until_asked(RequestCode.HEART_BEAT)
            body = bodies.decode(HeartbeatData, beat.body)
            assert body.client_id == instance.client_id
            assert [entry.group_name for entry in body.producer_data_set] == ["P"]
            assert [entry.group_name for entry in body.consumer_data_set] == ["C"]
        await instance.heartbeat()
        assert [instance.broker_version(broker.address) for broker in cluster.brokers] == [407, 407]
        for member in members:
            await instance.leave(member)
        for broker in cluster.brokers:
            fields = [request.ext_fields for request in broker.asked(RequestCode.UNREGISTER_CLIENT)]
            assert fields == [
                {"clientID": instance.client_id, "producerGroup": "P"},
                {"clientID": instance.client_id, "consumerGroup": "C"},
            ]


async def test_a_heartbeat_in_flight_does_not_follow_the_unregistration() -> None:
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        stays, leaves = producer(), consumer()
        config = ClientConfig(namesrv_addr=cluster.namesrv)
        for member in (stays, leaves):
            instance = await ClientInstance.join(config, member)
        broker = cluster.broker
        broker.answers[RequestCode.HEART_BEAT] = lambda _: None
        await instance.route("T")
        (held, *_) = await broker.until_asked(RequestCode.HEART_BEAT)
        leaving = asyncio.create_task(instance.leave(leaves))
        await instance.route("T", refresh=True)
        assert not broker.asked(RequestCode.UNREGISTER_CLIENT)
        broker.answers[RequestCode.HEART_BEAT] = command.reply
        broker.channels[0].answer(held, command.reply(held))
        await leaving
        assert len(broker.asked(RequestCode.UNREGISTER_CLIENT)) == 1
        await instance.leave(stays)


async def test_members_that_leave_together_all_unregister(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        members = [consumer(f"C{number}") for number in range(10)]
        config = ClientConfig(namesrv_addr=cluster.namesrv)
        for member in members:
            instance = await ClientInstance.join(config, member)
        await instance.route("T")
        await asyncio.gather(*map(instance.leave, members))
        assert len(cluster.broker.asked(RequestCode.UNREGISTER_CLIENT)) == 10
    assert not caplog.records


async def test_an_unreachable_broker_does_not_stop_heartbeats_to_others() -> None:
    async with ScriptedCluster({"T": {"broker-a": 1, "broker-b": 1}}, brokers=2) as cluster:
        member = producer()
        instance = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), member)
        await cluster.broker.stop()
        await instance.route("T")

        assert await cluster.brokers[1].until_asked(RequestCode.HEART_BEAT)
        await instance.leave(member)


# --- requests of brokers ----------------------------------------------------------------


async def connected(cluster: ScriptedCluster, members: Collection[Recorder]) -> ClientInstance:
    """Return an instance with a connection from the broker's side."""
    for member in members:
        instance = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), member)
    await instance.route("T")
    await cluster.broker.until_asked(RequestCode.HEART_BEAT)
    return instance


def half_message(group: str) -> bytes:
    host = Host(bytes(4), 1)
    return records.encode(
        StoredMessage(
            topic="T",
            body=b"",
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            born_timestamp=0,
            born_host=host,
            store_timestamp=0,
            store_host=host,
            property_bytes=props.encode({"PGROUP": group}),
        )
    )


@pytest.mark.parametrize(
    ("code", "fields", "body", "group"),
    [
        (RequestCode.CHECK_TRANSACTION_STATE, {}, half_message("P2"), "P2"),
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "C2"}, b"", "C2"),
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "C"}, b"", "C"),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "C2"}, b"", "C2"),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "C"}, b"", "C"),
    ],
)
async def test_a_request_is_routed_to_its_member(
    code: RequestCode, fields: dict[str, str], body: bytes, group: str
) -> None:
    members = [producer("P"), producer("P2"), consumer("C"), consumer("C2")]
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        instance = await connected(cluster, members)
        (channel,) = cluster.broker.channels
        reply = await channel.invoke(Command(code, ext_fields=fields, body=body), 3000)

        assert (reply.code, reply.body) == (0, group.encode())
        asked = {member.group: member.requests for member in members if member.requests}
        assert asked == {group: [(cluster.broker.address, code)]}
        for member in members:
            await instance.leave(member)


async def test_members_are_notified_of_group_changes() -> None:
    member = consumer()
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        instance = await connected(cluster, [member])
        fields = {"consumerGroup": "C"}
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        cluster.broker.channels[0].send(Command(code, flag=2, ext_fields=fields))

        await member.changes.acquire()
        await instance.leave(member)


async def test_a_reply_message_goes_to_the_waiting_producer() -> None:
    members = [producer("P1"), producer("P2"), producer("P3")]
    members[0].is_mine = members[2].is_mine = False
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        instance = await connected(cluster, members)
        (channel,) = cluster.broker.channels
        request = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields={})
        assert (await channel.invoke(request, 3000)).body == b"P2"

        members[1].is_mine = False
        request = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields={})
        assert (await channel.invoke(request, 3000)).code == ResponseCode.SUCCESS
        for member in members:
            await instance.leave(member)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, ResponseCode.SYSTEM_ERROR),
        (RequestCode.CHECK_TRANSACTION_STATE, ResponseCode.SYSTEM_ERROR),
        (RequestCode.SEND_MESSAGE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ],
)
async def test_requests_for_unknown_groups_are_refused(
    code: RequestCode, expected: ResponseCode
) -> None:
    member = consumer()
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        instance = await connected(cluster, [member])
        request = Command(code, ext_fields={"consumerGroup": "Nobody"}, body=b"damaged")
        reply = await cluster.broker.channels[0].invoke(request, 3000)

        assert reply.code == expected
        assert reply.remark
        await instance.leave(member)


# --- where a client is used ---------------------------------------------------------------


def test_a_client_in_another_event_loop_is_an_error() -> None:
    namesrv = "127.0.0.1:9"
    producer = Producer("P", namesrv=namesrv)
    pull = PullConsumer("C", namesrv=namesrv)
    pop = PopConsumer("C2", namesrv=namesrv)
    push = PushConsumer("C3", namesrv=namesrv, listener=lambda *_: None)
    admin = Admin(namesrv)
    clients = (producer, pull, pop, push, admin)

    async def start() -> None:
        for client in clients:
            await client.start()

    async def use() -> None:
        for call in (
            *(call for client in clients for call in (client.start, client.close)),
            lambda: producer.send(Message("T", b"x")),
            lambda: pull.poll(),
            lambda: anext(pull),
            lambda: pop.pop(),
            lambda: push.subscribe("T"),
            lambda: push.unsubscribe("T"),
            lambda: admin.clusters(),
        ):
            with pytest.raises(StartedElsewhere, match="started in one event loop"):
                await call()

    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(start())
        asyncio.run(use())
        for client in clients:
            first.run_until_complete(client.close())
    finally:
        first.close()


def test_clients_that_are_open_when_the_loop_ends_are_a_warning() -> None:
    async def leave_open() -> None:
        async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
            for client in (Producer("shop", namesrv=cluster.namesrv), Admin(cluster.namesrv)):
                await client.start()
            async with Producer("closed", namesrv=cluster.namesrv):
                pass

    with pytest.warns(ResourceWarning) as warned:
        asyncio.run(leave_open())
    assert sorted(str(warning.message) for warning in warned) == [
        "Admin was not closed; `async with` closes it",
        "Producer of group 'shop' was not closed; `async with` closes it",
    ]


def test_a_client_that_its_cancelled_task_closes_is_no_warning() -> None:
    async def cancel_at_the_end() -> None:
        async def use(is_started: asyncio.Event) -> None:
            async with Producer("shop", namesrv="127.0.0.1:1"):
                is_started.set()
                await asyncio.Event().wait()

        is_started = asyncio.Event()
        task = asyncio.create_task(use(is_started))
        await is_started.wait()
        assert not task.done()

    asyncio.run(cancel_at_the_end())  # Warnings are errors.


@pytest.mark.parametrize(
    "client", [Producer("G", namesrv="a:1"), PullConsumer("G", namesrv="a:1"), Admin("a:1")]
)
def test_plain_with_is_an_error_with_the_remedy(client: Producer | PullConsumer | Admin) -> None:
    with (
        pytest.raises(TypeError, match=r"use `async with` instead of `with`, or reput.client.bloc"),
        client,  # type: ignore[attr-defined]
    ):
        pass
