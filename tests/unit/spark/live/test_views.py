"""Views of running brokers, compared with those of their stores after a clean stop."""

from pathlib import Path
from typing import Any

import pytest

from reput.client import blocking
from reput.client.message import Message
from reput.errors import InvalidOption
from reput.spark.live import calls as live_calls
from reput.testing import LocalBroker
from spark.live_traffic import BROKER, queue
from spark.reading import Row, read_view

TENANT = "tenant"
VIEWS = ("offsets", "topics")
SELECTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"topic": "Orders"},
    {"topic": "Orders,Absent"},
    {"subscribePattern": "Or.*|B.*"},
    {"assign": {"Orders": {BROKER: [0]}}},
)


LiveRows = dict[tuple[str, int], list[Row]]
"""Rows by view and number of the selection."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, LiveRows]:
    """Return the folder of a stopped broker, its address, and what it answered."""
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
            (view, number): read_view(nameServer=address, view=view, **selection)
            for view in VIEWS
            for number, selection in enumerate(SELECTIONS)
        }
        # A namespace shortens names and hides other topics.
        (topic,) = read_view(nameServer=address, view="topics", namespace=TENANT)
        assert (topic["topic"], topic["message_count"]) == ("Orders", 1)
        (offset,) = read_view(nameServer=address, view="offsets", namespace=TENANT)
        assert (offset["topic"], offset["consumer_group"], offset["lag"]) == ("Orders", "audit", 1)
        with pytest.raises(InvalidOption, match="names of brokers: broker-a"):
            read_view(nameServer=address, view="topics", broker="broker-b")
        live_calls.disconnect()
    return folder, broker_address, rows


def plain(rows: list[Row]) -> list[Row]:
    """Return rows without the place, in order."""
    kept = [{name: value for name, value in row.items() if name != "store"} for row in rows]
    return sorted(kept, key=lambda row: (row["topic"], row.get("queue_id", 0)))


def test_rows_equal_those_of_the_store(seen: tuple[Path, str, LiveRows]) -> None:
    folder, address, rows = seen
    for (view, number), live in rows.items():
        assert {row["store"] for row in live} == {address}
        given = {"path": folder, "view": view, "broker": BROKER, **SELECTIONS[number]}
        assert plain(live) == plain(read_view(**given)) != []
    lags = [row for row in rows["offsets", 0] if row["consumer_group"] == "audit"]
    assert [(row["queue_id"], row["min_offset"], row["lag"]) for row in lags] == [
        (0, 0, 0),
        (2, 0, 6),
    ]
