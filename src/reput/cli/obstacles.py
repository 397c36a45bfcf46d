"""What keeps a broker from starting, as a start and ``reput broker --check`` look for it.

A start looks first, so that it refuses before it has created or changed anything. What opening the
store refuses beyond this list, such as damaged files, ``cli.moving.folder`` checks.
"""

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from reput.broker.server import Broker
from reput.broker.settings.config import FAST_PORT_DISTANCE, HA_PORT_DISTANCE, BrokerSettings
from reput.cli.processes import owner_of_port
from reput.errors import InvalidOption
from reput.store.config import BrokerRole, StoreConfig
from reput.store.files import paths

_ANY_ADDRESS = ("", "0.0.0.0", "::")
_WRITTEN_FOLDERS = (paths.CONFIG, paths.CONSUME_QUEUE, paths.INDEX)
"""Folders of the root in which each broker creates files."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A condition under which a broker does not start."""

    subject: str
    """``settings``, ``folder`` or ``ports``."""
    fact: str
    """The problem."""
    action: str
    """What the user must do, as an imperative."""
    owner: str | None = None
    """The process that has a port in use, empty if it is unknown; None for other obstacles."""


@dataclass(frozen=True, slots=True)
class _Port:
    """A port on which a broker listens."""

    key: str
    host: str
    number: int

    @property
    def action(self) -> str:
        """What to do if it cannot be used."""
        if self.key.startswith("listenPort"):
            return "choose another: --port, or listenPort in broker.conf"
        if self.key == "metricsPort":
            return "choose another: --metrics-port, or metricsPort in broker.conf"
        return f"choose another: {self.key} in broker.conf"


def of_broker(settings: BrokerSettings) -> Iterator[Obstacle]:
    """Yield the problems that keep a broker from starting with these settings, worst first."""
    yield from of_files(settings)
    yield from of_folders(settings.store)
    yield from of_ports(settings)


def of_files(settings: BrokerSettings) -> Iterator[Obstacle]:
    """Yield problems of files that settings name: certificates, accounts."""
    try:
        broker = Broker(settings.broker, settings.store, tls=settings.tls, access=settings.access)
        broker.load_accounts()
    except InvalidOption as error:
        yield Obstacle("settings", str(error), "correct it in broker.conf")


# --- folders ------------------------------------------------------------------------------------


def of_folders(config: StoreConfig) -> Iterator[Obstacle]:
    """Yield the folders in which a broker cannot create its files."""
    root = Path(config.store_path_root_dir)
    if (root / "0" / paths.COMMIT_LOG).exists() and not (root / paths.COMMIT_LOG).exists():
        action = f"start them with --count, or one of them with its file: -c {root}/0/broker.conf"
        yield Obstacle("folder", f"{root} has the stores of several brokers", action)
    seen = set()
    read_only = config.read_only_commit_log_folders
    log = (folder for folder in config.commit_log_folders if folder not in read_only)
    for folder in (root, *(root / name for name in _WRITTEN_FOLDERS), *map(Path, log)):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        if place in seen:
            continue
        seen.add(place)
        if not place.is_dir():
            action = "choose another for the store: --store"
            yield Obstacle("folder", f"{place} is no folder", action)
        elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            action = "change its owner or mode, or run reput as the user that it belongs to"
            yield Obstacle("folder", f"{place} cannot be written by this user", action)


# --- ports --------------------------------------------------------------------------------------


def of_ports(settings: BrokerSettings) -> Iterator[Obstacle]:
    """Yield the ports that are equal to another one of these settings, or cannot be used."""
    ports = ports_of(settings)
    for first, second in combinations(ports, 2):
        if first.number == second.number and _overlap(first.host, second.host):
            fact = f"{second.key} {second.number} is the same port as {first.key}"
            yield Obstacle("ports", fact, second.action)
    if not settings.broker.listen_port:
        ports.insert(0, _Port("bindAddress", settings.broker.bind_address, 0))
    for port in ports:
        reason = _refusal(port)
        if not reason:
            continue
        owner = owner_of_port(port.number) or "" if reason == "is in use" else None
        by = f" by {owner}" if owner else ""
        what = f"{port.key} {port.number}" if port.number else port.key
        yield Obstacle("ports", f"{what} {reason}{by}", port.action, owner)


def ports_of(settings: BrokerSettings) -> list[_Port]:
    """Return the ports on which a broker listens, unless they may be any free ones."""
    broker, store = settings.broker, settings.store
    numbers = {"listenPort": broker.listen_port}
    if broker.fast_port_enable and broker.listen_port:
        numbers["listenPort - 2"] = broker.listen_port - FAST_PORT_DISTANCE
    if store.broker_role is not BrokerRole.SLAVE and broker.listen_port:
        ha_port = store.ha_listen_port
        numbers["haListenPort"] = broker.listen_port + HA_PORT_DISTANCE if ha_port < 0 else ha_port
    numbers["grpcServerPort"] = broker.grpc_server_port
    ports = [_Port(key, broker.bind_address, number) for key, number in numbers.items()]
    ports.append(_Port("metricsPort", broker.reput_metrics_address, broker.metrics_port))
    if broker.exports_metrics:
        host = broker.metrics_prom_exporter_host or broker.bind_address
        ports.append(_Port("metricsPromExporterPort", host, broker.metrics_prom_exporter_port))
    return [port for port in ports if port.number]


def _overlap(first: str, second: str) -> bool:
    """Return whether servers at two addresses cannot have the same port."""
    return first == second or first in _ANY_ADDRESS or second in _ANY_ADDRESS


def _refusal(port: _Port) -> str:
    """Return why a port cannot be listened on; empty if it can."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            port.host or None, port.number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "is in use"
        if error.errno == errno.EACCES:
            return "needs more rights"
        return f"cannot be listened on at {port.host}: {error.strerror}"
    return ""
