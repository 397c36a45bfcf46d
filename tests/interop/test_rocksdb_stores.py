"""Folders of Java brokers whose tables are in RocksDB: refused, and taken over after the cure.

The cure is that of docs/how-to/move-from-a-java-broker.md; a tool of 5.5.0 reads those of 5.2 too.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import java_oracle
from interop.clusters import until
from interop.conftest import _or_skip
from interop.java_cluster import ClientError, JavaClient, JavaCluster, JavaMessage
from reput.store.files import paths
from reput_cluster import DidNotStart, ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

TOPIC, GROUP = "Kept", "readers"
ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


@pytest.mark.parametrize("version", ["5.2.0", "5.3.3", "5.5.0"])
def test_tables_in_rocksdb_are_refused_until_they_are_exported(
    java: JavaClient, tmp_path: Path, version: str
) -> None:
    folder = tmp_path / "cluster"
    settings = {"storeType": "defaultRocksDB"}
    with _or_skip(lambda: JavaCluster(version, folder, settings)) as cluster:
        send(java, cluster.namesrv, b"before")
        with java.push_consumer(cluster.namesrv, GROUP, TOPIC) as consumer:
            assert [message.body for message in consumer.take(1)] == [b"before"]
            consumer.persist()
        cluster.stop()
    store = cluster.store
    with pytest.raises(DidNotStart, match="in RocksDB"):
        ReputCluster(folder)
    for name in (paths.CONSUME_QUEUE, "consumequeue_rocksdb"):
        if (store / name / "CURRENT").exists():
            shutil.rmtree(store / name)
    with pytest.raises(DidNotStart, match="rocksDBConfigToJson"):
        ReputCluster(folder)
    for path, file in paths.ROCKSDB_TABLES.items():
        export(store, path.rpartition("/")[2], store / file)
        shutil.rmtree(store / path)
    with ReputCluster(folder) as ours:
        send(java, ours.namesrv, b"after")
        with java.push_consumer(ours.namesrv, GROUP, TOPIC) as consumer:
            # The group continues after the consumed messages.
            assert [message.body for message in consumer.take(1)] == [b"after"]


@pytest.fixture
def java(tmp_path: Path) -> Iterator[JavaClient]:
    with _or_skip(lambda: JavaClient("4.9.7", tmp_path / "client")) as client:
        yield client


def send(java: JavaClient, namesrv: str, body: bytes) -> None:
    """Send a message as soon as the broker takes it: one of 5.x takes none for a second."""

    def is_sent() -> bool:
        try:
            return bool(producer.send([JavaMessage(TOPIC, body)]))
        except ClientError:
            return False

    with java.producer(namesrv) as producer:
        until(is_sent)


def export(store: Path, table: str, file: Path) -> None:
    jars = java_oracle.class_path(java_oracle.cluster_jars("5.5.0"))
    command = [java_oracle.tool("java"), "-Xmx256m", "-cp", jars, ADMIN, "rocksDBConfigToJson"]
    command += ["-p", str(store / "config"), "-t", table, "-e", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert file.exists(), result.stdout + result.stderr
