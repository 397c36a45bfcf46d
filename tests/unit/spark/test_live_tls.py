"""Reads of brokers and writes to them over TLS, with an authority and certificates of clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from certificates import Authority
from reput.errors import InvalidOption
from reput.spark.live.calls import ReadFailed, disconnect
from reput.spark.sending import options as write_options
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.send import SendingFailed, send
from reput.testing import LocalBroker
from spark import live_traffic

PASSWORD = "a-key-password"
NO_RETRIES = {"fetchOffset.numRetries": 0}
COUNT = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def tls(folder: Path) -> dict[str, str]:
    authority = Authority(folder)
    client = authority.issue("client", password=PASSWORD)
    return {
        "tls.enable": "true",
        "tls.client.trustCertPath": authority.path,
        "tls.client.certPath": client.certificate,
        "tls.client.keyPath": client.key,
        "tls.client.keyPassword": PASSWORD,
    }


@pytest.fixture(scope="module")
def mq(folder: Path, tls: dict[str, str]) -> Iterator[LocalBroker]:
    """Start a broker that requires certificates, and send numbers to its topic over TLS."""
    server = Authority(folder, "of-servers").issue("server")
    authority = tls["tls.client.trustCertPath"]
    trusted = Path(authority).read_text() + Path(folder / "of-servers.pem").read_text()
    Path(authority).write_text(trusted)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.certificate,
        "tls.server.keyPath": server.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority,
        **{key: value for key, value in tls.items() if key != "tls.enable"},
    }
    with LocalBroker(topics={"Orders": 2}, settings=settings) as running:
        rows = pa.record_batch({"body": [b"%d" % number * 50 for number in range(COUNT)]})
        target = {"nameServer": running.namesrv_addr, "topic": "Orders", **tls}
        counts = send([rows], write_options.parse(target), TaskIdentity("w", 0))
        assert counts.message_count == COUNT
        yield running
        disconnect()


def read(mq: LocalBroker, options: dict[str, Any]) -> list[bytes]:
    rows = live_traffic.read(mq.namesrv_addr, topic="Orders", **NO_RETRIES, **options)
    return [row["body"] for row in rows]


def test_what_is_sent_is_read(mq: LocalBroker, tls: dict[str, str]) -> None:
    expected = sorted(b"%d" % number * 50 for number in range(COUNT))
    assert sorted(message.body for message in mq.messages("Orders")) == expected
    assert sorted(read(mq, tls)) == expected


def test_refused_connections(mq: LocalBroker, tls: dict[str, str], folder: Path) -> None:
    strangers = Authority(folder, "strangers").path
    of_client = ("certPath", "keyPath", "keyPassword")
    for changes, text in (
        ({"trustCertPath": strangers}, "no TLS handshake: certificate verify"),
        (dict.fromkeys(of_client, ""), r"certificate required|closed|reset"),
    ):
        changed = {**tls, **{f"tls.client.{name}": value for name, value in changes.items()}}
        given = {name: value for name, value in changed.items() if value}
        with pytest.raises(ReadFailed, match=text):
            read(mq, given)
        target = {"nameServer": mq.namesrv_addr, "topic": "Orders", "send.numRetries": "0", **given}
        rows = pa.record_batch({"body": [b"never"]})
        with pytest.raises(SendingFailed, match=text) as failed:
            send([rows], write_options.parse(target), TaskIdentity("v", 0))
        assert PASSWORD not in str(failed.value)
    with pytest.raises(ReadFailed):
        read(mq, {})  # without TLS


def test_files_that_cannot_be_used(mq: LocalBroker, tls: dict[str, str]) -> None:
    for name, value, blamed in (
        ("keyPassword", "a-wrong-password", "keyPath"),
        ("trustCertPath", "/missing.pem", "trustCertPath"),
        ("keyPath", "", "keyPath"),
    ):
        with pytest.raises(InvalidOption) as error:
            read(mq, {**tls, f"tls.client.{name}": value})
        assert error.value.name == f"tls.client.{blamed}"
        assert "password" not in str(error.value).replace("tls.client.keyPassword", "")
