"""Stores that were in DLedger or RocksDB, converted: the official broker serves the same messages.

The stores are those of ``data/dledger``, which official brokers have written. The broker of the
same version opens what the conversion has written, as a plain master.
"""

from pathlib import Path

import pytest

import foreign_stores
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, Queue
from interop.record_dledger import SETTINGS, SIZES, TOPIC, described
from reput import config
from reput.format import names
from reput.spark.jobs.convert import convert
from reput.store.config import StoreConfig

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("version", "name"), foreign_stores.STORES)
def test_java_serves_the_same_messages_at_the_same_queue_offsets(
    version: str, name: str, tmp_path: Path
) -> None:
    if name == "rocksdb":
        pytest.importorskip("rocksdict", reason="missing rocksdict: pip install rocksdict")
    source = foreign_stores.unpack(version, name, tmp_path)
    form = "rocksdb" if name == "rocksdb" else "dledger"
    plain = tmp_path / "plain"
    # A store in RocksDB does not have the sizes of queue files.
    settings = config.load(StoreConfig, SIZES).value if name == "rocksdb" else None
    convert(None, str(source), str(plain / "store"), form=form, config=settings)
    expected = foreign_stores.manifest(version, name)
    with (
        _or_skip(lambda: JavaClient(version, tmp_path / "client")) as java,
        JavaCluster(version, plain, SETTINGS) as cluster,
    ):
        seen = described(java, cluster.namesrv)
        known, served = foreign_stores.messages(expected), foreign_stores.messages(seen)
        # The broker checks half messages again, and delivers what was due meanwhile.
        differing = {
            (place, field): (value, served[place][field])
            for place, fields in known.items()
            for field, value in fields.items()
            if place not in served or served[place][field] != value
        }
        assert not differing
        more = {place for place in served.keys() - known.keys() if place[0].startswith(TOPIC)}
        assert len(more) == len(expected.get("without_quorum", ())), "kept, and nothing else"
        assert seen["with_key_shared"] == expected["with_key_shared"]
        end = seen["queues"][f"{TOPIC}/1"]["max"]
        with java.producer(cluster.namesrv) as producer:
            (sent,) = producer.send(
                [JavaMessage(TOPIC, b"after")], queue=Queue(TOPIC, "broker-a", 1)
            )
        assert sent.queue_offset == end
        waiting = f"{names.SCHEDULE_TOPIC}/3"
        assert seen["queues"][waiting]["max"] == expected["queues"][waiting]["max"]
