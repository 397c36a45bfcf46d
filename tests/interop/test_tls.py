"""TLS between official clients and our servers, and between our clients and official servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Authority
from interop import java_oracle
from interop.java_cluster import ClientError, JavaClient, JavaCluster, JavaMessage
from interop.other_clients import GoTlsClient, OtherClientError
from reput.client import Message, Producer, blocking
from reput.client.admin import Admin
from reput.client.config import ClientConfig
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.slow]

VERSIONS = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("5.5.0",)
TLS = {"tls.enable": "true"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReputCluster]:
    """Start a name server and a broker that accept TLS alone, without configured certificates."""
    folder = tmp_path_factory.mktemp("enforcing")
    with ReputCluster(folder, {"tls.server.mode": "enforcing"}) as running:
        yield running


@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_in_test_mode(enforcing: ReputCluster, version: str, tmp_path: Path) -> None:
    topic = f"test-mode-{version.replace('.', '-')}"
    with JavaClient(version, tmp_path, properties=TLS) as java:
        producer = java.producer(enforcing.namesrv)
        bodies = [b"%d" % number * 1000 for number in range(50)]
        results = producer.send([JavaMessage(topic, body) for body in bodies])
        assert {result.status for result in results} == {"SEND_OK"}
        consumer = java.push_consumer(enforcing.namesrv, f"group-{topic}", topic)
        assert sorted(message.body for message in consumer.take(50)) == sorted(bodies)
        assert topic in java.mqadmin("topicList", namesrv=enforcing.namesrv)
        status = java.mqadmin("brokerStatus", "-b", enforcing.address, namesrv=enforcing.namesrv)
        assert "bootTimestamp" in status


@pytest.mark.skipif(not java_oracle.wants_all_versions(), reason="make interop-all: no Go client")
def test_the_go_client(enforcing: ReputCluster) -> None:
    go = GoTlsClient()
    go.environment = {"ROCKETMQ_TLS": "true"}
    bodies = [b"%d" % number for number in range(8)]
    assert len(go.produce(enforcing.namesrv, "by-go", bodies)) == 8
    received = go.consume(enforcing.namesrv, "by-go", "by-go", 8)
    assert sorted(message["body"] for message in received) == bodies
    go.environment = {}
    with pytest.raises(OtherClientError):
        go.produce(enforcing.namesrv, "by-go", [b"plain"])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_client_without_tls_stores_nothing(
    enforcing: ReputCluster, version: str, tmp_path: Path
) -> None:
    with JavaClient(version, tmp_path) as java, pytest.raises(ClientError):
        java.producer(enforcing.namesrv).send([JavaMessage("never", b"x")])
    client = ClientConfig(namesrv_addr=enforcing.namesrv, use_tls=True)
    with blocking.Admin(client=client) as admin:
        assert "never" not in admin.topic_configs(enforcing.address)  # a send would create it


@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_with_certificates(authority: Authority, version: str, tmp_path: Path) -> None:
    broker = authority.issue("broker", is_rsa=version == "4.9.7")
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": broker.certificate,
        "tls.server.keyPath": broker.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority.path,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.path,
        "tls.client.certPath": broker.certificate,
        "tls.client.keyPath": broker.key,
    }
    own, foreign = authority.issue("client"), Authority(tmp_path / "x", "stranger").issue("client")

    def client(name: str, certificate: str, key: str) -> JavaClient:
        properties = {
            **TLS,
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": authority.path,
            "tls.client.certPath": certificate,
            "tls.client.keyPath": key,
        }
        return JavaClient(version, tmp_path / name, properties=properties)

    with ReputCluster(tmp_path / "cluster", settings) as cluster:
        with client("own", own.certificate, own.key) as java:
            producer = java.producer(cluster.namesrv)
            assert producer.send([JavaMessage("certified", b"x")])[0].status == "SEND_OK"
        with (
            client("foreign", foreign.certificate, foreign.key) as java,
            pytest.raises(ClientError),
        ):
            java.producer(cluster.namesrv).send([JavaMessage("certified", b"x")])


@pytest.mark.parametrize("version", VERSIONS)
async def test_our_clients_on_a_java_broker(version: str, tmp_path: Path) -> None:
    with JavaCluster(version, tmp_path, tls=True) as cluster:
        client = ClientConfig(namesrv_addr=cluster.namesrv, use_tls=True)
        async with Producer("group", client=client) as producer:
            result = await producer.send(Message("Topic", bytes(100_000)))
            assert result.queue_offset == 0
        async with Admin(client=client) as admin:
            assert "broker-a" in (await admin.clusters()).broker_addr_table
