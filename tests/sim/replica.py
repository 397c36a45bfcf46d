"""Scripted brokers under controllers, and the hosts of these.

A scripted broker does what Java's ``ReplicasManager`` does, and what this project demands of one:
it shrinks the in-sync set only when the controller has agreed, and acknowledges what the whole set
has. Its log is a list; other replicas copy it directly, as far as the links between them work.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import replica_requests as requests
from lossy_disk import Loss
from reput.controller.config import ControllerConfig
from reput.controller.server import Controller
from reput.errors import ReputError
from reput.format import bodies, controller_headers as of_controllers, headers
from reput.format.bodies import ElectMasterReply, SyncStateSet
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.controller_headers import MasterHeader
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.server import RemotingServer
from reput.remoting.server_state import ServerState
from sim.disk import SimDisk
from sim.loop import Loop, context_of, spawn
from sim.node import START_S, Host

if TYPE_CHECKING:
    from sim.electorate import Electorate

HEARTBEAT_S, POLL_S, CHECK_S, FLUSH_S, COPY_S, PRODUCE_S = 1.0, 2.0, 1.0, 0.7, 0.05, 0.1
TIMEOUT_MS = 3_000
"""Timeout of the heartbeats."""
LEASE_S = 3
"""Duration of the lease of a controller."""
LAG_S = 3.0
"""Time after which a replica that lags leaves the set."""
ASK_MS = 2_000


class StateDisk(SimDisk):
    """The disk of a controller: shows each state that it has made durable."""

    def __init__(self, root: Path, loop: Loop, name: str, see: Callable[[bytes], object]) -> None:
        super().__init__(root, loop, name)
        self._see = see

    def replace(self, path: str, data: bytes) -> None:
        super().replace(path, data)
        self._see(data)


class ControllerHost(Host):
    """A host with a controller and its disk."""

    port = 9878

    def __init__(
        self,
        loop: Loop,
        name: str,
        ip: str,
        folder: Path,
        see: Callable[[bytes], object],
        *,
        is_unclean: bool,
        drift: float,
        quorum: str = "",
    ) -> None:
        super().__init__(loop, name, ip, drift)
        (folder / "disk").mkdir(parents=True, exist_ok=True)
        self.disk = StateDisk(folder / "disk", loop, name, see)
        self._config = ControllerConfig(
            bind_address=ip,
            listen_port=self.port,
            controller_store_path=str(folder / "disk/state"),
            config_store_path=str(folder / "controller.properties"),
            enable_elect_unclean_master=is_unclean,
            controller_d_leger_self_id=name,
            controller_d_leger_peers=f"{name}-{ip}:{self.port}",
            reput_quorum=quorum,
            reput_quorum_lease_seconds=LEASE_S,
        )
        self.controller: Controller | None = None

    async def start(self) -> None:
        """Start the controller. Raises ``ReputError``."""
        process = self._begin()
        self.controller = context_of(process).run(
            Controller, self._config, self.disk, clock=self.clock
        )
        process.kept.append(self.controller)
        try:
            await self.call(self.controller.start(), START_S)
        except ReputError:
            self.kill()
            raise

    @property
    def is_leading(self) -> bool:
        """True if it claims to lead."""
        parts = getattr(self.controller, "parts", None)
        return parts is not None and parts.is_leading

    def kill(self) -> None:
        """End it as ``kill -9`` would."""
        self.end()
        self._release()

    async def power_cut(self, chance: random.Random) -> None:
        """End it by a power cut, which loses unsynced bytes."""
        self.end(is_silent=True)
        self.disk.lose_power(chance, chance.choice(list(Loss)), before=self._release)

    def _release(self) -> None:
        store = getattr(self.controller, "store", None)
        if store is not None:
            store.abandon()
        self.controller = None


class Message(NamedTuple):
    """A message of a log."""

    epoch: int
    number: int


class Life:
    """What a broker forgets when its process ends."""

    def __init__(self) -> None:
        self.epoch = 0
        self.master_id: int | None = None
        self.in_sync: set[int] = set()
        self.set_epoch = 0
        self.wanted: set[int] = set()
        """A set that was asked for, and perhaps granted."""
        self.acks: dict[int, int] = {}
        self.caught_up_s: dict[int, float] = {}
        self.ready: set[int] = set()
        """Brokers that have had all acknowledged messages since they follow."""
        self.confirmed = 0
        self.is_following = False


class ReplicaHost(Host):
    """A host with a scripted broker. Its number is its wish for an id, not the id.

    Args:
        world: The simulation.
        name: Its name in scenarios.
        ip: Its address.
        controllers: Addresses of the controllers.
        drift: Relative error of its clock.
    """

    port = 10911

    def __init__(
        self, world: "Electorate", name: str, ip: str, controllers: Sequence[str], drift: float
    ) -> None:
        super().__init__(world.loop, name, ip, drift)
        self._world = world
        self._controllers = controllers
        self._leader = controllers[0]
        self.identity: tuple[int, str] | None = None
        self._wish: tuple[int, str] | None = None
        self.last_epoch = -1
        self.log: list[Message] = []
        self.synced = 0
        self.life: Life | None = None
        self._client: RemotingClient

    @property
    def broker_id(self) -> int:
        """Its id."""
        return 0 if self.identity is None else self.identity[0]

    @property
    def is_master(self) -> bool:
        """True if it believes to be the master."""
        return (
            self.life is not None and self.life.epoch > 0 and self.life.master_id == self.broker_id
        )

    async def start(self) -> None:
        """Start the broker."""
        process = self._begin()
        self.life = Life()
        process.kept.append(spawn(self.loop, process, self._live(self.life), self.name))

    def kill(self) -> None:
        """End it as ``kill -9`` would."""
        self.end()
        self.life = None
        self.synced = len(self.log)  # the system writes what it has

    async def power_cut(self, chance: random.Random) -> None:
        """End it by a power cut, which loses unsynced messages."""
        self.end(is_silent=True)
        self.life = None
        end = chance.randint(self.synced, len(self.log))
        self._world.lost(self, self.log[end:])
        del self.log[end:]
        self.synced = end

    # The program ----------------------------------------------------------------------------------

    async def _live(self, life: Life) -> None:
        self._client = RemotingClient()
        state = ServerState(seconds=self.clock.work_s, used_seconds=self.clock.used_s)
        self._server = RemotingServer(self, host=self.ip, port=self.port, state=state)
        await self._server.start()
        await self._join(life)
        loops = (
            (self._beat, HEARTBEAT_S),
            (self._poll, POLL_S),
            (self._check, CHECK_S),
            (self._flush, FLUSH_S),
            (self._copy, COPY_S),
            (self._produce, PRODUCE_S),
        )
        await asyncio.gather(*(self._repeat(work, period_s, life) for work, period_s in loops))

    async def _repeat(self, work: Callable[[Life], object], period_s: float, life: Life) -> None:
        while True:
            done = work(life)
            if asyncio.iscoroutine(done):
                await done
            await asyncio.sleep(period_s)

    async def _join(self, life: Life) -> None:
        """Get an id, register, and wait for a master."""
        while self.identity is None or not await self._register(life):
            if self.identity is None and await self._apply():
                continue
            await asyncio.sleep(0.5 + self._world.chance.random())

    async def _apply(self) -> bool:
        if self._wish is None:
            reply = await self._ask(requests.next_id())
            if reply is None or reply.code:
                return False
            header = headers.decode(of_controllers.NextBrokerIdReplyHeader, reply.ext_fields)
            code = f"{self.address};{int(self.loop.now * 1000)}"
            self._wish = header.next_broker_id, code
        reply = await self._ask(requests.apply_id(*self._wish))
        if reply is None:
            return False
        if reply.code:
            self._wish = None
            return False
        self.identity, self._wish = self._wish, None
        self._world.given(*self.identity)
        return True

    async def _register(self, life: Life) -> bool:
        reply = await self._ask(requests.register(self.broker_id, self.address))
        if reply is None or reply.code:
            return False
        self._take(life, headers.decode(MasterHeader, reply.ext_fields), _set_of(reply))
        await self._beat(life)
        return life.master_id is not None or await self._elect(life)

    async def _elect(self, life: Life) -> bool:
        reply = await self._ask(requests.elect(self.broker_id))
        if reply is None or reply.code not in (0, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            return False
        body = bodies.decode(ElectMasterReply, reply.body)
        header = headers.decode(MasterHeader, reply.ext_fields)
        made = SyncStateSet(
            sync_state_set=body.sync_state_set,
            sync_state_set_epoch=header.sync_state_set_epoch or 0,
        )
        self._take(life, header, made)
        return True

    async def _beat(self, life: Life) -> None:
        request = requests.heartbeat(
            self.broker_id, self.address, self.last_epoch, len(self.log), timeout_ms=TIMEOUT_MS
        )

        async def send(address: str) -> None:
            with contextlib.suppress(ReputError):
                await self._client.send_oneway(address, request, ASK_MS)

        await asyncio.gather(*map(send, self._controllers))

    async def _poll(self, life: Life) -> None:
        reply = await self._ask(requests.replica_info())
        if reply is None or reply.code:
            return
        header, made = headers.decode(MasterHeader, reply.ext_fields), _set_of(reply)
        if header.master_epoch is not None and header.master_epoch > life.epoch:
            if header.master_broker_id is None:
                await self._elect(life)
            else:
                self._take(life, header, made)
        elif header.master_epoch == life.epoch and self.is_master:
            self._take_set(life, made)

    def _take(self, life: Life, header: MasterHeader, made: SyncStateSet) -> None:
        """Take a role, if it is of a later epoch."""
        epoch, master_id = header.master_epoch, header.master_broker_id
        if master_id is None or epoch is None or epoch <= life.epoch:
            return
        life.epoch, life.master_id, life.is_following = epoch, master_id, False
        life.in_sync, life.set_epoch = set(made.sync_state_set), made.sync_state_set_epoch
        life.wanted, life.acks, life.caught_up_s, life.ready = set(), {}, {}, set()
        if master_id == self.broker_id:
            self.last_epoch = epoch
            life.confirmed = len(self.log)
            self._world.promoted(self, epoch)

    def _take_set(self, life: Life, made: SyncStateSet) -> None:
        if made.sync_state_set_epoch > life.set_epoch:
            life.in_sync, life.set_epoch = set(made.sync_state_set), made.sync_state_set_epoch
            life.ready = set()  # as with Java, only a new report adds a replica again
        life.wanted = set()

    async def _check(self, life: Life) -> None:
        """Ask for another set, if replicas lag or have caught up."""
        if not self.is_master:
            return
        now, wanted = self.loop.now, {self.broker_id}
        for broker_id, caught_up_s in life.caught_up_s.items():
            if now - caught_up_s >= LAG_S:
                life.ready.discard(broker_id)
            elif broker_id in life.in_sync | life.ready:
                wanted.add(broker_id)
        if wanted == life.in_sync:
            return
        life.wanted, epoch = wanted, life.epoch
        request = requests.alter(self.broker_id, epoch, sorted(wanted), life.set_epoch)
        reply = await self._ask(request)
        if reply is None or life.epoch != epoch:
            return  # perhaps granted: the next answer shows it
        if reply.code:
            life.wanted = set()
        else:
            self._take_set(life, _set_of(reply))

    def _flush(self, life: Life) -> None:
        self.synced = len(self.log)

    def _produce(self, life: Life) -> None:
        """Store a message, and acknowledge all messages that the whole set has."""
        if not self.is_master:
            return
        self.log.append(Message(life.epoch, self._world.next_number()))
        self._world.stored(self)
        ids = (life.in_sync | life.wanted) - {self.broker_id}
        end = min([len(self.log), *(life.acks.get(key, 0) for key in ids)])
        if end > life.confirmed:
            self._world.acked(self.log[life.confirmed : end])
            life.confirmed = end

    def _copy(self, life: Life) -> None:
        """Copy messages of the master, after cutting messages that it does not have."""
        master = self._world.replica(life.master_id)
        if master is None or self.is_master or not self._world.is_linked(self, master):
            life.is_following = False
            return
        theirs = master.life
        if theirs is None or not master.is_master or theirs.epoch != life.epoch:
            life.is_following = False
            return
        if not life.is_following:
            end = 0
            for mine, other in zip(self.log, master.log, strict=False):
                if mine != other:
                    break
                end += 1
            del self.log[end:]
            self.synced = min(self.synced, end)
            life.is_following = True
        self.log += master.log[len(self.log) : len(self.log) + 50]
        self.last_epoch = theirs.epoch
        theirs.acks[self.broker_id] = len(self.log)
        if len(self.log) >= theirs.confirmed:
            theirs.ready.add(self.broker_id)
        if len(self.log) >= len(master.log) - 2:
            theirs.caught_up_s[self.broker_id] = self.loop.now

    async def _ask(self, request: Command) -> Command | None:
        """Return an answer of the leading controller; None if there is none."""
        begun_s = self.loop.now
        try:
            reply = await self._client.invoke(self._leader, request, ASK_MS)
        except ReputError:
            await self._find_leader()
            return None
        if reply.code == ResponseCode.CONTROLLER_NOT_LEADER:
            await self._find_leader()
            return None
        self._world.answered(request, reply, begun_s)
        return reply

    async def _find_leader(self) -> None:
        """Ask a controller who leads."""
        if len(self._controllers) == 1:
            return
        with contextlib.suppress(ReputError):
            address = self._world.chance.choice(self._controllers)
            reply = await self._client.invoke(address, requests.metadata(), ASK_MS)
            fields = reply.ext_fields or {}
            self._leader = fields.get("controllerLeaderAddress", self._leader)

    # Notices --------------------------------------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Do nothing."""

    def on_closed(self, channel: Channel) -> None:
        """Do nothing."""

    def on_request(self, channel: Channel, request: Command) -> None:
        """Take a notice."""
        assert request.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED
        self._world.answered(request, request, self.loop.now)
        if self.life is not None and self.identity is not None:
            self._take(
                self.life, headers.decode(MasterHeader, request.ext_fields), _set_of(request)
            )


def _set_of(reply: Command) -> SyncStateSet:
    return bodies.decode(SyncStateSet, reply.body)
