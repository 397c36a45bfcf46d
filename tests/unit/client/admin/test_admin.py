from collections.abc import AsyncIterator

import pytest

import store_builder
from index_model import IndexModel
from reput import config
from reput.client.admin import Admin, PartlyDone
from reput.client.config import ClientConfig
from reput.client.instance import NotStarted
from reput.errors import BrokerError, InvalidOption
from reput.format import bodies, command
from reput.format.bodies import BrokerData, ClusterInfo
from reput.format.codes import RequestCode, ResponseCode
from scripted_cluster import ScriptedBroker, ScriptedCluster, ScriptedServer


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"T": {"broker-a": 1, "broker-b": 1}}, brokers=2) as running:
        register(running, {"c": ["broker-a", "broker-b"]})
        yield running


@pytest.fixture
async def admin(cluster: ScriptedCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.namesrv) as started:
        yield started


def register(cluster: ScriptedCluster, clusters: dict[str, list[str]]) -> None:
    """Script the name server's reply about the brokers of each cluster."""
    table = {
        broker.name: BrokerData(
            broker_addrs={0: broker.address}, broker_name=broker.name, cluster="c"
        )
        for broker in cluster.brokers
    }
    body = bodies.encode(ClusterInfo(broker_addr_table=table, cluster_addr_table=clusters))
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    cluster.name_server.answers[code] = lambda request: command.reply(request, body=body)


def accept(server: ScriptedServer, code: RequestCode) -> None:
    server.answers[code] = command.reply


async def test_a_topic_is_created_on_each_master(cluster: ScriptedCluster, admin: Admin) -> None:
    for broker in cluster.brokers:
        accept(broker, RequestCode.UPDATE_AND_CREATE_TOPIC)

    assert await admin.create_topic("New") == [broker.address for broker in cluster.brokers]
    assert await admin.create_topic("New", broker="broker-b") == [cluster.brokers[1].address]


async def test_a_refusal_of_one_broker_does_not_stop_the_others(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    accept(cluster.brokers[1], RequestCode.UPDATE_AND_CREATE_TOPIC)
    with pytest.raises(PartlyDone, match="code 3") as raised:
        await admin.create_topic("New")

    assert raised.value.done == [cluster.brokers[1].address]
    assert raised.value.failed.keys() == {cluster.brokers[0].address}


async def test_a_kv_pair_is_put_to_each_name_server(cluster: ScriptedCluster) -> None:
    other = ScriptedServer()
    await other.start()
    for server in (cluster.name_server, other):
        accept(server, RequestCode.PUT_KV_CONFIG)
    client = ClientConfig(namesrv_addr=f"{cluster.namesrv};{other.address};127.0.0.1:1")
    async with Admin(client=client) as admin:
        with pytest.raises(PartlyDone, match=r"127\.0\.0\.1:1") as raised:
            await admin.put_kv("n", "k", "v")
    assert raised.value.done == [cluster.namesrv, other.address]
    expected = {"namespace": "n", "key": "k", "value": "v"}
    assert other.asked(RequestCode.PUT_KV_CONFIG)[0].ext_fields == expected
    await other.stop()


async def test_several_clusters_require_a_cluster_name(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    register(cluster, {"one": ["broker-a"], "two": ["broker-b"]})
    accept(cluster.brokers[1], RequestCode.UPDATE_AND_CREATE_TOPIC)
    with pytest.raises(InvalidOption, match="one of one, two"):
        await admin.create_topic("New")

    assert await admin.create_topic("New", cluster="two") == [cluster.brokers[1].address]


async def test_a_group_without_members_is_no_error_and_a_refusal_is_one(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    def offline(broker: ScriptedBroker, code: ResponseCode) -> None:
        broker.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda request: command.reply(
            request, code, "says the broker"
        )

    for broker in cluster.brokers:
        offline(broker, ResponseCode.CONSUMER_NOT_ONLINE)
    assert await admin.consumer_connection("C") is None
    offline(cluster.brokers[1], ResponseCode.NO_PERMISSION)
    with pytest.raises(BrokerError, match="says the broker"):
        await admin.consumer_connection("C")


async def test_broker_settings_are_escaped_as_properties(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    accept(cluster.broker, RequestCode.UPDATE_BROKER_CONFIG)
    settings = {"a": "C:\\x", "b": "x=y:z # !", "c": "two\nlines"}
    await admin.update_broker_config("broker-a", settings)
    (request,) = cluster.broker.asked(RequestCode.UPDATE_BROKER_CONFIG)

    assert config.parse_properties(request.body.decode()) == settings
    with pytest.raises(InvalidOption, match="names of settings"):
        await admin.update_broker_config("broker-a", {"a b": "c"})


async def test_calls_before_start_and_after_close_are_refused(cluster: ScriptedCluster) -> None:
    admin = Admin(cluster.namesrv)
    with pytest.raises(NotStarted, match="admin client"):
        await admin.topics()
    async with admin:
        assert (await admin.clusters()).cluster_addr_table.keys() == {"c"}
    with pytest.raises(NotStarted):
        await admin.topics()


# --- messages by key ----------------------------------------------------------------------------


def index_of(times: list[int], key: str = "k") -> IndexModel:
    """Return the index of messages of topic T with a key, stored at these times after the start."""
    drafts = [
        store_builder.message("T", keys=key, store_timestamp=store_builder.START_MS + time)
        for time in times
    ]
    return IndexModel(store_builder.place(drafts, 1 << 30))


def script_index(broker: ScriptedBroker, index: IndexModel) -> IndexModel:
    broker.answers[RequestCode.QUERY_MESSAGE] = index.reply
    return index


@pytest.mark.parametrize("count", [0, 1, 64, 65, 500])
async def test_all_messages_of_a_key_are_returned_oldest_first(
    cluster: ScriptedCluster, admin: Admin, count: int
) -> None:
    for broker in cluster.brokers:
        script_index(broker, index_of([i * 700 for i in range(count)]))
    messages = await admin.messages_by_key("T", "k", count_max=None)
    times = [message.store_timestamp_ms - store_builder.START_MS for message in messages]
    assert times == sorted(i * 700 for i in range(count) for _ in cluster.brokers)
    assert not messages.is_truncated


async def test_the_newest_messages_of_each_broker_are_returned(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    many, few = (
        script_index(broker, index_of([i * 700 for i in range(count)]))
        for broker, count in zip(cluster.brokers, (500, 3), strict=True)
    )
    expected = {
        name: [message.physical_offset for message in index.log]
        for name, index in (("broker-a", many), ("broker-b", few))
    }
    for count_max in (1, 64, 100, 499, 500, 501):
        messages = await admin.messages_by_key("T", "k", count_max=count_max)
        for name, offsets in expected.items():
            newest = [m.physical_offset for m in messages if m.broker_name == name]
            assert newest == offsets[-count_max:]
        assert messages.is_truncated == (count_max < 500)
    many.query_count = 0
    await admin.messages_by_key("T", "k")
    assert many.query_count == 1


async def test_hash_collisions_do_not_count(cluster: ScriptedCluster, admin: Admin) -> None:
    for broker in cluster.brokers:
        index = index_of([i * 700 for i in range(200)], "other")
        index.log = [*index_of([0]).log, *index.log[1:]]
        index.collisions = ("T#k", "T#other")
        script_index(broker, index)
    messages = await admin.messages_by_key("T", "k", count_max=1)
    assert [message.physical_offset for message in messages] == [0, 0]


async def test_more_messages_in_a_second_than_a_broker_returns_are_reported(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    for broker in cluster.brokers:
        script_index(broker, index_of([*range(0, 50_000, 500), *range(60_000, 60_200)]))
    messages = await admin.messages_by_key("T", "k", count_max=None)
    assert messages.is_truncated
    sparse = [m for m in messages if m.store_timestamp_ms < store_builder.START_MS + 60_000]
    assert len(sparse) == 100 * len(cluster.brokers)
    before_ms = store_builder.START_MS + 59_999
    messages = await admin.messages_by_key("T", "k", count_max=None, end_ms=before_ms)
    assert (len(messages), messages.is_truncated) == (len(sparse), False)
