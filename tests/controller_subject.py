"""A controller on a port, a clock that the test sets, and clients that act as brokers."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import replica_requests as requests
from reput.clock import ManualClock
from reput.controller.config import ControllerConfig
from reput.controller.file_quorum import Disk
from reput.controller.server import Controller
from reput.format.command import Command
from reput.remoting.client import RemotingClient
from reput.store.files import disk as store_disk
from waiting import until


class Reply(NamedTuple):
    """A reply, decoded."""

    code: int
    fields: dict[str, str]
    body: Any
    remark: str | None


class Replica:
    """A client that acts as a broker: one connection to the controller, and a port for notices.

    Args:
        subject: The controller.
        broker_id: Its id.
        name: Its broker name.
    """

    def __init__(self, subject: "ControllerSubject", broker_id: int, name: str) -> None:
        self.subject = subject
        self.broker_id = broker_id
        self.name = name
        self.address = f"127.0.0.1:{20_000 + broker_id}"
        self.client = RemotingClient()

    async def ask(self, request: Command) -> Reply:
        return decoded(await self.client.invoke(self.subject.address, request, 30_000))

    async def beat(self, epoch: int = 0, end: int = 0, **more: Any) -> Reply:
        more.setdefault("name", self.name)
        return await self.ask(requests.heartbeat(self.broker_id, self.address, epoch, end, **more))

    async def join(self) -> Reply:
        """Apply for the id, register and send a heartbeat; return the answer of 1003."""
        code = f"{self.address};1700000000000"
        assert (await self.ask(requests.apply_id(self.broker_id, code, self.name))).code == 0
        reply = await self.ask(requests.register(self.broker_id, self.address, self.name))
        await self.beat()
        return reply


class ControllerSubject:
    """A controller in a folder. Use it as a context.

    Args:
        folder: Folder of its state, which lasts.
        clock: The clock.
        disk: Its disk; by default that of the machine.
        settings: Further settings, by field.
    """

    def __init__(
        self,
        folder: Path,
        clock: ManualClock | None = None,
        disk: Disk | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock(1_700_000_000_000)
        config = ControllerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            controller_store_path=str(folder / "state"),
            config_store_path=str(folder / "controller.properties"),
            **settings,
        )
        self.controller = Controller(config, disk or store_disk.Disk(), clock=self.clock)
        self._replicas: list[Replica] = []
        self._client: RemotingClient

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.controller.port}"

    def replica(self, broker_id: int, name: str = requests.NAME) -> Replica:
        replica = Replica(self, broker_id, name)
        self._replicas.append(replica)
        return replica

    async def group_of(self, *broker_ids: int, name: str = requests.NAME) -> list[Replica]:
        """Return replicas that have joined; the first is the master, and all are in sync."""
        replicas = [self.replica(broker_id, name) for broker_id in broker_ids]
        for replica in replicas:
            await replica.join()
        master = replicas[0]
        elected = await master.ask(requests.elect(master.broker_id, name))
        assert elected.fields["masterBrokerId"] == str(master.broker_id)
        if len(replicas) > 1:
            request = requests.alter(master.broker_id, 1, broker_ids, 1, name)
            assert (await master.ask(request)).code == 0
        return replicas

    async def ask(self, request: Command) -> Reply:
        return decoded(await self._client.invoke(self.address, request, 30_000))

    async def info(self, name: str = requests.NAME) -> tuple[str | None, int, list[int]]:
        """Return master, its epoch, and the in-sync set."""
        reply = await self.ask(requests.replica_info(name))
        assert reply.code == 0, reply
        fields = reply.fields
        return (
            fields.get("masterBrokerId"),
            int(fields["masterEpoch"]),
            reply.body["syncStateSet"],
        )

    async def until_info(self, master: str | None, epoch: int, in_sync: list[int]) -> None:
        await until(lambda: self._has(master, epoch, in_sync))
        assert await self.info() == (master, epoch, in_sync)

    def _has(self, master: str | None, epoch: int, in_sync: list[int]) -> bool:
        group = self.controller.parts.groups.get(requests.NAME)
        assert group is not None
        known = None if group.master_id is None else str(group.master_id)
        return (known, group.master_epoch, list(group.in_sync)) == (master, epoch, in_sync)

    async def __aenter__(self) -> Self:
        self._client = RemotingClient()
        await self.controller.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.controller.stop()  # first: it must not see its brokers die
        for replica in self._replicas:
            await replica.client.close()
        await self._client.close()


def decoded(reply: Command) -> Reply:
    body = json.loads(reply.body) if reply.body[:1] in (b"{", b"[") else reply.body
    return Reply(reply.code, reply.ext_fields or {}, body, reply.remark)
