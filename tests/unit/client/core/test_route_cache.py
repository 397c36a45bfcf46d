import pytest

from reput.client.core.route_cache import (
    NoRoute,
    RouteCache,
    TopicRoute,
    default_route,
    topic_route,
)
from reput.format.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData


def broker(name: str, **addresses: str) -> BrokerData:
    by_id = {int(key.removeprefix("id")): address for key, address in addresses.items()}
    return BrokerData(broker_addrs=by_id, broker_name=name, cluster="c")


def queue_data(name: str, read: int, write: int, perm: int = 6) -> QueueData:
    return QueueData(broker_name=name, perm=perm, read_queue_nums=read, write_queue_nums=write)


def route(topic: str = "T", order_topic_conf: str | None = None) -> TopicRoute:
    return topic_route(
        topic,
        TopicRouteData(
            broker_datas=[
                broker("b", id0="b:10911", id1="b:10921"),
                broker("a", id0="a:10911"),
                broker("slave-only", id1="s:10911"),
                broker("read-only", id0="r:10911"),
            ],
            order_topic_conf=order_topic_conf,
            queue_datas=[
                queue_data("b", 1, 2),
                queue_data("a", 2, 1),
                queue_data("slave-only", 1, 1),
                queue_data("read-only", 1, 1, perm=4),
                queue_data("not-there", 1, 1),
                queue_data("a-write-only", 1, 1, perm=2),
            ],
        ),
    )


def places(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    assert {queue.topic for queue in queues} <= {"T", "New"}
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_publish_queues_are_writable_queues_of_masters() -> None:
    assert places(route().publish_queues) == [("a", 0), ("b", 0), ("b", 1)]


def test_subscribe_queues_are_readable_queues() -> None:
    assert places(route().subscribe_queues) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("not-there", 0),
        ("read-only", 0),
        ("slave-only", 0),
    ]


def test_an_ordered_topic_has_fixed_queues() -> None:
    assert places(route(order_topic_conf="b:1;a:2;").publish_queues) == [
        ("b", 0),
        ("a", 0),
        ("a", 1),
    ]


def test_addresses() -> None:
    topic_route_of_t = route()

    assert topic_route_of_t.master("a") == "a:10911"
    assert topic_route_of_t.any_address("b", 1) == "b:10921"
    assert topic_route_of_t.any_address("a", 1) == "a:10911"
    assert topic_route_of_t.any_address("slave-only") == "s:10911"
    assert topic_route_of_t.any_address("slave-only", 2) == "s:10911"
    with pytest.raises(NoRoute, match=r"'T'.*'slave-only' has no master"):
        topic_route_of_t.master("slave-only")
    with pytest.raises(NoRoute, match="'not-there' is not there"):
        topic_route_of_t.any_address("not-there")


def test_another_broker_replaces_a_missing_one() -> None:
    """As Java's ``findBrokerAddressInSubscribe``: the next id of a slave, else the lowest."""
    topic_route_of_t = topic_route(
        "T",
        TopicRouteData(broker_datas=[broker("a", id1="a:1", id3="a:3", id4="a:4")], queue_datas=[]),
    )
    ids = [(number, topic_route_of_t.any_address("a", number)) for number in range(6)]
    assert ids == [(0, "a:1"), (1, "a:1"), (2, "a:3"), (3, "a:3"), (4, "a:4"), (5, "a:1")]


def test_a_default_route_has_the_queues_of_its_template_up_to_a_limit() -> None:
    template = topic_route(
        "TBW102",
        TopicRouteData(
            broker_datas=[broker("a", id0="a:1"), broker("b", id0="b:1")],
            queue_datas=[queue_data("a", 8, 8, perm=7), queue_data("b", 2, 2, perm=7)],
        ),
    )
    new_route = default_route("New", template, 4)

    assert new_route.is_default
    expected = [*(("a", i) for i in range(4)), ("b", 0), ("b", 1)]
    assert places(new_route.publish_queues) == places(new_route.subscribe_queues) == expected
    assert template.data.queue_datas[0].write_queue_nums == 8


def test_put_returns_whether_the_route_changed() -> None:
    cache = RouteCache()

    assert cache.put(route())
    assert not cache.put(route())
    assert cache.put(route(order_topic_conf="a:1"))
    assert cache.put(route("U"))
    assert cache.get("T") == route(order_topic_conf="a:1")
    assert cache.brokers()["b"] == {0: "b:10911", 1: "b:10921"}

    cache.forget_all_but({"U"})
    assert cache.get("T") is None
    assert cache.topics() == ["U"]
