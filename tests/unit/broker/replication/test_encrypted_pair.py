"""A master and a slave with ``haTlsEnable``: equal logs, and refusals that both sides explain."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from certificates import Authority, Pair
from reput.broker.replication import catch_up, follower
from reput.broker.replication.reports import Reason
from reput.broker.replication.slave_socket import ALERT
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.broker.server import Broker
from reput.broker.settings import ha_peers
from reput.errors import InvalidOption
from reput.remoting import networks
from reput.remoting.tls_settings import TlsMode, TlsSettings
from reput.store.writing.incoming import IncomingMessage
from world import until

SIZES = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 100_000}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_MS", 50)
    monkeypatch.setattr(catch_up, "BEGIN_BYTES", 400_000)
    monkeypatch.setattr(catch_up, "END_BYTES", 100_000)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Pair:
    return authority.issue("broker")


def settings(own: Pair, **more: Any) -> TlsSettings:
    """Return settings of a broker that has a certificate, but shows none to its master."""
    paths = {"tls_server_cert_path": own.certificate, "tls_server_key_path": own.key}
    return TlsSettings(**{**paths, **more})


class Two:
    """A master with messages, and its slave."""

    def __init__(self, master: Broker, slave: Broker) -> None:
        self.master = master
        self.slave = slave
        self._random = random.Random(1)

    @property
    def status(self) -> SlaveStatus:
        return self.slave.parts.replication.follower.status

    def put(self, count: int) -> None:
        put(self.master, count, self._random)

    async def until_equal(self) -> None:
        theirs, ours = self.master.store, self.slave.store
        end = theirs.max_physical_offset
        await until(lambda: ours.replica_log.end == end)
        await until(lambda: all(slave.acked_offset == end for slave in theirs.replicas.replicas))

    async def until_refused(self) -> str:
        await until(lambda: self.status.state is SlaveState.REFUSED)
        return self.status.reason


def put(master: Broker, count: int, source: random.Random) -> None:
    for _ in range(count):
        body = source.randbytes(source.randrange(1, 60_000))
        master.store.put(IncomingMessage("T", body, 0))
    master.parts.replication.slave_port.pump()


@contextlib.asynccontextmanager
async def pair(
    tmp_path: Path,
    of_master: TlsSettings,
    of_slave: TlsSettings,
    *,
    is_master_encrypted: bool = True,
    is_slave_encrypted: bool = True,
    **more: Any,
) -> AsyncIterator[Two]:
    async with world.name_server(tmp_path) as names:
        known = {"namesrv_addr": world.address_of(names), "broker_ip2": "127.0.0.1"}
        store = {**SIZES, "ha_tls_enable": is_master_encrypted}
        async with world.broker(
            tmp_path / "master", store=store, tls=of_master, **known, **more
        ) as master:
            put(master.broker, 40, random.Random(2))  # over 400,000 bytes: a thread sends them
            await master.parts.registration.register()
            store = {**SIZES, "ha_tls_enable": is_slave_encrypted}
            async with world.slave(tmp_path / "slave", store=store, tls=of_slave, **known) as slave:
                yield Two(master.broker, slave.broker)


def log_of(root: Path) -> bytes:
    files = sorted((root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def mutual(authority: Authority, own: Pair) -> TlsSettings:
    return settings(
        own,
        tls_server_need_client_auth="require",
        tls_server_auth_client=True,
        tls_server_trust_cert_path=authority.path,
        tls_client_trust_cert_path=authority.path,
        tls_client_cert_path=own.certificate,
        tls_client_key_path=own.key,
    )


async def test_a_slave_gets_the_old_log_and_new_messages(
    authority: Authority, own: Pair, tmp_path: Path
) -> None:
    both = mutual(authority, own)
    async with pair(tmp_path, both, both) as two:
        await two.until_equal()
        port = two.master.parts.replication.slave_port
        assert port.counts.catch_ups == 1
        for _ in range(20):
            two.put(3)
            await asyncio.sleep(0)
        await two.until_equal()
        two.put(60)
        await two.until_equal()
        assert len(port.slaves) == 1
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")


async def test_a_connection_without_tls_gets_nothing(own: Pair, tmp_path: Path) -> None:
    alone = settings(own)
    async with pair(tmp_path, alone, alone) as two:
        await two.until_equal()
        port = two.master.parts.replication.slave_port
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(bytes(8))
        got = await reader.read()
        assert (got[0], len(got)) == (ALERT, 7)
        writer.close()
        assert port.counts.refused[Reason.TLS] == 1


@pytest.mark.parametrize("is_master", [True, False])
async def test_one_side_without_tls(
    own: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_master: bool
) -> None:
    alone = settings(own)
    async with pair(
        tmp_path, alone, alone, is_master_encrypted=is_master, is_slave_encrypted=not is_master
    ) as two:
        reason = await two.until_refused()
        assert "haTlsEnable" in reason
        theirs = "it does not use TLS" if is_master else "it uses TLS"
        assert f"refused: {theirs}, and haTlsEnable is {str(is_master).lower()} here" in caplog.text
        assert reason in caplog.text
        assert two.status.received_bytes == 0
    if is_master:
        assert "it requires TLS, and haTlsEnable is false here" in reason
    else:
        assert "no TLS handshake" in reason


async def test_a_master_of_another_authority(
    own: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "other")
    slave = settings(own, tls_client_trust_cert_path=other.path)
    async with pair(tmp_path, settings(own), slave) as two:
        assert "certificate verify failed" in await two.until_refused()
        await until(lambda: "refused: no TLS handshake: tlsv1 alert unknown ca" in caplog.text)
        assert two.status.received_bytes == 0


async def test_a_slave_without_the_required_certificate(
    authority: Authority, own: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path, mutual(authority, own), settings(own)) as two:
        lines = (  # the slave's, and its master's
            "certificate required",
            "refused: no TLS handshake: peer did not return a certificate",
        )
        await until(lambda: all(line in caplog.text for line in lines))
        assert two.status.received_bytes == 0


async def test_only_peers_get_the_log(
    own: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = settings(own)
    async with pair(tmp_path, alone, alone, reput_ha_peers="10.0.0.0/8,127.0.0.7") as two:
        await until(lambda: "refused: reputHaPeers is 10.0.0.0/8,127.0.0.7" in caplog.text)
        assert two.status.received_bytes == 0
        assert two.master.parts.replication.slave_port.counts.refused[Reason.NOT_A_PEER]


async def test_access_control_closes_the_port_to_other_machines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = world.access_settings(authorization_enabled=False)
    for number, (peers, is_refused) in enumerate((("", True), ("192.0.2.0/24", False))):
        config = world.broker_config(reput_ha_peers=peers, broker_ip2="127.0.0.1")
        store = world.store_config(tmp_path / str(number))
        async with Broker(config, store, access=access) as master:
            port = master.parts.replication.slave_port
            with socket.create_server(("127.0.0.1", 0)) as listening:
                for host, is_foreign in (("192.0.2.9", True), ("127.0.0.1", False)):
                    with socket.create_connection(listening.getsockname()) as slave:
                        port._opened(listening.accept()[0], host, 4711)
                        expected = is_foreign == is_refused
                        assert (port.unreported_count == 0) == expected
                        if expected:
                            slave.settimeout(world.GUARD_S)
                            assert slave.recv(100) == b""
                        for link in list(port._unreported):
                            link.close("the test ends")
            assert port.counts.refused[Reason.NOT_A_PEER] == 1
    assert "slave 192.0.2.9:4711 refused: reputHaPeers is empty" in caplog.text
    assert "slave 127.0.0.1:4711 refused: reputHaPeers is 192.0.2.0/24" in caplog.text


@pytest.mark.parametrize(
    ("host", "own", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.7", "10.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("fe80::1%eth0", "fe80::2", False),
    ],
)
def test_the_same_machine(host: str, own: str, expected: bool) -> None:
    assert ha_peers.is_same_machine(host, own) is expected


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        ("", "192.0.2.1", True),
        ("10.0.0.0/24,10.1.0.7", "10.0.0.255", True),
        ("10.0.0.0/24, 10.1.0.7", "10.1.0.7", True),
        ("10.0.0.0/24", "10.0.1.0", False),
        ("10.0.0.0/24", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.0/120", "10.0.0.1", True),
        ("fd00::/8", "10.0.0.1", False),
        ("fd00::/8,fe80::/10", "fe80::1%eth0", True),
    ],
)
def test_peers(text: str, host: str, expected: bool) -> None:
    assert ha_peers.contain(networks.parse(text, "reputHaPeers"), host) is expected


@pytest.mark.parametrize("text", ["10.0.0.1/24", "10.0.0.0/33", "localhost", "10.0.0.*"])
def test_peers_that_are_no_networks(text: str) -> None:
    with pytest.raises(InvalidOption, match="networks separated by commas"):
        world.broker_config(reput_ha_peers=text)


@pytest.mark.parametrize("more", [{}, {"tls_server_mode": TlsMode.DISABLED}])
def test_it_needs_a_certificate(own: Pair, tmp_path: Path, more: dict[str, Any]) -> None:
    tls = settings(own, **more) if more else TlsSettings()
    with pytest.raises(InvalidOption, match=r"haTlsEnable.*tls\.server\.certPath"):
        Broker(
            world.broker_config(),
            world.store_config(tmp_path, ha_tls_enable=True),
            tls=tls,
        )
