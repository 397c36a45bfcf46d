"""Clients through proxies: rules, white addresses, counters and records of a broker."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from ports import free_port
from remoting_subject import closed, read_frame
from reput.errors import InvalidOption
from reput.format import command as commands
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.format.signing import Signer
from reput.namesrv.config import NamesrvConfig
from reput.remoting import tls_settings
from reput.remoting.proxy_acceptor import HeaderResult
from reput.remoting.tls_settings import TlsSettings
from world import Subject, messages_in

PROXY = "127.0.0.2"
GUARD_S = 60
ALICE = world.signer("the-alice", "word-of-the-alice")
ANYBODY = tls_settings.client_context(TlsSettings())
NO_PERMISSION = 16


def line(source: str) -> bytes:
    return f"PROXY TCP4 {source} 10.0.0.1 4711 10911\r\n".encode()


def binary(source: str) -> bytes:
    packed = bytes(map(int, source.split(".")))
    return bytes.fromhex("0d0a0d0a000d0a515549540a 2111000c") + packed * 2 + b"\x12\x67\x2a\x9f"


class Proxied:
    """A connection from a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(
        cls, port: int, header: bytes, *, address: str = PROXY, is_encrypted: bool = False
    ) -> "Proxied":
        opened = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
        opened.writer.write(header)
        if is_encrypted:
            await opened.writer.start_tls(ANYBODY)
        return opened

    async def ask(self, request: Command, signer: Signer | None = None) -> Command:
        request = request if signer is None else signer.sign(request)
        self.writer.write(commands.encode(request))
        async with asyncio.timeout(GUARD_S):
            return await read_frame(self.reader)

    async def close(self) -> None:
        await closed(self.writer)


def of_queue(topic: str) -> Command:
    return Command(Code.GET_MAX_OFFSET, ext_fields={"topic": topic, "queueId": "0"})


def send(topic: str) -> Command:
    fields = {
        "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
        "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return Command(Code.SEND_MESSAGE_V2, ext_fields=fields, body=b"body")


async def with_rules(subject: Subject) -> None:
    """Make a user who may send to and read ``T`` from 203.0.113.0/24."""
    rule = {
        "resource": "Topic:T", "actions": ["Pub", "Sub"], "decision": "Allow",
        "sourceIps": ["203.0.113.0/24"],
    }  # fmt: skip
    user = json.dumps({"username": "the-alice", "password": "word-of-the-alice"}).encode()
    policy = json.dumps({"policies": [{"policyType": "Custom", "entries": [rule]}]}).encode()
    for code, fields, body in (
        (Code.AUTH_CREATE_USER, {"username": "the-alice"}, user),
        (Code.AUTH_CREATE_ACL, {"subject": "User:the-alice"}, policy),
    ):
        request = Command(code, ext_fields=fields, body=body)
        assert (await subject.client.invoke(subject.address, request)).code == 0


@pytest.fixture
async def ruled(tmp_path: Path) -> AsyncIterator[Subject]:
    settings = {"access": world.access_settings(), "signer": world.signer()}
    async with world.broker(tmp_path, **settings, reput_proxy_protocol_from=PROXY) as subject:
        assert (await subject.send("T")).code == 0
        await with_rules(subject)
        yield subject


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_rules_are_judged_by_the_client_of_the_proxy(
    ruled: Subject, is_encrypted: bool
) -> None:
    identity = ruled.broker.identity
    # The port below may belong to another program, as the system chose the first one.
    for port in filter(None, (identity.port, identity.fast_port)):
        for header in (line("203.0.113.9"), binary("203.0.113.9")):
            inside = await Proxied.connect(port, header, is_encrypted=is_encrypted)
            for _ in range(3):  # the later ones are granted from memory
                assert (await inside.ask(of_queue("T"), ALICE)).code == 0
                assert (await inside.ask(send("T"), ALICE)).code == 0
            await inside.close()
        for header in (line("198.51.100.1"), binary("198.51.100.1")):
            outside = await Proxied.connect(port, header, is_encrypted=is_encrypted)
            for request in (of_queue("T"), send("T")):
                reply = await outside.ask(request, ALICE)
                assert reply.code == NO_PERMISSION
                assert "from 198.51.100.1," in (reply.remark or "")
            await outside.close()
    pulled = messages_in((await ruled.pull("T")).body)
    hosts = {str(message.born_host) for message in pulled[1:]}
    assert hosts == {"203.0.113.9:4711"}


async def test_a_header_from_anywhere_else_grants_nothing(ruled: Subject) -> None:
    port = ruled.broker.identity.port
    for header in (line("203.0.113.9"), binary("203.0.113.9")):
        other = await Proxied.connect(port, header, address="127.0.0.1")
        with pytest.raises(asyncio.IncompleteReadError):
            await other.ask(of_queue("T"), ALICE)
        await other.close()
    direct = await Proxied.connect(port, b"", address="127.0.0.1")
    assert "from 127.0.0.1," in ((await direct.ask(of_queue("T"), ALICE)).remark or "")
    await direct.close()
    assert ruled.broker.serving.proxies is not None
    assert not ruled.broker.serving.proxies.counts


async def test_refusals_are_counted_for_the_client(ruled: Subject) -> None:
    client = await Proxied.connect(ruled.broker.identity.port, line("198.51.100.7"))
    assert (await client.ask(of_queue("T"))).code == NO_PERMISSION
    await client.close()
    families = {family.name: family for family in await world.meter(ruled.broker).measure()}
    refused = families["reput_access_not_authenticated_total"]
    assert ("198.51.100.7",) in refused.values  # type: ignore[union-attr]
    headers_by_result = families["reput_proxy_headers_total"]
    assert headers_by_result.values == {  # type: ignore[union-attr]
        ("source",): 1.0, ("no_source",): 0.0, ("failed",): 0.0,
    }  # fmt: skip


async def test_white_addresses_of_access_control_1_0(tmp_path: Path) -> None:
    path = tmp_path / "conf/plain_acl.yml"
    path.parent.mkdir()
    path.write_text("globalWhiteRemoteAddresses: [203.0.113.*]\naccounts: []\n")
    settings: dict[str, Any] = {"acl_enable": True, "rocketmq_home": str(tmp_path)}
    async with world.broker(
        tmp_path / "store", reput_proxy_protocol_from=PROXY, **settings
    ) as subject:
        port = subject.broker.identity.port
        for source, code in (("203.0.113.9", 0), ("198.51.100.1", 1)):
            client = await Proxied.connect(port, line(source))
            assert (await client.ask(Command(Code.GET_ALL_TOPIC_CONFIG))).code == code
            await client.close()


@pytest.mark.parametrize(
    "header",
    [line("127.0.0.1"), b"PROXY UNKNOWN\r\n", bytes.fromhex("0d0a0d0a000d0a515549540a 2000 0000")],
    ids=["as if local", "unknown", "local command"],
)
async def test_no_client_of_a_proxy_is_on_the_machine_of_the_broker(
    header: bytes, tmp_path: Path
) -> None:
    changes = b"haForceMaster=true"
    # A proxy with the same address at both ends.
    async with world.broker(tmp_path, reput_proxy_protocol_from="127.0.0.1") as subject:
        client = await Proxied.connect(subject.broker.identity.port, header, address="127.0.0.1")
        reply = await client.ask(Command(Code.UPDATE_BROKER_CONFIG, body=changes))
        assert reply.code == NO_PERMISSION
        assert "haForceMaster" in (reply.remark or "")
        await client.close()


@pytest.mark.parametrize("mode", ["safe", "java", "none"])
async def test_the_setting_is_not_changed_over_the_network(tmp_path: Path, mode: str) -> None:
    async with world.broker(tmp_path, reput_remote_settings=mode) as subject:
        body = b"reputProxyProtocolFrom=0.0.0.0/0"
        reply = await subject.ask(Code.UPDATE_BROKER_CONFIG, body=body)
        assert reply.code == NO_PERMISSION
        assert "reputProxyProtocolFrom" in (reply.remark or "")
        assert subject.broker.serving.proxies is None


async def test_a_name_server_with_a_proxy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    server = world.name_server(tmp_path, reput_proxy_protocol_from=PROXY)
    await server.start()
    for is_encrypted in (False, True):
        fields = {"namespace": "n", "key": "k", "value": str(is_encrypted)}
        client = await Proxied.connect(
            server.port, binary("203.0.113.9"), is_encrypted=is_encrypted
        )
        reply = await client.ask(Command(Code.PUT_KV_CONFIG, ext_fields=fields))
        assert reply.code == 0
        await client.close()
    await server.stop()
    assert caplog.text.count("203.0.113.9:4711") == 2
    assert server.serving.proxies is not None
    assert server.serving.proxies.counts == {HeaderResult.SOURCE: 2}


@pytest.mark.parametrize("text", ["10.0.0.1/24", "proxy-1", "10.0.0.*"])
def test_what_is_no_network_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(InvalidOption, match="reputProxyProtocolFrom"):
        world.broker_config(reput_proxy_protocol_from=text)
    with pytest.raises(InvalidOption, match="reputProxyProtocolFrom"):
        NamesrvConfig(reput_proxy_protocol_from=text)


# --- a real proxy ---------------------------------------------------------------------------------

HAPROXY = """\
defaults
    mode tcp
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    source {proxy}
listen text
    bind 127.0.0.1:{text}
    server broker 127.0.0.1:{broker} send-proxy
listen binary
    bind 127.0.0.1:{binary}
    server broker 127.0.0.1:{broker} send-proxy-v2 proxy-v2-options crc32c,unique-id
listen plain
    bind 127.0.0.1:{plain}
    server broker 127.0.0.1:{broker}
listen checked
    bind 127.0.0.1:{checked}
    server broker 127.0.0.1:{broker} send-proxy-v2 check inter 50ms
"""


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
async def test_with_haproxy(ruled: Subject, tmp_path: Path) -> None:
    # The rules are those of 203.0.113.0/24; these clients have addresses of this machine.
    rule = {
        "resource": "Topic:T",
        "actions": ["Sub"],
        "decision": "Allow",
        "sourceIps": ["127.0.0.5"],
    }
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": [rule]}]}).encode()
    changed = Command(Code.AUTH_UPDATE_ACL, ext_fields={"subject": "User:the-alice"}, body=body)
    assert (await ruled.client.invoke(ruled.address, changed)).code == 0
    ports: dict[str, int] = {}
    for name in ("text", "binary", "plain", "checked"):
        ports[name] = free_port()
    serving = ruled.broker.serving
    assert serving.proxies is not None
    path = tmp_path / "haproxy.cfg"
    path.write_text(HAPROXY.format(proxy=PROXY, broker=ruled.broker.identity.port, **ports))
    haproxy = await asyncio.create_subprocess_exec("haproxy", "-db", "-f", path)
    try:
        async with asyncio.timeout(GUARD_S):
            while serving.proxies.counts[HeaderResult.NO_SOURCE] < 2:  # its checks
                assert haproxy.returncode is None, "it ended"
                await asyncio.sleep(0.01)
        for name in ("text", "binary"):
            for is_encrypted in (False, True):
                for address, code in (("127.0.0.5", 0), ("127.0.0.6", NO_PERMISSION)):
                    client = await Proxied.connect(
                        ports[name], b"", address=address, is_encrypted=is_encrypted
                    )
                    for _ in range(2):
                        reply = await client.ask(of_queue("T"), ALICE)
                        assert (reply.code, name) == (code, name)
                    assert code == 0 or f"from {address}," in (reply.remark or "")
                    await client.close()
        client = await Proxied.connect(ports["plain"], b"", address="127.0.0.5")
        with pytest.raises(asyncio.IncompleteReadError):
            await client.ask(of_queue("T"), ALICE)
        await client.close()
    finally:
        haproxy.terminate()
        await haproxy.wait()
    assert serving.proxies.counts[HeaderResult.SOURCE] == 8
    assert serving.proxies.counts[HeaderResult.FAILED] == 1
