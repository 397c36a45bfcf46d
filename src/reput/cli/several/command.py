"""``reput broker --count`` and ``reput up --brokers``: several brokers under one parent process."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput import config as config_files
from reput.cli import serving, up_for_tests
from reput.cli.server_texts import join_address, own_address
from reput.cli.several import plan as planning
from reput.cli.several.plan import BrokerPlan
from reput.cli.several.supervisor import ANY_GRPC_PORT, Supervised
from reput.cli.systemd import Systemd
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from reput.broker.settings.config import BrokerSettings

_CHILD_VARIABLES = {"REPUT_METRICS_PORT": "0", "REPUT_METRICS_EXPORTER_TYPE": "DISABLE"}
"""Settings of the brokers' processes: the parent serves the metrics of all."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Supervision:
    """Options of several brokers."""

    count: int
    option: str
    """Option of the count, for errors."""
    stores: tuple[str, ...] = ()
    """Stores of the brokers; if empty, folders of ``storePathRootDir``."""
    is_pinned: bool = True
    """True if each broker is pinned to a core."""
    child_options: tuple[str, ...] = ()
    """Options of their processes, such as those of logs."""
    as_json: bool = False
    ready_file: str | None = None


def supervision(
    count: int,
    option: str,
    child_options: Sequence[str],
    *,
    stores: str | None,
    is_pinned: bool,
    as_json: bool,
    ready_file: str | None,
) -> Supervision:
    """Return the options of several brokers; arguments as its attributes.

    Raises:
        InvalidOption: ``stores`` has an empty name.
    """
    folders = () if stores is None else tuple(word.strip() for word in stores.split(","))
    if not all(folders):
        raise InvalidOption("--stores", stores, "folders separated by commas")
    return Supervision(count, option, folders, is_pinned, tuple(child_options), as_json, ready_file)


def run_count(
    path: str | None,
    supervision: Supervision,
    *,
    namesrv_addr: str | None,
    store: str | None,
    port: int | None,
    metrics_port: int | None,
    metrics_address: str | None,
) -> int:
    """Run the brokers of a broker.conf until a signal; return the exit code.

    Raises:
        InvalidOption: A setting is not allowed.
        CannotServe: A broker did not start.
    """
    explicit = {
        "namesrv_addr": namesrv_addr,
        "store_path_root_dir": store and str(Path(store).absolute()),
        "listen_port": port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    if namesrv_addr is None and "namesrvAddr" not in serving.keys_of(path):
        explicit["namesrv_addr"] = os.environ.get("NAMESRV_ADDR")
    loaded = _load(path, explicit)
    if not loaded.broker.name_servers:
        _log.warning("these brokers register at no name server: set one with -n or namesrvAddr")
    common = {} if namesrv_addr is None else {"namesrvAddr": namesrv_addr}
    _drop_ready_file(supervision)
    systemd = Systemd(os.environ)

    async def body(stop: serving.StopSignal) -> None:
        stop.listen()
        async with _brokers(path, loaded, common, supervision, systemd, stop) as brokers:
            if brokers is None:
                return
            names = loaded.broker.namesrv_addr
            addresses = _addresses(brokers, loaded, names)
            with _announced(supervision, addresses, _lines(brokers, names)):
                async with systemd.running(_status(brokers)):
                    await stop.wait()

    return serving.run(body)


def run_up(
    path: str | None,
    supervision: Supervision,
    *,
    store: str | None,
    port: int,
    broker_port: int,
    host: str,
    advertise: str | None,
    metrics_port: int | None,
    metrics_address: str | None,
    grpc_port: int | None,
    command: Sequence[str] = (),
) -> int:
    """Run a name server and several brokers until a signal; return the exit code.

    Raises:
        InvalidOption: A setting is not allowed.
        CannotServe: A server did not start.
    """
    from reput.namesrv.config import CurrentConfig, NamesrvConfig
    from reput.namesrv.server import NameServer
    from reput.remoting import tls_settings

    given = serving.keys_of(path)
    root = str(Path(store or given.get("storePathRootDir") or serving.DEFAULT_FOLDER).absolute())
    here = own_address(host)
    address = advertise or here
    common = {
        "brokerName": "broker-a",
        "enablePropertyFilter": "true",
        "mappedFileSizeCommitLog": str(serving.LOG_FILE_BYTES),
    }
    common = {key: text for key, text in common.items() if key not in given}
    common |= {"bindAddress": host, "brokerIP1": address, "brokerIP2": address}
    if grpc_port:
        common["grpcServerPort"] = str(grpc_port)
    elif grpc_port == 0:
        options = (*supervision.child_options, ANY_GRPC_PORT)
        supervision = dataclasses.replace(supervision, child_options=options)
    explicit = {
        "store_path_root_dir": root,
        "listen_port": broker_port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    _load(path, explicit, common)  # wrong settings are reported before anything starts
    _drop_ready_file(supervision)
    name_config = NamesrvConfig(
        bind_address=host,
        listen_port=port,
        kv_config_path=f"{root}/namesrv/kvConfig.json",
        config_store_path=f"{root}/namesrv/namesrv.properties",
    )
    name_tls = tls_settings.load(config_files.Settings(path, environment=serving.environment()))
    systemd = Systemd(os.environ)

    async def body(stop: serving.StopSignal) -> int:
        code = 0
        name_server = NameServer(CurrentConfig(name_config, tls=name_tls))
        with serving.readable_errors(port, "--port"):
            await name_server.start()
        stop.listen()
        try:
            common["namesrvAddr"] = join_address(here, name_server.port)
            loaded = _load(path, explicit, common)
            async with _brokers(path, loaded, common, supervision, systemd, stop) as brokers:
                if brokers is None:
                    return code
                names = join_address(address, name_server.port)
                addresses = _addresses(brokers, loaded, names)
                text = "" if command else _banner(brokers, names)
                with _announced(supervision, addresses, text):
                    async with systemd.running(_status(brokers)):
                        if command:
                            code = await up_for_tests.run_command(command, addresses, stop.wait)
                        else:
                            await stop.wait()
        finally:
            await name_server.stop()
        return code

    return serving.run(body)


def _load(
    path: str | None, explicit: Mapping[str, object], common: Mapping[str, str] | None = None
) -> "BrokerSettings":
    """Return the settings that all brokers have, before each gets its own ones."""
    from reput.broker.settings.config import load

    source: str | dict[str, object] | None = path
    if common:
        source = {**({} if path is None else config_files.read_properties(path)), **common}
    given = {key: value for key, value in explicit.items() if value is not None}
    return load(source, environment=serving.environment(), explicit=given)


def _drop_ready_file(supervision: Supervision) -> None:
    if supervision.ready_file is not None:
        up_for_tests.drop_ready_file(supervision.ready_file)


# --- running ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _brokers(
    path: str | None,
    loaded: "BrokerSettings",
    common: Mapping[str, str],
    supervision: Supervision,
    systemd: Systemd,
    stop: serving.StopSignal,
) -> AsyncIterator[list[Supervised] | None]:
    """Run the brokers; yields None if the signal came before they served.

    Args:
        path: The common broker.conf.
        loaded: Its settings.
        common: Further settings for all brokers, by key of broker.conf.
        supervision: The options.
        systemd: The systemd of this process; if it watches the process, so are the brokers.
        stop: The signal.
    """
    cores = _cores()
    members = planning.members(
        loaded,
        {**serving.keys_of(path), **common},
        supervision.count,
        stores=supervision.stores,
        cores=cores if supervision.is_pinned else (),
        option=supervision.option,
    )
    root = loaded.store.store_path_root_dir
    planning.check_stores(root, members)
    for text in planning.warnings(loaded, members, len(cores), is_pinned=supervision.is_pinned):
        _log.warning("%s", text)
    planning.write_confs(members, path, common)
    async with contextlib.AsyncExitStack() as running:
        sockets = running.enter_context(
            tempfile.TemporaryDirectory(prefix="reput-", ignore_cleanup_errors=True)
        )
        environment = _environment(members)
        brokers = [
            Supervised(
                member,
                [*supervision.child_options],
                Path(sockets, str(number)),
                environment,
                loaded.broker.bind_address,
            )
            for number, member in enumerate(members)
        ]
        running.push_async_callback(_stop_all, brokers)
        if systemd.watchdog_s is not None:
            for broker in brokers:
                await running.enter_async_context(broker.watched(systemd.watchdog_s))
        if not await _until(stop, _start_all(brokers)):
            yield None
            return
        for monitor, option in _monitors(loaded, brokers):
            with serving.readable_errors(monitor.listener.port, option):
                monitor.listener.start()
            running.push_async_callback(monitor.listener.stop)
        keeping = [asyncio.create_task(broker.keep()) for broker in brokers]
        running.push_async_callback(_cancel, keeping)
        yield brokers


def _cores() -> list[int]:
    """Return the cores that the process may use; empty where processes cannot be pinned."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _environment(members: Sequence[BrokerPlan]) -> dict[str, str]:
    """Return the environment of the processes, without settings that each has for itself."""
    own = {key for member in members for key in member.own}
    variables = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(config_files.ENVIRONMENT_PREFIX)
        or config_files.key_of(name.removeprefix(config_files.ENVIRONMENT_PREFIX).lower())
        not in own
    }
    return variables | _CHILD_VARIABLES


async def _start_all(brokers: Sequence[Supervised]) -> None:
    """Start all brokers at once. Raises the first error, after all have started or failed."""
    results = await asyncio.gather(*(broker.start() for broker in brokers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _until(stop: serving.StopSignal, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work until the signal; return whether it was completed."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when="FIRST_COMPLETED")
    stopped.cancel()
    if task.done():
        task.result()
        return True
    await _cancel([task])
    return False


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _stop_all(brokers: Sequence[Supervised]) -> None:
    await asyncio.gather(*(broker.stop() for broker in brokers))


def _monitors(loaded: "BrokerSettings", brokers: Sequence[Supervised]) -> Iterator[tuple[Any, str]]:
    """Yield the HTTP ports that are configured, and the option of each."""
    from reput.cli.several.monitor import ROCKETMQ, Monitor

    config = loaded.broker
    if config.metrics_port:
        monitor = Monitor(brokers, config.reput_metrics_address, config.metrics_port)
        yield monitor, "--metrics-port, or metricsPort in broker.conf"
    if config.exports_metrics:
        host = config.metrics_prom_exporter_host or config.bind_address
        port = config.metrics_prom_exporter_port
        yield Monitor(brokers, host, port, page=ROCKETMQ), "metricsPromExporterPort in broker.conf"


# --- output ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _announced(supervision: Supervision, addresses: Mapping[str, Any], text: str) -> Iterator[None]:
    """Print that all brokers serve, and keep the file of their addresses meanwhile."""
    delete: Callable[[], None] | None = None
    if supervision.ready_file is not None:
        delete = up_for_tests.write_ready_file(supervision.ready_file, addresses)
    if supervision.as_json:
        text = json.dumps(addresses)
    if text:
        serving.print_now(text)
    try:
        yield
    finally:
        if delete is not None:
            delete()


def _addresses(
    brokers: Sequence[Supervised], loaded: "BrokerSettings", name_server: str
) -> dict[str, Any]:
    """Return the document of ``reput up --json``, with an entry of ``brokers`` for each."""
    from reput import __version__

    config = loaded.broker
    metrics = None
    if config.metrics_port:
        metrics = f"http://{join_address(config.reput_metrics_address, config.metrics_port)}"
    documents = [
        {
            "brokerName": broker.member.name,
            "broker": broker.child.address,
            "grpc": broker.child.grpc_address,
            "store": str(broker.member.store),
            "core": broker.member.core,
            "pid": broker.child.pid,
        }
        for broker in brokers
    ]
    first = brokers[0]
    return {
        "nameServer": name_server,
        "broker": first.child.address,
        "brokerName": first.member.name,
        "cluster": config.broker_cluster_name,
        "grpc": first.child.grpc_address,
        "metrics": metrics and f"{metrics}/metrics",
        "testControls": None,
        "store": loaded.store.store_path_root_dir,
        "pid": os.getpid(),
        "version": __version__,
        "brokers": documents,
    }


def _status(brokers: Sequence[Supervised]) -> str:
    """Return what ``systemctl status`` shows."""
    return f"brokers serve: {', '.join(broker.member.name for broker in brokers)}"


def _lines(brokers: Sequence[Supervised], name_servers: str) -> str:
    """Return a line for each broker, as brokers print it themselves."""
    address = f" and name server is {name_servers}" if name_servers else ""
    return "\n".join(
        f"The broker[{broker.member.name}, {broker.child.address}] boot success. "
        f"serializeType=JSON{address}"
        for broker in brokers
    )


def _banner(brokers: Sequence[Supervised], name_server: str) -> str:
    from reput import __version__
    from reput.kernel_choice import engine_text, expected_engine

    lines = [f"reput {__version__}: a name server and {len(brokers)} brokers", ""]
    lines.append(f"  name server  {name_server}")
    lines.append(f"  kernels      {engine_text(expected_engine())}")
    for broker in brokers:
        core = "" if broker.member.core is None else f", core {broker.member.core}"
        where = f"{broker.member.name}, pid {broker.child.pid}{core}, {broker.member.store}"
        lines.append(f"  {broker.child.address:<20} {where}")
    lines += ["", "Ctrl-C stops them; their folders stay."]
    return "\n".join(lines)
