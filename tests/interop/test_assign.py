"""Queue assignment: the same results as the strategies of Java's client."""

from collections.abc import Iterator
from random import Random

import pytest

import seeds
from interop.java_oracle import JavaOracle, Oracle, Word
from interop.recorded_oracle import oracle_fixture
from reput.client.core import assign
from reput.client.core.assign import Strategy
from reput.format.bodies import MessageQueue

pytestmark = pytest.mark.interop

ROOMS = ("roomA", "roomB", "roomC", "roomD")
ODD_LETTERS = "aZ0_-%|.#é\uffee\U0001f600"


class AssignOracle(JavaOracle):
    """Running ``AssignOracle.java``."""

    main_class = "AssignOracle"


java = oracle_fixture(AssignOracle)


def queues_of(random: Random, topic: str) -> list[MessageQueue]:
    brokers = random.sample([f"{room}@broker-{i}" for room in ROOMS for i in range(3)], 4)
    brokers += random.sample(["plain", "roomA@b@c", "roomB@", "@b", "roomC@b@"], 2)
    return assign.sorted_queues(
        MessageQueue(topic, broker, queue_id)
        for broker in brokers
        for queue_id in range(random.randint(0, 9))
    )


def clients_of(random: Random) -> list[str]:
    count = random.choice((1, 2, 3, 5, 8, 40))
    rooms = ROOMS[: random.randint(1, 4)]
    return assign.sorted_clients(
        f"{random.choice(rooms)}@{random.randrange(1000)}#{i}" for i in range(count)
    )


def words_of(queues: list[MessageQueue], clients: list[str]) -> list[Word]:
    words: list[Word] = [len(queues)]
    for queue in queues:
        words += [queue.topic, queue.broker_name, queue.queue_id]
    return [*words, len(clients), *clients]


def ask(
    java: Oracle,
    command: str,
    strategy: Strategy,
    arguments: list[Word],
    queues: list[MessageQueue],
    clients: list[str],
) -> None:
    """Compare the shares of all members, and of a client that is not a member."""
    ids = [*clients, "stranger"]
    requests = [[client, *words_of(queues, clients), *arguments] for client in ids]
    for client, places in zip(ids, java.ask(command, requests), strict=True):
        assert strategy.allocate(client, queues, clients) == [queues[place] for place in places], (
            client
        )


def cases(java: Oracle, seed: int) -> Iterator[tuple[list[MessageQueue], list[str], Random]]:
    for number in range(java.size(25, 8)):
        random = seeds.random("assign", 1000 * seed + number)
        queues = queues_of(random, f"Topic{number}")
        if queues:
            yield queues, clients_of(random), random


def test_queues_are_sorted_equally(java: Oracle) -> None:
    random = seeds.random("assign", 1)

    def name() -> str:
        return "".join(random.choices(ODD_LETTERS, k=random.randint(1, 4)))

    made = (MessageQueue(name(), name(), random.randrange(20)) for _ in range(300))
    queues = list(dict.fromkeys(made))  # a set would have another order in each process
    clients = list(dict.fromkeys(name() for _ in range(300)))
    queue_places, client_places = java.ask_one("sort", *words_of(queues, clients))
    assert assign.sorted_queues(queues) == [queues[place] for place in queue_places]
    assert assign.sorted_clients(clients) == [clients[place] for place in client_places]


def test_averagely_is_equal(java: Oracle) -> None:
    for queues, clients, _ in cases(java, 2):
        ask(java, "AVG", assign.Averagely(), [], queues, clients)


def test_by_circle_is_equal(java: Oracle) -> None:
    for queues, clients, _ in cases(java, 3):
        ask(java, "AVG_BY_CIRCLE", assign.AveragelyByCircle(), [], queues, clients)


def test_consistent_hash_is_equal(java: Oracle) -> None:
    for queues, clients, random in cases(java, 4):
        count = random.choice((1, 10, 100))
        strategy = assign.ConsistentHash(count)
        ask(java, "CONSISTENT_HASH", strategy, [count], queues, clients)


def test_by_config_is_equal(java: Oracle) -> None:
    for queues, clients, random in cases(java, 5):
        places = random.sample(range(len(queues)), random.randint(0, len(queues)))
        strategy = assign.ByConfig(queues[place] for place in places)
        ask(java, "CONFIG", strategy, [len(places), *places], queues, clients)


def test_by_machine_room_is_equal(java: Oracle) -> None:
    if java.version == "4.5.2":
        pytest.skip(
            "no such case: 4.5 counts the queues of the rooms, and takes that number of all"
        )
    for queues, clients, random in cases(java, 6):
        rooms = random.sample(ROOMS, random.randint(0, 3)) + [""] * random.randint(0, 1)
        strategy = assign.ByMachineRoom(rooms)
        ask(java, "MACHINE_ROOM", strategy, [len(rooms), *rooms], queues, clients)


@pytest.mark.parametrize("inner", [assign.Averagely(), assign.AveragelyByCircle()])
def test_machine_room_nearby_is_equal(java: Oracle, inner: Strategy) -> None:
    for queues, clients, _ in cases(java, 7):
        near = [queue for queue in queues if not queue.broker_name.startswith("@")]
        strategy = assign.MachineRoomNearby(
            inner,
            lambda queue: queue.broker_name.partition("@")[0],
            lambda client_id: client_id.partition("@")[0],
        )
        members = [client for client in clients if client != "stranger"]
        if not near:
            continue
        requests = [[client, *words_of(near, members), inner.name] for client in members]
        answers = java.ask("MACHINE_ROOM_NEARBY", requests)
        for client, places in zip(members, answers, strict=True):
            assert strategy.allocate(client, near, members) == [near[place] for place in places]
