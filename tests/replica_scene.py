"""A controller of ours with scripted brokers, and a name server that lists them.

Use it in a loop, ``async with ReplicaScene(folder)``; or ``served(folder)`` with a separate loop
in a thread, for commands.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import replica_requests as requests
from controller_subject import ControllerSubject, Replica
from reput.format import bodies, command
from reput.format.bodies import BrokerData, ClusterInfo, EpochEntry, EpochEntryCache, KvTable
from reput.format.codes import RequestCode
from reput.format.command import Command
from scripted_cluster import ScriptedServer

OPEN_END = (1 << 63) - 1
"""End that Java gives to the range to which a master still writes."""

_T = TypeVar("_T")


class Member(Replica):
    """A scripted broker: it becomes master when the controller notifies it.

    Args:
        subject: The controller.
        broker_id: Its id.
        name: Its broker name.
    """

    def __init__(self, subject: ControllerSubject, broker_id: int, name: str) -> None:
        super().__init__(subject, broker_id, name)
        self.server = ScriptedServer()
        self.is_master = False
        self.is_running = False
        self.epochs = [(1, 0)]
        self.end = 0
        self.settings = {"enableControllerMode": "true", "controllerAddr": subject.address}
        self.server.answers = {
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epochs,
            RequestCode.GET_BROKER_CONFIG: self._settings,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._status,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._notified,
        }

    async def start(self) -> None:
        await self.server.start()
        self.address = self.server.address
        self.is_running = True

    async def stop(self) -> None:
        """End as with kill -9: all connections close."""
        self.is_running = self.is_master = False
        await self.client.close()
        await self.server.stop()

    def _epochs(self, request: Command) -> Command:
        starts = [start for _, start in self.epochs]
        ends = [*starts[1:], OPEN_END if self.is_master else self.end]
        cache = EpochEntryCache(
            broker_id=0 if self.is_master else self.broker_id,
            broker_name=self.name,
            cluster_name=requests.CLUSTER,
            epoch_list=[
                EpochEntry(end_offset=end, epoch=epoch, start_offset=start)
                for (epoch, start), end in zip(self.epochs, ends, strict=True)
            ],
            max_offset=self.end,
        )
        return command.reply(request, body=bodies.encode(cache))

    def _settings(self, request: Command) -> Command:
        lines = "".join(f"{key}={value}\n" for key, value in self.settings.items())
        return command.reply(request, body=lines.encode())

    def _status(self, request: Command) -> Command:
        table = {"commitLogMaxOffset": str(self.end)}
        return command.reply(request, body=bodies.encode(KvTable(table=table)))

    def _notified(self, request: Command) -> None:
        assert request.ext_fields is not None
        self.is_master = request.ext_fields.get("masterBrokerId") == str(self.broker_id)


class ReplicaScene:
    """A controller, its scripted brokers, and a name server. Use it as a context.

    Args:
        folder: Folder of the controller's state.
    """

    def __init__(self, folder: Path) -> None:
        self.subject = ControllerSubject(folder)
        self.name_server = ScriptedServer()
        self.name_server.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = self._clusters
        self.members: list[Member] = []

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    async def add(self, *broker_ids: int, name: str = requests.NAME, end: int = 100) -> None:
        """Add a group: the first broker is its master, and all are in sync."""
        added = [Member(self.subject, broker_id, name) for broker_id in broker_ids]
        for member in added:
            member.end = end
            await member.start()
            await member.join()
        self.members += added
        master = added[0]
        assert (await master.ask(requests.elect(master.broker_id, name))).code == 0
        master.is_master = True
        for member in added:
            await member.beat(1, end)
        if len(added) > 1:
            request = requests.alter(master.broker_id, 1, broker_ids, 1, name)
            assert (await master.ask(request)).code == 0

    def _clusters(self, request: Command) -> Command:
        table: dict[str, BrokerData] = {}
        for member in self.members:
            if member.is_running:
                data = BrokerData(
                    broker_addrs={}, broker_name=member.name, cluster=requests.CLUSTER
                )
                number = 0 if member.is_master else member.broker_id
                table.setdefault(member.name, data).broker_addrs[number] = member.address
        info = ClusterInfo(
            broker_addr_table=table, cluster_addr_table={requests.CLUSTER: sorted(table)}
        )
        return command.reply(request, body=bodies.encode(info))

    async def __aenter__(self) -> Self:
        await self.name_server.start()
        await self.subject.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.subject.__aexit__(None, None, None)
        for member in self.members:
            if member.is_running:
                await member.stop()
        await self.name_server.stop()


class Served:
    """A scene in the loop of a thread.

    Args:
        scene: The scene.
        loop: The loop.
    """

    def __init__(self, scene: ReplicaScene, loop: asyncio.AbstractEventLoop) -> None:
        self.scene = scene
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a coroutine in the loop of the scene."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so in the loop of the scene."""

        async def wait() -> None:
            async with asyncio.timeout(30):
                while not is_so():
                    await asyncio.sleep(0)

        self.run(wait())


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="replica scene")
    thread.start()
    made = Served(ReplicaScene(folder), loop)
    try:
        made.run(made.scene.__aenter__())
        yield made
    finally:
        made.run(made.scene.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
