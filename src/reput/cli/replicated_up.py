"""``reput up --replicas``: a name server, a master and its slaves, each broker in a process.

Brokers stop when this process ends, also if it is killed. Each has a folder with its broker.conf,
its store and its log, all of which are kept. Roles are in broker.conf: ``reput cluster promote``
changes them there, so that the next start continues with the brokers' last roles. With
``--controllers 1`` this process also has a controller, which decides about the roles.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reput import config as settings
from reput.broker.settings import exporter
from reput.broker.settings.exporter import MetricsExporter
from reput.cli.child_broker import ChildBroker
from reput.cli.replication import MASTER_ROLES, SLAVE
from reput.cli.server_texts import CannotServe, join_address
from reput.cli.serving import (
    DEFAULT_FOLDER,
    LOG_FILE_BYTES,
    StopSignal,
    environment,
    keys_of,
    print_now,
    readable_errors,
    run,
)
from reput.controller.config import ControllerConfig
from reput.controller.group import Group
from reput.controller.server import Controller
from reput.errors import InvalidOption
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting import tls_settings
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.folder_lock import FolderLock

NAME = "broker-a"
PORT_STEP = 10
"""Difference between the ports of consecutive brokers."""
REPLICAS_MAX = 8
EXPORTER_PORT_KEY = "metricsPromExporterPort"
_START_S = 120.0
_WHOLE_S, _LOOK_S = 30.0, 0.05


@dataclass(slots=True)
class _Member:
    """A broker of the group."""

    folder: Path
    port: int
    """Port to listen on; 0 for any."""
    child: ChildBroker = field(init=False)

    def __post_init__(self) -> None:
        self.child = ChildBroker(self.folder.name, self.conf)

    @property
    def conf(self) -> Path:
        return self.folder / "broker.conf"

    def role(self) -> tuple[str, str]:
        """Return role and id in its broker.conf."""
        values = settings.parse_properties(self.conf.read_text("latin-1"))
        return values.get("brokerRole", MASTER_ROLES[0]), values.get("brokerId", "0")


def run_group(
    replicas: int,
    *,
    has_controller: bool,
    store: str | None,
    port: int,
    broker_port: int,
    host: str,
    advertise: str | None,
    path: str | None,
    metrics_port: int | None,
    metrics_address: str | None,
) -> int:
    """Run a name server, a master and slaves until a signal; return the exit code.

    Args:
        replicas: Number of slaves.
        has_controller: Whether a controller elects the masters.
        store: Folder of all brokers; by default ``reput-data``.
        port: Port of the name server; 0: any.
        broker_port: Port of the first broker; 0: any for each.
        host: Address to listen on.
        advertise: Address that clients connect to.
        path: A broker.conf with other settings for all brokers.
        metrics_port: Port of /metrics and /health of the first broker; by default none.
        metrics_address: Address of these ports.

    Raises:
        InvalidOption: The number of slaves is not allowed.
        CannotServe: A broker did not start.
    """
    if not 0 < replicas <= REPLICAS_MAX:
        raise InvalidOption("--replicas", replicas, f"0 to {REPLICAS_MAX}")
    root = Path(store or DEFAULT_FOLDER).absolute()
    if (root / "commitlog").exists():
        raise CannotServe(f"{root} is the store of one broker; choose another folder: --store")
    name_config = NamesrvConfig(
        bind_address=host,
        listen_port=port,
        kv_config_path=f"{root}/namesrv/kvConfig.json",
        config_store_path=f"{root}/namesrv/namesrv.properties",
    )
    name_tls = tls_settings.load(settings.Settings(path, environment=environment()))
    members = [
        _Member(root / f"{NAME}-{number + 1}", broker_port and broker_port + PORT_STEP * number)
        for number in range(replicas + 1)
    ]

    async def body(stop: StopSignal) -> None:
        for member in members:
            _check_free(member)
        controllers = contextlib.AsyncExitStack()
        name_server = NameServer(CurrentConfig(name_config, tls=name_tls))
        with readable_errors(port, "--port"):
            await name_server.start()
        stop.listen()
        here = "127.0.0.1" if host in ("0.0.0.0", "") else "::1" if host == "::" else host
        address = advertise or here
        try:
            namesrv = join_address(here, name_server.port)
            common = _common(host, address, namesrv, path)
            if metrics_address:
                common["reputMetricsAddress"] = metrics_address
            controller = None
            if has_controller:
                controller = await controllers.enter_async_context(_controller(root, here))
            common |= _group_settings(here, controller, replicas)
            # Before any broker.conf is written: the newest one is that of the last promotion.
            _keep_one_master([member for member in members if member.conf.exists()])
            for number, member in enumerate(members):
                metrics = str(metrics_port + number if metrics_port else 0)
                ports = {"metricsPort": metrics, **_own_ports(common, number)}
                _write_conf(member, number, {**common, **ports}, is_led=has_controller)
            # The master first: it would be refused while another one is listed and alive.
            for member in sorted(members, key=lambda candidate: candidate.role()[0] == SLAVE):
                await _start(member)
            namesrv = join_address(address, name_server.port)
            if controller is None:
                print_now(_banner(members, namesrv))
            else:
                group = await _whole_group(controller, len(members))
                controller_address = join_address(here, controller.port)
                print_now(_led_banner(members, namesrv, controller_address, group))
            watches = [asyncio.create_task(_watch(member)) for member in members]
            await stop.wait()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        finally:
            await controllers.aclose()  # first: no broker that stops needs a successor
            await asyncio.gather(*(member.child.stop() for member in members))
            await name_server.stop()

    return run(body)


def _check_free(member: _Member) -> None:
    """Refuse to change the broker.conf of a broker that runs. Raises ``CannotServe``."""
    store = member.folder / "store"
    if (store / paths.LOCK).exists():
        with readable_errors(0, "--port", store=str(store)):
            FolderLock(str(store)).release()


def _common(host: str, address: str, namesrv: str, path: str | None) -> dict[str, str]:
    """Return the settings of all brokers."""
    return {
        "brokerName": NAME,
        "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
        "enablePropertyFilter": "true",
        "enableMultiDispatch": "true",
        "slaveReadEnable": "true",
        **keys_of(path),
        "bindAddress": host,
        "brokerIP1": address,
        "brokerIP2": address,
        "namesrvAddr": namesrv,
    }


@contextlib.asynccontextmanager
async def _controller(root: Path, host: str) -> AsyncIterator[Controller]:
    """Run a controller on any port."""
    config = ControllerConfig(
        bind_address=host,
        listen_port=0,
        controller_store_path=f"{root}/controller",
        config_store_path=f"{root}/controller/controller.properties",
    )
    async with Controller(config, Disk()) as controller:
        yield controller


def _group_settings(host: str, controller: Controller | None, replicas: int) -> dict[str, str]:
    """Return the settings that decide who gives the roles; all of them, also without a controller.

    A folder may have been used in the other way before.
    """
    if controller is None:
        return {"enableControllerMode": "false"}
    return {
        "enableControllerMode": "true",
        "controllerAddr": join_address(host, controller.port),
        "brokerRole": SLAVE,
        "brokerId": "-1",
        "allAckInSyncStateSet": "true",
        "minInSyncReplicas": "2" if replicas > 1 else "1",
    }


async def _whole_group(controller: Controller, count: int) -> Group | None:
    """Return the group once all brokers are in sync; as it is, after some time."""
    group = None
    for _ in range(int(_WHOLE_S / _LOOK_S)):
        group = controller.parts.groups.get(NAME)
        if group is not None and len(group.in_sync) == count:
            break
        await asyncio.sleep(_LOOK_S)
    return group


def _own_ports(common: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the ports of broker.conf, increased for each broker, which needs its own."""
    ports = {key: common[key] for key in ("grpcServerPort", EXPORTER_PORT_KEY) if key in common}
    if common.get("metricsExporterType") == MetricsExporter.PROM:
        ports.setdefault(EXPORTER_PORT_KEY, str(exporter.PORT))
    # The broker refuses other texts, with the reason.
    return {
        key: str(int(text) + number)
        for key, text in ports.items()
        if text.isdecimal() and int(text)
    }


def _write_conf(member: _Member, number: int, common: Mapping[str, str], *, is_led: bool) -> None:
    """Write a broker.conf; an existing one keeps its role, its id and all other settings."""
    folder = member.folder
    folder.mkdir(parents=True, exist_ok=True)
    role = {"brokerRole": "SYNC_MASTER" if number == 0 else SLAVE, "brokerId": str(number)}
    own = {
        **common,
        "listenPort": str(member.port),
        "storePathRootDir": str(folder.absolute() / "store"),
    }
    text = ""
    if member.conf.exists():
        text = member.conf.read_text("latin-1")
    if is_led or "brokerRole" in settings.parse_properties(text):
        role = {}
    wanted = settings.replace_properties(text, {**own, **role})
    if wanted != text:
        Disk().replace(str(member.conf), wanted.encode("latin-1"))


def _keep_one_master(members: list[_Member]) -> None:
    """Keep the role master only for the last promoted broker: its broker.conf is the newest."""
    masters = [member for member in members if member.role()[0] in MASTER_ROLES]
    masters.sort(key=lambda member: member.conf.stat().st_mtime_ns)
    used = {member.role()[1] for member in members}
    for member in masters[:-1]:
        number = next(str(free) for free in range(1, REPLICAS_MAX + 2) if str(free) not in used)
        used.add(number)
        text = member.conf.read_text("latin-1")
        changed = {"brokerRole": SLAVE, "brokerId": number}
        Disk().replace(
            str(member.conf), settings.replace_properties(text, changed).encode("latin-1")
        )
        print_now(f"{member.folder.name} was master before {masters[-1].folder.name}: now a slave")


async def _start(member: _Member) -> None:
    """Start a broker, and wait until it serves."""
    log = member.folder / "broker.log"
    with log.open("ab") as output:
        await member.child.launch(log=output)
    try:
        async with asyncio.timeout(_START_S):
            is_started = await member.child.await_start()
    except TimeoutError:
        is_started = False
    if not is_started:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        reason = "".join(tail) or f"no word in {_START_S:.0f} s"
        raise CannotServe(f"{member.folder.name} did not start: {reason} (its log: {log})")


async def _watch(member: _Member) -> None:
    """Wait for the end of a broker's process, and report it."""
    how = await member.child.wait()
    print_now(f"{member.folder.name} ({member.child.address}) has ended: {how}")


def _led_banner(members: list[_Member], namesrv: str, controller: str, group: Group | None) -> str:
    """Return the banner of brokers under a controller, and the commands of a failover."""
    lines = _head(members, namesrv)
    lines.append(f"  controller   {controller}")
    master = members[0]
    for member in members:
        what = "slave"
        if group is not None and member.child.address == group.master_address:
            master, what = member, f"master in epoch {group.master_epoch}"
        line = f"{what}, pid {member.child.pid}, {member.folder}"
        lines.append(f"  {member.child.address:<20} {line}")
    lines += [
        "",
        "Try a failover in another terminal; another broker becomes master by itself:",
        f"  reput cluster replicas -n {namesrv}",
        f"  kill -9 {master.child.pid}",
        f"  reput cluster replicas -n {namesrv}",
        f"  reput broker -c {master.conf}",
        "",
        "Ctrl-C stops all brokers; their folders stay.",
    ]
    return "\n".join(lines)


def _head(members: list[_Member], namesrv: str) -> list[str]:
    """Return the first lines of a banner."""
    from reput import __version__
    from reput.kernel_choice import engine_text, expected_engine

    return [
        f"reput {__version__}: a name server and {len(members)} brokers named {NAME}",
        "",
        f"  name server  {namesrv}",
        f"  kernels      {engine_text(expected_engine())}",
    ]


def _banner(members: list[_Member], namesrv: str) -> str:
    """Return the banner: the brokers, and the commands of a failover."""
    lines = _head(members, namesrv)
    master = slave = members[0]
    for member in members:
        role, broker_id = member.role()
        if role == SLAVE:
            slave = member
        else:
            master = member
        what = f"{role} with id {broker_id}, pid {member.child.pid}, {member.folder}"
        lines.append(f"  {member.child.address:<20} {what}")
    lines += [
        "",
        "Try a failover in another terminal:",
        f"  reput cluster replicas -n {namesrv}",
        f"  kill -9 {master.child.pid}",
        f"  reput cluster promote {slave.child.address} -n {namesrv}",
        f"  REPUT_BROKER_ROLE=SLAVE REPUT_BROKER_ID={len(members)} reput broker -c {master.conf}",
        "",
        "Ctrl-C stops all brokers; their folders stay.",
    ]
    return "\n".join(lines)
