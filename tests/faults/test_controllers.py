"""Controllers as processes with a real etcd: SIGSTOP, SIGKILL, and an etcd that dies."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

import replica_requests as requests
from controller_subject import Reply, decoded
from etcd_process import EtcdProcess
from ports import free_port
from reput.errors import ReputError
from reput.format.command import Command
from reput.remoting.client import RemotingClient

LEASE_S = 2
_WAIT_S = 60
NOT_LEADER = 2007

pytestmark = [pytest.mark.slow, pytest.mark.rotating]


class ControllerProcess:
    """A controller as a process.

    Args:
        folder: Folder of its file and its log.
        name: Its id.
        peers: Value of ``controllerDLegerPeers``.
        etcd: URL of etcd.
    """

    def __init__(self, folder: Path, name: str, peers: str, etcd: str) -> None:
        self.name = name
        self.address = next(
            part.partition("-")[2] for part in peers.split(";") if part.startswith(name)
        )
        self._folder = folder
        self._client = RemotingClient()
        folder.mkdir()
        (folder / "controller.conf").write_text(
            f"controllerDLegerSelfId={name}\ncontrollerDLegerPeers={peers}\n"
            f"bindAddress=127.0.0.1\n"
            f"reputQuorum=etcd:{etcd}/test\nreputQuorumLeaseSeconds={LEASE_S}\n"
        )
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        command = [sys.executable, "-m", "reput", "controller", "-c", "controller.conf"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ask(self, request: Command) -> Reply | None:
        """Return an answer; None if there is none."""
        with contextlib.suppress(ReputError):
            return decoded(await self._client.invoke(self.address, request, 3_000))
        return None

    async def leader(self) -> str | None:
        """Return the id of the leader, as this controller knows it."""
        reply = await self.ask(requests.metadata())
        return None if reply is None else reply.fields.get("controllerLeaderId")

    async def stop(self, code: int = 0) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM if not code else signal.SIGKILL)
        assert await asyncio.to_thread(self._process.wait, _WAIT_S) == code, self.log()
        await self._client.close()

    def log(self) -> str:
        return (self._folder / "log").read_text()


async def until(is_so: Callable[[], Coroutine[None, None, bool]]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not await is_so():
            await asyncio.sleep(0.05)


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdProcess]:
    running = EtcdProcess(tmp_path / "etcd")
    await asyncio.to_thread(running.start)
    yield running
    await asyncio.to_thread(running.kill)


async def test_two_controllers_take_over_from_each_other(tmp_path: Path, etcd: EtcdProcess) -> None:
    peers = ";".join(f"{name}-127.0.0.1:{free_port()}" for name in ("n0", "n1"))
    first, second = (
        ControllerProcess(tmp_path / name, name, peers, etcd.url) for name in ("n0", "n1")
    )

    def leads(controller: ControllerProcess) -> Callable[[], Coroutine[None, None, bool]]:
        async def check() -> bool:
            return await controller.leader() == controller.name

        return check

    async def knows(controller: ControllerProcess, leader: ControllerProcess) -> None:
        async def check() -> bool:
            return await controller.leader() == leader.name

        await until(check)
        refused = await controller.ask(requests.replica_info())
        assert refused is not None
        assert refused.code == NOT_LEADER

    async def master_at(controller: ControllerProcess) -> str:
        reply = await controller.ask(requests.replica_info())
        assert reply is not None
        assert reply.code == 0, reply
        return f"{reply.fields['masterBrokerId']} in {reply.fields['masterEpoch']}"

    first.start()
    await until(leads(first))
    second.start()
    await knows(second, first)
    for request in (
        requests.apply_id(1, "127.0.0.1:1;1"),
        requests.register(1, "127.0.0.1:1"),
        requests.heartbeat(1, "127.0.0.1:1", 0, 0),
        requests.elect(1),
    ):
        reply = await first.ask(request)
        assert reply is not None
        assert reply.code == 0, reply
    assert await master_at(first) == "1 in 1"

    first.signal(signal.SIGSTOP)
    await until(leads(second))
    assert await master_at(second) == "1 in 1"
    first.signal(signal.SIGCONT)
    refused = await first.ask(requests.replica_info())
    assert refused is not None
    assert refused.code == NOT_LEADER, first.log()
    await knows(first, second)

    await second.stop(code=-signal.SIGKILL)
    await until(leads(first))
    assert await master_at(first) == "1 in 1"

    etcd.kill()

    async def is_refused() -> bool:
        reply = await first.ask(requests.replica_info())
        return reply is not None and reply.code == NOT_LEADER

    await until(is_refused)
    await asyncio.to_thread(etcd.start)
    await until(leads(first))
    assert await master_at(first) == "1 in 1"
    await first.stop()
