"""Runs servers until a signal stops them.

The first SIGTERM, SIGHUP or Ctrl-C stops a server cleanly: it unregisters at the name servers,
sends pending replies and syncs its store. The second one ends the process at once; the store then
recovers as after a crash.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput import config as settings, descriptors, remote_settings
from reput.cli import garbage
from reput.cli.exit_codes import EXIT_INTERRUPTED
from reput.cli.processes import owner_of_port, owner_of_store
from reput.cli.server_texts import CannotServe, join_address, own_address
from reput.cli.systemd import Systemd
from reput.errors import InvalidOption, StoreUnavailable
from reput.extras import install_command
from reput.limits import Refusals
from reput.remoting.client_faults import ClientFaults

if TYPE_CHECKING:
    from reput.broker.server import Broker
    from reput.broker.settings.config import BrokerConfig, BrokerSettings
    from reput.cli.controller_in_namesrv import NameServerWithController
    from reput.cli.obstacles import Obstacle
    from reput.controller.config import ControllerConfig
    from reput.controller.server import Controller
    from reput.grpc.proxy.config import ProxyConfig
    from reput.grpc.proxy.server import Proxy
    from reput.grpc.server import FrontServer
    from reput.namesrv.config import NamesrvConfig
    from reput.namesrv.server import NameServer
    from reput.remoting.metrics_server import Detail, Family, HistogramFamily, Meter
    from reput.remoting.tls_acceptor import TlsAcceptor

DEFAULT_FOLDER = "reput-data"
LOG_FILE_BYTES = 256 * 1024 * 1024
"""Size of the log files of a new store of ``reput up``: RocketMQ's 1 GiB is much for a laptop."""

GRPC_PORT = 8081
"""Default port of 5.x clients at ``reput up``."""
GRPC_OPTION = "grpcServerPort in broker.conf"
FIRST_REGISTRATION_S = 3
"""Timeout of the first registration, before a broker reports that it has started."""

IMPORTANT = (
    "namesrvAddr",
    "brokerIP1",
    "brokerName",
    "brokerClusterName",
    "brokerId",
    "listenPort",
    "autoCreateTopicEnable",
    "storePathRootDir",
    "storePathCommitLog",
    "fileReservedTime",
    "deleteWhen",
    "flushDiskType",
    "brokerRole",
    "messageDelayLevel",
    "metricsPort",
    "reputMetricsAddress",
    "reputRemoteSettings",
)
"""Settings that ``-m`` prints."""

_NO_SETTINGS = frozenset(
    {
        *("REPUT_DEBUG", "REPUT_KERNELS", "REPUT_TLS_KEY_PASSWORD", "REPUT_TEST_CONTROLS"),
        *("REPUT_ACCESS_KEY", "REPUT_SECRET_KEY", "REPUT_SECRET_KEY_FILE", "REPUT_SECURITY_TOKEN"),
        "REPUT_USER_PASSWORD",
        # Of the tests:
        *("REPUT_CPU", "REPUT_FAULT_SEED", "REPUT_HOSTILE_SECONDS", "REPUT_HOSTILE_SEED"),
        *("REPUT_INTEROP", "REPUT_JARS", "REPUT_LAG_SECONDS", "REPUT_MUTANT", "REPUT_RECORD"),
        *("REPUT_SCRIPTS", "REPUT_SEED", "REPUT_SKIPS", "REPUT_SOAK", "REPUT_SPARK_VERSIONS"),
        *("REPUT_TEST_FAST_PATH", "REPUT_TEST_NEEDS", "REPUT_WHEEL"),
    }
)
"""Environment variables that are no settings: of other commands and of development."""

_log = logging.getLogger(__name__)


# --- the commands -------------------------------------------------------------------------------


def namesrv(
    path: str | None,
    *,
    port: int | None,
    metrics_port: int | None,
    metrics_address: str | None,
    print_all: bool,
    print_important: bool,
) -> int:
    """Run a name server; return the exit code."""
    from reput.namesrv import config
    from reput.namesrv.server import NameServer

    explicit = {
        "listen_port": port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    current, unknown = config.load(path, environment=environment(), explicit=_given(explicit))
    controller_settings = None
    if current.value.enable_controller_in_namesrv:
        from reput.cli import controller_in_namesrv

        controller_settings, others = controller_in_namesrv.load(path, environment())
        unknown = tuple(key for key in unknown if key.key in {other.key for other in others})
    for key in unknown:
        _log.warning("%s", key)
    if print_all or print_important:
        print(current.text(), end="")
        return 0

    systemd = Systemd(os.environ)

    async def body(stop: StopSignal) -> None:
        server = NameServer(current)
        running: NameServer | controller_in_namesrv.NameServerWithController = server

        def namesrv_meter() -> "Meter":
            if not isinstance(running, NameServer):
                return controller_in_namesrv.MeterOfBoth(running)
            from reput.namesrv.metrics import NameServerMeter

            return NameServerMeter(server)

        with readable_errors(current.value.listen_port, "--port, or listenPort in namesrv.conf"):
            await server.start()
        more = ""
        if controller_settings is not None:
            running = controller_in_namesrv.NameServerWithController(server, controller_settings)
            option = "controllerDLegerPeers in namesrv.conf"
            with readable_errors(controller_settings.value.port, option):
                await running.start()
            more = f"\n{running.text}"
        option = "--metrics-port, or metricsPort in namesrv.conf"
        metrics = _metrics(namesrv_meter, server.refusals, current.value, option)
        where = f"{current.value.bind_address}:{server.port}"
        text = f"The Name Server boot success. serializeType=JSON, address {where}{more}"
        await _serve_until_stopped(running, stop, metrics, text, systemd)

    return run(body)


def broker(
    path: str | None,
    *,
    namesrv_addr: str | None,
    store: str | None,
    port: int | None,
    metrics_port: int | None,
    metrics_address: str | None,
    print_all: bool,
    print_important: bool,
    check: bool = False,
    strict: bool = False,
    as_json: bool = False,
    for_java: str | None = None,
    stop_with_stdin: bool = False,
    any_grpc_port: bool = False,
    monitor_socket: str | None = None,
    core: int | None = None,
) -> int:
    """Run a broker; return the exit code.

    The last four arguments are those of child processes, see ``cli.several``.
    """
    from reput.broker.server import Broker
    from reput.broker.settings import config
    from reput.cli import obstacles

    explicit = {
        "namesrv_addr": namesrv_addr,
        "store_path_root_dir": store and str(Path(store).absolute()),
        "listen_port": port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    if namesrv_addr is None and "namesrvAddr" not in keys_of(path):
        explicit["namesrv_addr"] = os.environ.get("NAMESRV_ADDR")  # as mqbroker does

    def load() -> "BrokerSettings":
        return config.load(path, environment=environment(), explicit=_given(explicit))

    if check:
        from reput.cli.moving import report

        return report.check(
            load, keys_of(path), is_strict=strict, as_json=as_json, for_java=for_java
        )
    loaded = load()
    if strict and loaded.warnings:
        raise CannotServe("; ".join(loaded.warnings))
    for warning in loaded.warnings:
        _log.warning("%s", warning)
    if print_all or print_important:
        for key, text in config.pairs(loaded.broker, loaded.store).items():
            if print_all or key in IMPORTANT:
                print(f"{key}={text}")
        for key, text in loaded.tls.pairs(set_only=True).items():
            print(f"{key}={remote_settings.shown(key, text)}")
        return 0
    if not loaded.broker.name_servers and monitor_socket is None:
        _log.warning("this broker registers at no name server: set one with -n or namesrvAddr")
    if core is not None:
        os.sched_setaffinity(0, {core})

    systemd = Systemd(os.environ)

    async def body(stop: StopSignal) -> None:
        server = Broker(
            loaded.broker, loaded.store, config_path=path, tls=loaded.tls, access=loaded.access
        )
        where = loaded.store.store_path_root_dir
        port_option = "--port, or listenPort in broker.conf"
        with readable_errors(loaded.broker.listen_port, port_option, store=where):
            _refuse(obstacles.of_broker(loaded))
            await server.start()
        if stop_with_stdin:
            stop.listen_to(sys.stdin.fileno())
        front = None
        if loaded.broker.grpc_server_port or any_grpc_port:
            front = await _start_front(server, loaded.broker.grpc_server_port, GRPC_OPTION)
        address = server.identity.address
        name_servers = loaded.broker.namesrv_addr
        text = f"The broker[{loaded.broker.broker_name}, {address}] boot success. "
        text += "serializeType=JSON" + (
            f" and name server is {name_servers}" if name_servers else ""
        )
        if front is not None:
            text += f" and 5.x clients at {join_address(loaded.broker.broker_ip1, front.port)}"
        option = "--metrics-port, or metricsPort in broker.conf"
        async with _answering_parent(server, monitor_socket):
            await _serve(server, stop, option, lambda: text, front=front, systemd=systemd)

    return run(body)


def controller(
    path: str | None,
    *,
    store: str | None,
    port: int | None,
    metrics_port: int | None,
    metrics_address: str | None,
    print_all: bool,
    print_important: bool,
) -> int:
    """Run a controller; return the exit code."""
    from reput.controller import config
    from reput.controller.server import Controller
    from reput.store.files.disk import Disk

    explicit = {
        "controller_store_path": store and str(Path(store).absolute()),
        "listen_port": port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    current, unknown = config.load(path, environment=environment(), explicit=_given(explicit))
    for key in unknown:
        _log.warning("%s", key)
    if print_all or print_important:
        print(current.text(), end="")
        return 0

    systemd = Systemd(os.environ)

    async def body(stop: StopSignal) -> None:
        server = Controller(current, Disk())
        value = current.value

        def controller_meter() -> "Meter":
            from reput.controller.metrics import ControllerMeter

            return ControllerMeter(server)

        with readable_errors(value.port, "--port, or listenPort in controller.conf"):
            await server.start()
        garbage.keep_pauses_short()
        option = "--metrics-port, or metricsPort in controller.conf"
        metrics = _metrics(controller_meter, server.refusals, value, option)
        text = (
            "The Controller Manager boot success. serializeType=JSON; address "
            f"{value.bind_address}:{server.port}, state {server.store.place}"
        )
        await _serve_until_stopped(server, stop, metrics, text, systemd)

    return run(body)


def proxy(
    path: str | None,
    *,
    namesrv_addr: str | None,
    port: int | None,
    metrics_port: int | None,
    metrics_address: str | None,
    print_all: bool,
    print_important: bool,
) -> int:
    """Run a proxy; return the exit code."""
    from reput.grpc.proxy import config
    from reput.grpc.proxy.server import Proxy

    explicit = {
        "namesrv_addr": namesrv_addr,
        "grpc_server_port": port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    loaded = config.load(
        path,
        environment=environment(),
        explicit=_given(explicit),
        fallback=os.environ.get("NAMESRV_ADDR"),
    )
    for warning in loaded.warnings:
        _log.warning("%s", warning)
    if print_all or print_important:
        for key, text in loaded.pairs().items():
            print(f"{key}={remote_settings.shown(key, text)}")
        return 0

    systemd = Systemd(os.environ)

    async def body(stop: StopSignal) -> None:
        server = Proxy(loaded)

        def proxy_meter() -> "Meter":
            from reput.grpc.proxy.metrics import ProxyMeter

            return ProxyMeter(server)

        value = loaded.proxy
        with readable_errors(value.grpc_server_port, "--port, or grpcServerPort in proxy.conf"):
            await server.start()
        garbage.keep_pauses_short()
        option = "--metrics-port, or metricsPort in proxy.conf"
        metrics = _metrics(proxy_meter, server.serving.refusals, value, option)
        where = f"{value.bind_address}:{server.port}"
        text = (
            f"rocketmq-proxy startup successfully; 5.x clients connect to {where}, "
            f"name servers {';'.join(value.name_servers)}"
        )
        await _serve_until_stopped(server, stop, metrics, text, systemd)

    return run(body)


def up(
    *,
    store: str | None,
    port: int,
    broker_port: int,
    host: str,
    advertise: str | None,
    metrics_port: int | None,
    metrics_address: str | None,
    path: str | None,
    grpc_port: int | None = None,
    as_json: bool = False,
    ready_file: str | None = None,
    test_controls: int | None = None,
    console_port: int | None = None,
    command: Sequence[str] = (),
) -> int:
    """Run a name server and a broker; return the exit code, of the command if there is one."""
    from reput.broker.server import Broker
    from reput.broker.settings.config import load
    from reput.cli import obstacles, up_for_tests
    from reput.namesrv.config import CurrentConfig, NamesrvConfig
    from reput.namesrv.server import NameServer
    from reput.remoting import tls_settings
    from reput.store.config import StoreConfig

    given = keys_of(path)
    root = str(Path(store or given.get("storePathRootDir") or DEFAULT_FOLDER).absolute())
    # Before the name server reports anything about its files there.
    _refuse(obstacles.of_folders(StoreConfig(store_path_root_dir=root)))
    defaults: dict[str, object] = {
        "broker_name": "broker-a",
        "enable_property_filter": True,
        "enable_multi_dispatch": True,
        "mapped_file_size_commit_log": _log_file_bytes(root),
    }
    explicit = {
        **{key: value for key, value in defaults.items() if settings.key_of(key) not in given},
        "store_path_root_dir": root,
        "bind_address": host,
        "broker_ip1": advertise or (None if host in ("0.0.0.0", "::", "") else host),
        "listen_port": broker_port,
        "metrics_port": metrics_port,
        "reput_metrics_address": metrics_address,
    }
    here = own_address(host)
    if ready_file is not None:
        up_for_tests.drop_ready_file(ready_file)
    name_config = NamesrvConfig(
        bind_address=host,
        listen_port=port,
        kv_config_path=f"{root}/namesrv/kvConfig.json",
        config_store_path=f"{root}/namesrv/namesrv.properties",
    )

    name_tls = tls_settings.load(settings.Settings(path, environment=environment()))

    async def body(stop: StopSignal) -> int:
        code = 0
        name_server = NameServer(CurrentConfig(name_config, tls=name_tls))
        with readable_errors(port, "--port"):
            await name_server.start()
        try:
            address = join_address(here, name_server.port)
            loaded = load(
                path,
                environment=environment(),
                explicit={**_given(explicit), "namesrv_addr": address},
            )
            for warning in loaded.warnings:
                _log.warning("%s", warning)
            controls = None if test_controls is None else up_for_tests.Controlled()
            server = Broker(
                loaded.broker,
                loaded.store,
                config_path=path,
                tls=loaded.tls,
                access=loaded.access,
                **({} if controls is None else controls.broker_arguments),
            )
            with readable_errors(broker_port, "--broker-port", store=root):
                _refuse(obstacles.of_folders(loaded.store))
                _refuse_port(host, broker_port)
                await server.start()
            front = await _start_front_of_up(server, grpc_port, broker_port)
            advertised = join_address(loaded.broker.broker_ip1, name_server.port)
            async with contextlib.AsyncExitStack() as running:
                running.push_async_callback(_stop, server, front)
                url = None
                if controls is not None:
                    wanted = test_controls or 0
                    with readable_errors(wanted, "--test-controls"):
                        url = await controls.serve(running, name_server, server, host, wanted)
                addresses = up_for_tests.addresses(server, front, advertised, url)
                if console_port is not None:
                    from reput.cli import child_console

                    addresses["console"] = await child_console.start(running, address, console_port)

                async def serve_command() -> None:
                    nonlocal code
                    code = await up_for_tests.run_command(command, addresses, stop.wait)

                def greeting() -> str:
                    if ready_file is not None:
                        running.callback(up_for_tests.write_ready_file(ready_file, addresses))
                    if as_json:
                        return json.dumps(addresses)
                    return (
                        ""
                        if command
                        else _banner(server, front, advertised, addresses.get("console"))
                    )

                await _serve(
                    server,
                    stop,
                    "--metrics-port",
                    greeting,
                    until=serve_command if command else None,
                    front=front,
                )
            count, _ = _contents(server)
            if not (as_json or command):
                print_now(f"Stopped cleanly; {count} messages are in {server.store.root}.")
        finally:
            await name_server.stop()
        return code

    return run(body)


def _refuse(problems: "Iterable[Obstacle]") -> None:
    """Refuse to start if there is an obstacle. Raises ``CannotServe``."""
    for problem in problems:
        raise CannotServe(f"{problem.fact}; {problem.action}")


def _refuse_port(host: str, port: int) -> None:
    """Refuse a port in use before a store is created, as a start would fail only after that.

    Raises:
        OSError: The port cannot be listened on.
    """
    if port:
        for *kind, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[:1]:
            with socket.socket(*kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)


# --- running ------------------------------------------------------------------------------------


def run(body: "Body") -> int:
    """Run a server until SIGTERM, SIGHUP or Ctrl-C, then stop it cleanly; return the exit code."""
    was, now = descriptors.raise_limit()
    if now != was:
        _log.info("up to %d descriptors instead of %d: the hard limit", now, was)
    with asyncio.Runner(loop_factory=_fast_loop_factory()) as runner:
        faults = ClientFaults(_log, time.monotonic)
        runner.get_loop().set_exception_handler(faults.handle_loop_error)
        return runner.run(body(StopSignal())) or 0


def _fast_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loops; None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class StopSignal:
    """SIGTERM, Ctrl-C, or SIGHUP: the end of the terminal or connection."""

    def __init__(self) -> None:
        self._is_received = asyncio.Event()

    def listen(self) -> None:
        """Stop cleanly on signals, which until then end the process at once.

        Call it after the server has opened its store. A recovery may take long and blocks the event
        loop; ending the process meanwhile is no worse than a crash.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started by nohup
            loop.add_signal_handler(number, self._receive, number)

    def listen_to(self, descriptor: int) -> None:
        """Stop cleanly as well when a pipe ends, whose other end the parent process has.

        Args:
            descriptor: The pipe; what it contains is ignored.
        """
        loop = asyncio.get_running_loop()

        def read() -> None:
            if not os.read(descriptor, 1 << 16):
                loop.remove_reader(descriptor)
                _log.warning("stopping: the process that has started this one has ended")
                self._is_received.set()

        loop.add_reader(descriptor, read)

    async def wait(self) -> None:
        """Wait for a signal."""
        await self._is_received.wait()

    def _receive(self, number: signal.Signals) -> None:
        if self._is_received.is_set():
            os._exit(EXIT_INTERRUPTED)
        _log.info("stopping; once more ends the process at once", extra={"signal": number.name})
        self._is_received.set()


Body = Callable[[StopSignal], Coroutine[Any, Any, int | None]]
"""Starts a server, waits for the signal, and stops it; returns the exit code, None for 0."""


async def _serve(
    server: "Broker",
    stop: StopSignal,
    option: str,
    greeting: Callable[[], str],
    *,
    until: Callable[[], Coroutine[Any, Any, None]] | None = None,
    front: "FrontServer | None" = None,
    systemd: Systemd | None = None,
) -> None:
    """Run a broker that has started, until the signal, and stop it.

    Args:
        server: The broker.
        stop: The signal.
        option: Option of the metrics port, for errors.
        greeting: Returns the text to print when the broker is registered; empty: none.
        until: Returns when the broker is to be stopped, instead of the signal.
        front: Its port for 5.x clients, which has started; None if it has none.
        systemd: Gets a report when the broker is registered; None: none.
    """
    garbage.keep_pauses_short()
    stop.listen()
    try:
        await _register(server, stop)
        async with _monitored(server, option):
            text = greeting()
            if text:
                print_now(text)
            await asyncio.to_thread(server.parts.filters.load_compiler)
            async with (systemd or Systemd({})).running(text):
                await _until_ended(server, until or stop.wait)
    finally:
        await _stop(server, front)


async def _stop(server: "Broker", front: "FrontServer | None") -> None:
    """Stop a broker, and its port for 5.x clients before."""
    if front is not None:
        await front.stop()
    await server.stop()


async def _start_front(server: "Broker", port: int, option: str) -> "FrontServer":
    """Serve the 5.x clients of a broker. Raises ``CannotServe``: the port cannot be used."""
    from reput.grpc.server import FrontServer

    front = FrontServer(server, port)
    try:
        with readable_errors(port, option):
            await front.start()
    except BaseException:
        await server.stop()
        raise
    return front


async def _start_front_of_up(
    server: "Broker", port: int | None, broker_port: int
) -> "FrontServer | None":
    """Serve 5.x clients at the port that was asked for, or at the default one if it is free."""
    if port is not None:
        return await _start_front(server, port, "--grpc-port")
    from reput.grpc.server import FrontServer

    front = FrontServer(server, GRPC_PORT if broker_port else 0)
    try:
        await front.start()
    except OSError as error:
        _log.warning(
            "5.x clients are not served: port %d: %s; --grpc-port chooses another one",
            GRPC_PORT,
            error.strerror,
        )
        return None
    return front


async def _until_ended(server: "Broker", stopped: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Wait for the signal, or the end of a command.

    Raises:
        CannotServe: The broker could not reopen its store in another role.
    """
    waiting = asyncio.create_task(stopped())
    tasks = {waiting, asyncio.create_task(server.ended.wait())}
    await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
    if waiting.done():
        waiting.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if server.failure is not None:
        raise CannotServe(f"the store could not be reopened: {server.failure}")


async def _register(server: "Broker", stop: StopSignal) -> None:
    """Wait until the broker is registered, for 3 s at most, or until the signal."""
    tasks = {
        # The broker's registration loop retries where this one is cancelled.
        asyncio.create_task(server.parts.registration.register(), name="first registration"),
        asyncio.create_task(stop.wait()),
    }
    await asyncio.wait(tasks, timeout=FIRST_REGISTRATION_S, return_when="FIRST_COMPLETED")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _monitored(server: "Broker", option: str) -> AsyncIterator[None]:
    """Serve metrics if configured, and check in the background that advertised addresses work."""
    from reput.broker.monitoring import address_check

    def broker_meter() -> "Meter":
        from reput.broker.monitoring.current_meter import CurrentMeter

        return CurrentMeter(server)

    async def check_addresses() -> None:
        for problem in await address_check.check(server.settings.broker, server.identity):
            _log.warning("address check: %s", problem)

    task = asyncio.create_task(check_addresses(), name="address check")

    config, refusals = server.settings.broker, server.serving.refusals
    try:
        async with (
            _metrics(broker_meter, refusals, config, option, {"/metrics/queues": _queues(server)}),
            _exporter(server, refusals),
        ):
            yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _queues(server: "Broker") -> "Detail":
    """Return the page of the metrics of single queues."""

    async def queues(query: Mapping[str, str]) -> "list[Family | HistogramFamily]":
        from reput.broker.monitoring import queue_metrics

        return await queue_metrics.answer(server, query)

    return queues


@contextlib.asynccontextmanager
async def _answering_parent(server: "Broker", path: str | None) -> AsyncIterator[None]:
    """Serve metrics, also under RocketMQ's names, and health at the Unix socket of a parent."""
    if path is None:
        yield
        return
    from reput.broker.monitoring.current_meter import CurrentMeter
    from reput.broker.monitoring.rocketmq_metrics import RocketmqMeter
    from reput.remoting.metrics_server import MetricsServer

    ours, theirs = CurrentMeter(server), CurrentMeter(server, RocketmqMeter)

    async def rocketmq(query: Mapping[str, str]) -> "list[Family | HistogramFamily]":
        return await theirs.measure()

    details: dict[str, Detail] = {"/metrics/queues": _queues(server), "/metrics/rocketmq": rocketmq}
    metrics = MetricsServer(ours, path=path, refusals=server.serving.refusals, details=details)
    metrics.start()
    try:
        yield
    finally:
        await metrics.stop()


async def _serve_until_stopped(
    server: "Controller | NameServer | NameServerWithController | Proxy",
    stop: StopSignal,
    metrics: contextlib.AbstractAsyncContextManager[None],
    text: str,
    systemd: Systemd,
) -> None:
    """Report a server that has started, wait for the signal, and stop it.

    Args:
        server: The server.
        stop: The signal.
        metrics: Serves metrics and health meanwhile.
        text: Text to print; it begins with Java's text, for which scripts wait.
        systemd: Gets the text as well.
    """
    stop.listen()
    try:
        async with metrics:
            print_now(text)
            async with systemd.running(text):
                await stop.wait()
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _metrics(
    make_meter: Callable[[], "Meter"],
    refusals: Refusals,
    config: "BrokerConfig | ControllerConfig | NamesrvConfig | ProxyConfig",
    option: str,
    details: "Mapping[str, Detail] | None" = None,
) -> AsyncIterator[None]:
    """Serve metrics and health if configured.

    Args:
        make_meter: Imports and creates the meter of the server.
        refusals: Counts of refused requests.
        config: Settings of the server.
        option: Option of the metrics port, for the error that the port is in use.
        details: Further pages, by path.
    """
    if not config.metrics_port:
        yield
        return
    address = config.reput_metrics_address, config.metrics_port
    async with _measured(make_meter, refusals, address, option, details):
        yield


@contextlib.asynccontextmanager
async def _exporter(server: "Broker", refusals: Refusals) -> AsyncIterator[None]:
    """Serve metrics under RocketMQ's names if configured."""

    def rocketmq_meter() -> "Meter":
        from reput.broker.monitoring.current_meter import CurrentMeter
        from reput.broker.monitoring.rocketmq_metrics import RocketmqMeter

        return CurrentMeter(server, RocketmqMeter)

    config = server.settings.broker
    if not config.exports_metrics:
        yield
        return
    address = config.metrics_prom_exporter_host or config.bind_address
    port = config.metrics_prom_exporter_port
    option = "metricsPromExporterPort in broker.conf"
    async with _measured(rocketmq_meter, refusals, (address, port), option):
        yield


@contextlib.asynccontextmanager
async def _measured(
    make_meter: Callable[[], "Meter"],
    refusals: Refusals,
    address: tuple[str, int],
    option: str,
    details: "Mapping[str, Detail] | None" = None,
) -> AsyncIterator[None]:
    """Serve metrics and health at an address; arguments as of ``_metrics``."""
    # In a thread: the imports take long, and the server is already serving.
    meter = await asyncio.to_thread(make_meter)
    from reput.remoting.metrics_server import MetricsServer

    host, port = address
    metrics = MetricsServer(meter, host=host, port=port, refusals=refusals, details=details)
    with readable_errors(port, option):
        metrics.start()
    try:
        yield
    finally:
        await metrics.stop()


# --- errors -------------------------------------------------------------------------------------


@contextlib.contextmanager
def readable_errors(port: int, option: str, *, store: str | None = None) -> Iterator[None]:
    """Replace errors of starting a server by readable ones, which name the process in the way.

    Args:
        port: Port of the server.
        option: Option of the port.
        store: Store folder of the server.

    Raises:
        CannotServe: A port or the store cannot be used.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, socket.gaierror) or (error.errno or 0) < 0:  # from getaddrinfo
            raise CannotServe(f"the address to listen on is unknown: {error.strerror}") from None
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        if error.errno == errno.EADDRNOTAVAIL:
            raise CannotServe(f"the address to listen on is not of this machine: {error}") from None
        taken = next((number for number in (port, port - 2) if owner_of_port(number)), port)
        if error.errno == errno.EACCES:
            raise CannotServe(f"port {taken} needs more rights; choose another: {option}") from None
        owner = owner_of_port(taken)
        by = f" by {owner}" if owner else ""
        note = "" if taken == port else f", the fast port of {port},"
        raise CannotServe(f"port {taken}{note} is in use{by}; choose another: {option}") from None
    except StoreUnavailable as error:
        owner = owner_of_store(store) if store else ""
        if not owner or "is in use" not in str(error):
            raise
        text = f"{store} is in use by {owner}; stop it, or choose another: --store"
        raise CannotServe(text) from None


# --- texts and settings -------------------------------------------------------------------------


def _banner(
    server: "Broker", front: "FrontServer | None", address: str, console: str | None = None
) -> str:
    """Return the greeting of ``reput up``: addresses, and how clients connect."""
    from reput import __version__
    from reput.kernel_choice import engine_text
    from reput.store.kernels import hot

    config = server.settings.broker
    broker_address = join_address(config.broker_ip1, server.identity.port)
    where = f"{broker_address} ({config.broker_name} of {config.broker_cluster_name})"
    count, queue_count = _contents(server)
    lines = [
        f"reput {__version__}: a name server and a broker",
        "",
        f"  name server  {address}",
        f"  broker       {where}",
        f"  store        {server.store.root} ({count} messages in {queue_count} queues)",
        f"  kernels      {engine_text(hot.engine())}",
    ]
    if config.metrics_port:
        url = f"http://{join_address(config.reput_metrics_address, config.metrics_port)}"
        lines.append(f"  metrics      {url}/metrics and {url}/health")
    if console is not None:
        lines.append(f"  console      {console}")
    if front is not None:
        endpoint = join_address(config.broker_ip1, front.port)
        lines.insert(4, f"  5.x clients  {endpoint} (gRPC, {_kinds(server.serving.tls)})")
    resolver = f'primitive.NewPassthroughResolver([]string{{"{address}"}})'
    lines += [
        "",
        f'  Java     producer.setNamesrvAddr("{address}");',
        f"  Go       producer.WithNsResolver({resolver})",
        f'  Python   reput.client.Producer("group", namesrv="{address}")',
        f"  mqadmin  mqadmin clusterList -n {address}",
        "",
        "Ctrl-C stops it.",
    ]
    return "\n".join(lines)


def _kinds(tls: "TlsAcceptor | None") -> str:
    """Return which connections a server accepts, for the greeting."""
    from reput.remoting.tls_settings import TlsMode

    if tls is None or tls.mode is TlsMode.DISABLED:
        return "plain"
    kinds = "TLS" if tls.mode is TlsMode.ENFORCING else "plain and TLS"
    if tls.has_certificate:
        return kinds
    return f"{kinds}; TLS needs a certificate, or {install_command('tls')}"


def _contents(server: "Broker") -> tuple[int, int]:
    """Return the number of messages and queues of a broker's store."""
    queues = server.store.queues
    return sum(queue.max_offset - queue.min_offset for queue in queues), len(queues)


def environment() -> Mapping[str, str]:
    """Return the environment without variables that are no settings of a server."""
    return {key: value for key, value in os.environ.items() if key not in _NO_SETTINGS}


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def keys_of(path: str | None) -> dict[str, str]:
    """Return the settings of a file and the environment, by key."""
    values = {}
    if path is not None:
        try:
            values = settings.read_properties(path)
        except OSError as error:
            allowed = f"a readable file: {error.strerror}"
            raise InvalidOption("--config", path, allowed) from error
    for name, text in environment().items():
        if name.startswith(settings.ENVIRONMENT_PREFIX):
            key = settings.key_of(name.removeprefix(settings.ENVIRONMENT_PREFIX).lower())
            values[key] = text
    return values


def _log_file_bytes(root: str) -> int:
    """Return the size of a store's log files: of the existing ones, or for a new store."""
    try:
        names = sorted(name for name in os.listdir(f"{root}/commitlog") if name.isdigit())  # noqa: PTH208
        return os.stat(f"{root}/commitlog/{names[0]}").st_size or LOG_FILE_BYTES  # noqa: PTH116
    except (OSError, IndexError):
        return LOG_FILE_BYTES


def print_now(text: str) -> None:
    """Print and flush; a closed stdout is no failure."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)
