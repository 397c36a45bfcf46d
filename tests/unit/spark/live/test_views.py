"""Views of running brokers, compared with those of their stores after a clean stop."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reput.client import blocking
from reput.client.message import Message
from reput.errors import InvalidOption
from reput.spark import options as option_texts, views
from reput.spark.live import calls as live_calls
from reput.testing import LocalBroker
from spark import reading
from spark.live_traffic import BROKER, queue

Row = dict[str, Any]
TENANT = "tenant"
VIEWS = ("offsets", "topics")
SELECTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"topic": "Orders"},
    {"topic": "Orders,Absent"},
    {"subscribePattern": "Or.*|B.*"},
    {"assign": {"Orders": {BROKER: [0]}}},
)


@dataclass(frozen=True)
class LiveFacts:
    """What a running broker answered, and its folder."""

    folder: Path
    address: str
    broker_address: str
    rows: dict[tuple[str, int], list[Row]]
    """Rows by view and number of the selection."""
    of_namespace: dict[str, list[Row]]


def read(**given: Any) -> list[Row]:
    parsed = option_texts.parse(reading.texts(given))
    columns = parsed.columns or list(views.fields(parsed))
    rows: list[Row] = []
    for part in views.partitions(parsed):
        sent, part = pickle.loads(pickle.dumps((parsed, part)))
        for batch in views.read(sent, columns, part):
            batch.validate(full=True)
            assert batch.schema.names == list(columns)
            rows += batch.to_pylist()
    return rows


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> LiveFacts:
    folder = tmp_path_factory.mktemp("store")
    topics = {"Orders": 3, "Bills": 1, "Empty": 2, f"{TENANT}%Orders": 2}
    with LocalBroker(topics=topics, folder=folder) as mq:
        address = mq.namesrv_addr
        with (
            blocking.Producer("p", namesrv=address) as producer,
            blocking.Admin(address) as admin,
        ):
            for i in range(30):
                producer.send(Message("Orders", b"x"), queue=queue(i % 3))
            producer.send(Message("Bills", b"x"))
            producer.send(Message(f"{TENANT}%Orders", b"x"), queue=queue(1, f"{TENANT}%Orders"))
            for topic, count in (("Orders", 30), ("Bills", 1), (f"{TENANT}%Orders", 1)):
                mq.messages(topic, at_least=count)
            for group in ("audit", f"{TENANT}%audit"):
                admin.create_group(group)
            for queue_id, consumer_offset in ((0, 10), (2, 4)):
                admin.update_consumer_offset("audit", queue(queue_id), consumer_offset)
            tenants = queue(1, f"{TENANT}%Orders")
            admin.update_consumer_offset(f"{TENANT}%audit", tenants, 0)
            broker_address = admin.clusters().broker_addr_table[BROKER].broker_addrs[0]
        rows = {
            (view, number): read(nameServer=address, view=view, **selection)
            for view in VIEWS
            for number, selection in enumerate(SELECTIONS)
        }
        of_namespace = {
            view: read(nameServer=address, view=view, namespace=TENANT) for view in VIEWS
        }
        with pytest.raises(InvalidOption, match="names of brokers: broker-a"):
            read(nameServer=address, view="topics", broker="broker-b")
        live_calls.disconnect()
    return LiveFacts(folder, address, broker_address, rows, of_namespace)


def plain(rows: list[Row]) -> list[Row]:
    """Return rows without the place, in order."""
    kept = [{name: value for name, value in row.items() if name != "store"} for row in rows]
    return sorted(kept, key=lambda row: (row["topic"], row.get("queue_id", 0)))


@pytest.mark.parametrize("number", range(len(SELECTIONS)))
@pytest.mark.parametrize("view", VIEWS)
def test_rows_equal_those_of_the_store(seen: LiveFacts, view: str, number: int) -> None:
    live = seen.rows[view, number]
    assert live
    assert {row["store"] for row in live} == {seen.broker_address}
    of_store = read(path=str(seen.folder), view=view, broker=BROKER, **SELECTIONS[number])
    assert plain(live) == plain(of_store)


def test_lag_is_that_of_the_model(seen: LiveFacts) -> None:
    rows = [row for row in seen.rows["offsets", 0] if row["consumer_group"] == "audit"]
    assert [(row["queue_id"], row["min_offset"], row["lag"]) for row in rows] == [
        (0, 0, 0),
        (2, 0, 6),
    ]


def test_a_namespace_shortens_names_and_hides_other_topics(seen: LiveFacts) -> None:
    (topic,) = seen.of_namespace["topics"]
    assert (topic["topic"], topic["message_count"]) == ("Orders", 1)
    (offset,) = seen.of_namespace["offsets"]
    assert (offset["topic"], offset["consumer_group"], offset["lag"]) == ("Orders", "audit", 1)


@pytest.mark.parametrize("view", ["files", "gaps", "index", "checkpoint", "consumequeue"])
def test_views_of_files_are_refused(view: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{view}'.*messages, offsets, topics, where nameS"):
        option_texts.parse({"nameServer": "127.0.0.1:9876", "view": view})


def test_selections_of_messages_are_refused() -> None:
    with pytest.raises(InvalidOption, match="messages, together with key"):
        option_texts.parse({"nameServer": "127.0.0.1:9876", "view": "offsets", "key": "a"})
