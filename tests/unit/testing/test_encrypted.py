"""A name server, a broker and clients that use nothing but TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Authority
from reput.cli.app import build_app
from reput.client import Message
from reput.client.blocking import Producer
from reput.client.config import ClientConfig
from reput.errors import ReputError
from reput.testing import LocalBroker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def mq(authority: Authority) -> Iterator[LocalBroker]:
    own = authority.issue("broker")
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.certificate,
        "tls.server.keyPath": own.key,
        "tls.client.trustCertPath": authority.path,
    }
    with LocalBroker(topics=["Orders"], settings=settings) as running:
        yield running


def test_a_blocking_producer(mq: LocalBroker, authority: Authority) -> None:
    client = ClientConfig(
        namesrv_addr=mq.namesrv_addr, use_tls=True, tls_client_trust_cert_path=authority.path
    )
    with Producer("group", client=client) as producer:
        producer.send(Message("Orders", b"two coffees"))
    assert [message.body for message in mq.messages("Orders")] == [b"two coffees"]


def test_a_plain_producer_and_a_wrong_authority(mq: LocalBroker, tmp_path: Path) -> None:
    wrong = Authority(tmp_path, "stranger").path
    for settings in ({}, {"use_tls": True, "tls_client_trust_cert_path": wrong}):
        client = ClientConfig(namesrv_addr=mq.namesrv_addr, **settings)  # type: ignore[arg-type]
        with Producer("group", client=client) as producer, pytest.raises(ReputError):
            producer.send(Message("Orders", b"never"))
    assert b"never" not in [message.body for message in mq.messages("Orders")]


def test_the_command_line(
    mq: LocalBroker, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    app = build_app()
    command = ["topic", "list", "-n", mq.namesrv_addr]
    app([*command, "--tls-ca", authority.path], standalone_mode=False)
    assert "Orders" in capsys.readouterr().out
    app([*command, "--tls"], standalone_mode=False)
    assert "Orders" in capsys.readouterr().out
    with pytest.raises(ReputError, match="--tls uses it"):
        app(command, standalone_mode=False)
