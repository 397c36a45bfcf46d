"""The programs of a simulated cluster: name server and brokers, each on its own host.

host: address, clock, disk        what a power cut and a kill leave
process: one life of a program    what they end
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lossy_disk import Loss
from reput.broker.machine import Machine
from reput.broker.server import Broker
from reput.broker.settings.config import BrokerConfig
from reput.broker.threads import SyncThread
from reput.errors import ReputError
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.store.config import BrokerRole, StoreConfig
from sim.disk import SimDisk
from sim.loop import PROCESS, Loop, Process, context_of, spawn
from sim.network import SimSocket

EPOCH_MS = 1_700_000_000_000
NAMESRV_PORT, BROKER_PORT = 9876, 10911
BROKER_NAME, CLUSTER_NAME = "broker-a", "DefaultCluster"
LOG_FILE_BYTES = 64 * 1024
START_S = 30.0
STOP_S = 30.0


class HostClock:
    """The clocks of a host, which may run fast or slow, and be set.

    Args:
        loop: The loop.
        drift: Relative error of its speed.
    """

    def __init__(self, loop: Loop, drift: float = 0.0) -> None:
        self._loop = loop
        self._speed = 1.0 + drift
        self.jumped_ms = 0
        """By how much its time of day was set."""

    def now_ms(self) -> int:
        return EPOCH_MS + self.jumped_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(self._loop.now * 1000 * self._speed)

    def client_ms(self) -> int:
        return self.now_ms()

    def work_s(self) -> float:
        return self._loop.work_time()

    def used_s(self) -> float:
        return self._loop.work_time()


class SimSyncThread(SyncThread):
    """A thread that syncs, at a point that the seed chooses."""

    def start(self, on_synced: Callable[[Exception | None], None]) -> None:
        self._on_synced = on_synced
        self._loop: Any = asyncio.get_running_loop()
        self._is_running = True
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._run_once()

    def _begin(self) -> None:
        self._is_requested = False
        self._is_busy = True
        delay_s = self._loop._chance.uniform(*PROCESS.get().worker_s)
        self._timer = self._loop.call_later(delay_s, self._run_once)

    def _run_once(self) -> None:
        self._timer = None
        problem = None
        try:
            self._sync()
        except Exception as error:  # noqa: BLE001 - as the thread does
            problem = error
        self._loop.call_soon(self._ended, problem)

    def _ended(self, problem: Exception | None) -> None:
        self._is_busy = False
        if not self._is_running:
            return
        if self._is_requested:
            self._begin()
        self._on_synced(problem)


class SimMachine(Machine):
    """The machine of a broker: its host."""

    def __init__(self, loop: Loop, disk: SimDisk) -> None:
        self._loop = loop
        self._disk = disk

    def disk(self) -> SimDisk:
        return self._disk

    def sync_thread(self, name: str, sync: Callable[[], None]) -> SyncThread:
        return SimSyncThread(name, sync)

    def listen(self, host: str, port: int) -> Any:
        return SimSocket.listening(self._loop, PROCESS.get(), port)

    async def connect(self, host: str, port: int) -> Any:
        side = await self._loop.network.open(PROCESS.get(), (host, port))
        return SimSocket(self._loop, side, side.address)


class Host:
    """A machine with an address; its programs run one life after another.

    Args:
        loop: The loop.
        name: Its name in scenarios.
        ip: Its address.
    """

    port = 0

    def __init__(self, loop: Loop, name: str, ip: str, drift: float = 0.0) -> None:
        self.loop = loop
        self.name = name
        self.ip = ip
        self.clock = HostClock(loop, drift)
        self.process: Process | None = None
        self.failures: list[str] = []
        """Errors that its programs have not handled."""

    @property
    def address(self) -> str:
        """The address for requests."""
        return f"{self.ip}:{self.port}"

    @property
    def is_running(self) -> bool:
        """True between the start and the end of a process."""
        return self.process is not None

    def _begin(self) -> Process:
        assert self.process is None, f"{self.name} is running"
        self.loop.network.down.discard(self.ip)
        self.process = self.loop.begin(self.name, self.ip)
        return self.process

    def end(self, *, is_silent: bool = False) -> None:
        """End the process at once; silently if its host loses power."""
        process = self.process
        assert process is not None, f"{self.name} is not running"
        self.loop.kill(process)
        self.loop.network.end_process(process, is_silent=is_silent)
        if is_silent:
            self.loop.network.down.add(self.ip)
        self.failures += process.failures
        process.kept.append(self)
        self.process = None

    async def call(self, work: Any, within_s: float) -> Any:
        """Run a coroutine in the process; return its result. Raises ``TimeoutError``."""
        assert self.process is not None
        task = spawn(self.loop, self.process, work)
        done, _ = await asyncio.wait((task,), timeout=within_s)
        if not done:
            raise TimeoutError(f"{self.name}: not done in {within_s} s")
        return task.result()


class NameServerHost(Host):
    """A host with a name server."""

    port = NAMESRV_PORT

    def __init__(self, loop: Loop, name: str, ip: str, folder: Path, drift: float = 0.0) -> None:
        super().__init__(loop, name, ip, drift)
        folder.mkdir(parents=True, exist_ok=True)
        self._config = NamesrvConfig(
            listen_port=self.port,
            kv_config_path=str(folder / "kvConfig.json"),
            config_store_path=str(folder / "namesrv.properties"),
        )

    async def start(self) -> None:
        """Start the name server."""
        process = self._begin()
        server = context_of(process).run(NameServer, self._config, clock=self.clock)
        process.kept.append(server)
        await self.call(server.start(), START_S)

    def kill(self) -> None:
        """End it as ``kill -9`` would."""
        self.end()

    async def power_cut(self, chance: random.Random) -> None:
        """End it without a word to its peers."""
        self.end(is_silent=True)


class BrokerHost(Host):
    """A host with a broker and its disk.

    Args:
        loop: The loop.
        name: Its name in scenarios.
        ip: Its address.
        folder: Folder of the disk.
        name_servers: Addresses of the name servers.
        settings: Settings of broker and store that differ, by field.
        drift: Relative error of its clock.
    """

    port = BROKER_PORT

    def __init__(
        self,
        loop: Loop,
        name: str,
        ip: str,
        folder: Path,
        name_servers: str,
        settings: dict[str, Any],
        drift: float = 0.0,
    ) -> None:
        super().__init__(loop, name, ip, drift)
        folder.mkdir(parents=True, exist_ok=True)
        self.root = folder / "store"
        self.disk = SimDisk(self.root, loop, name)
        self._name_servers = name_servers
        self.settings = settings
        self.role = BrokerRole.SLAVE
        self.broker_id = 1
        self.broker: Broker | None = None
        self.worker_s = (0.0, 0.002)

    @property
    def is_master(self) -> bool:
        """True if it is, or will be, a master."""
        return self.role is not BrokerRole.SLAVE

    async def start(self, role: BrokerRole | None = None, broker_id: int | None = None) -> None:
        """Start the broker, in a role or in the same as before. Raises ``ReputError``."""
        if role is not None:
            self.role = role
        if broker_id is not None:
            self.broker_id = broker_id
        process = self._begin()
        process.worker_s = self.worker_s
        self.broker = broker = context_of(process).run(self._make)
        process.kept.append(broker)
        try:
            await self.call(broker.start(), START_S)
        except ReputError:
            self.kill()
            raise

    def _make(self) -> Broker:
        known = {
            "broker_name": BROKER_NAME,
            "broker_cluster_name": CLUSTER_NAME,
            "broker_ip1": self.ip,
            "broker_ip2": self.ip,
            "bind_address": self.ip,
            "listen_port": self.port,
            "namesrv_addr": self._name_servers,
            "broker_id": self.broker_id,
            "default_topic_queue_nums": 2,
            "register_name_server_period": 10_000,
            "broker_fast_failure_enable": False,
            "fast_port_enable": True,
        }
        stored = {
            "store_path_root_dir": str(self.root),
            "broker_role": self.role,
            "mapped_file_size_commit_log": LOG_FILE_BYTES,
            "mapped_file_size_consume_queue": 20 * 300,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
            "max_message_size": 16 * 1024,
            "ha_send_heartbeat_interval": 1_000,
            "ha_housekeeping_interval": 5_000,
            "slave_timeout": 1_500,
            "reput_recovery_threads": 1,
        }
        for field, value in self.settings.items():
            (known if field in BrokerConfig.__dataclass_fields__ else stored)[field] = value
        return Broker(
            BrokerConfig(**known),
            StoreConfig(**stored),
            clock=self.clock,
            machine=SimMachine(self.loop, self.disk),
        )

    async def stop(self) -> None:
        """Stop the broker as SIGTERM would."""
        assert self.broker is not None
        await self.call(self.broker.stop(), STOP_S)
        self.end()
        self.broker = None

    def kill(self) -> None:
        """End the broker as ``kill -9`` would."""
        broker, self.broker = self.broker, None
        self.end()
        if broker is not None and hasattr(broker, "store"):
            broker.store.abandon()

    async def power_cut(self, chance: random.Random) -> None:
        """End the broker by a power cut, which loses unsynced bytes."""
        broker, self.broker = self.broker, None
        self.end(is_silent=True)

        def release() -> None:
            if broker is not None and hasattr(broker, "store"):
                broker.store.abandon()

        self.disk.lose_power(chance, chance.choice(list(Loss)), before=release)

    async def change_role(self, role: BrokerRole, broker_id: int) -> None:
        """Change the role of the running broker. Raises ``ReputError``."""
        assert self.broker is not None
        self.role, self.broker_id = role, broker_id
        await self.call(self.broker.change_role(role, broker_id), START_S)
