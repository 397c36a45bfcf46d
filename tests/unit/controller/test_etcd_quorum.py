"""The values of a real etcd: compare-and-set, leases, and controllers that follow one another."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from controller_subject import until
from etcd_process import EtcdProcess
from reput.clock import SystemClock
from reput.controller.etcd_address import parse
from reput.controller.etcd_client import Delete, Empty, EtcdClient, EtcdFailed, LeaseId
from reput.controller.etcd_quorum import EtcdQuorum
from reput.controller.quorum import Conflict, Deposed, Peer
from reput.errors import StoreUnavailable

LEASE_S = 2
"""The shortest that etcd gives."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as running:
        yield running


class Clock(SystemClock):
    """The clock of the machine, which a test sets ahead."""

    ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class Stores:
    """Opens stores of controllers, and closes them."""

    def __init__(self, etcd: EtcdProcess, prefix: str) -> None:
        self.text = f"etcd:{etcd.url}/{prefix}"
        self._open: list[EtcdQuorum] = []

    def client(self) -> EtcdClient:
        return EtcdClient(parse(self.text).endpoints)

    async def open(self, name: str = "n0", address: str = "") -> EtcdQuorum:
        own = Peer(name, address or f"{name}.example:9878")
        store = EtcdQuorum(self.client(), parse(self.text).prefix, own, Clock(), LEASE_S)
        await store.open()
        self._open.append(store)
        return store

    async def close(self) -> None:
        for store in self._open:
            await store.close()


@pytest.fixture
async def stores(etcd: EtcdProcess, request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    opened = Stores(etcd, request.node.name)
    yield opened
    await opened.close()


async def certain(store: EtcdQuorum) -> int:
    """Return the fencing number, when the store certainly leads."""
    await until(lambda: store.leads(store._fence))
    return store._fence


async def test_values_are_changed_by_who_has_read_them(stores: Stores) -> None:
    store = await stores.open()
    fence = await store.lead()
    assert await store.read() == {}
    first = await store.compare_and_set("brök", b"\x00 1", revision=0, fence=fence)
    with pytest.raises(Conflict):
        await store.compare_and_set("brök", b"2", revision=0, fence=fence)
    second = await store.compare_and_set("brök", b"2", revision=first, fence=fence)
    assert second > first
    assert await store.read() == {"brök": (b"2", second)}
    with pytest.raises(Conflict):
        await store.compare_and_set("brök", None, revision=first, fence=fence)
    await store.compare_and_set("brök", None, revision=second, fence=fence)
    assert await store.read() == {}
    with pytest.raises(Conflict):
        await store.compare_and_set("brök", b"3", revision=second, fence=fence)


async def test_a_second_controller_waits_and_takes_over_at_once(stores: Stores) -> None:
    first, second = await stores.open("n0"), await stores.open("n1")
    fence = await first.lead()
    await until(lambda: second.leader == Peer("n0", "n0.example:9878"))
    await until(lambda: list(first.members) == [Peer("n1", "n1.example:9878")])
    assert not second.leads(0)
    await first.close()
    async with asyncio.timeout(LEASE_S):
        later = await second.lead()
    assert later > fence
    assert second.leads(later)
    assert (second.leader, second.members) == (None, [])
    with pytest.raises(Deposed):
        await first.compare_and_set("a", b"1", revision=0, fence=fence)


async def test_changes_of_a_leader_that_was_deposed_without_noticing_fail(stores: Stores) -> None:
    first, second = await stores.open("n0"), await stores.open("n1")
    fence = await first.lead()
    revision = await first.compare_and_set("a", b"1", revision=0, fence=fence)
    assert first._turns is not None
    first._turns.cancel()  # else it may lead again before the second one
    await first._client.call("/v3/lease/revoke", LeaseId(first._lease), Empty, 5)
    assert first.leads(fence)  # it does not know yet
    with pytest.raises(Deposed):
        await first.compare_and_set("a", b"2", revision=revision, fence=fence)
    assert not first.leads(fence)
    await first.until_deposed(fence)
    later = await second.lead()
    assert (await second.read())["a"].value == b"1"
    first._turns = asyncio.create_task(first._run())
    await until(lambda: first.leader == Peer("n1", "n1.example:9878"))
    await second.close()
    assert await first.lead() > later  # without a restart


async def test_a_leader_claims_nothing_when_its_lease_may_be_over(stores: Stores) -> None:
    store = await stores.open()
    fence = await store.lead()
    store._clock.ahead_ms += LEASE_S * 800 + 1  # type: ignore[attr-defined]
    assert not store.leads(fence)
    with pytest.raises(Deposed, match="lease may be over"):
        await store.compare_and_set("a", b"1", revision=0, fence=fence)
    await until(lambda: store.leads(fence))  # with the next renewal


async def test_a_leader_whose_key_was_deleted_leads_again_under_another_number(
    stores: Stores,
) -> None:
    store = await stores.open()
    fence = await store.lead()
    await store._client.call("/v3/kv/deleterange", Delete(store._leader_key), Empty, 5)
    await store.until_deposed(fence)
    assert await store.lead() > fence


async def test_a_name_that_another_controller_has_is_reported(stores: Stores) -> None:
    first = await stores.open("n0")
    await first.lead()
    second = await stores.open("n0", "other.example:9878")
    assert "a controller with the name n0 runs already" in second.failure
    await first.close()
    await second.lead()
    assert second.failure == ""


async def test_an_etcd_that_is_gone_for_a_while(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as etcd:
        stores = Stores(etcd, "gone")
        store = await stores.open()
        fence = await store.lead()
        revision = await store.compare_and_set("a", b"1", revision=0, fence=fence)
        etcd.kill()
        with pytest.raises(EtcdFailed, match=f"{etcd.url}"):
            await store.compare_and_set("a", b"2", revision=revision, fence=fence)
        await until(lambda: not store.leads(fence))
        await until(lambda: etcd.url in store.failure)
        await asyncio.to_thread(etcd.start)
        later = await certain(store)
        assert await store.read() == {"a": (b"1", revision)}
        await store.compare_and_set("a", b"2", revision=revision, fence=later)
        etcd.pause()
        with pytest.raises(EtcdFailed, match=r"has not answered /v3/kv/txn within"):
            await store.compare_and_set("a", b"3", revision=revision, fence=later)
        etcd.resume()
        await certain(store)
        assert (await store.read())["a"].value == b"2"  # the condition had the old revision
        await stores.close()


async def test_a_server_that_is_no_etcd(stores: Stores) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stores.text = f"etcd:http://127.0.0.1:{port}/x"
    with pytest.raises(StoreUnavailable) as refused:
        await stores.open()
    assert str(refused.value) == (
        f"http://127.0.0.1:{port} has answered /v3/lease/grant with 404 and 'not found': "
        "this is no etcd 3.4 or later; set reputQuorum in controller.conf"
    )
    server.close()
    await server.wait_closed()
