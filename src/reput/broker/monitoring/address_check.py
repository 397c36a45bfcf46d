"""Checks after the start that clients can reach the advertised addresses.

A broker registers its address with name servers, which pass it to clients. In a container, or with
a wrong ``brokerIP1``, that address works nowhere else: clients get a route and then time out. Each
problem is reported with the line of broker.conf that fixes it.

A connection from this machine shows that the port is open, not that other machines can reach it:
where that cannot be tested, the address itself is judged.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reput.broker.identity import Identity
from reput.broker.settings.config import BrokerConfig, own_address

CONNECT_TIMEOUT_MS = 3_000

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_BRIDGES = tuple(map(ipaddress.ip_network, ("172.16.0.0/12", "10.88.0.0/16")))
"""Default networks of containers in Docker and Podman."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An address that some or all clients cannot reach."""

    address: str
    reason: str
    fix: str
    """How to fix it; a line of broker.conf if possible."""

    def __str__(self) -> str:
        """Return one line for the log."""
        return f"{self.address} {self.reason}; {self.fix}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine of the broker."""

    own_address: str
    """The address that other machines see, according to the routes."""
    is_container: bool

    @classmethod
    def detect(cls) -> "Surroundings":
        """Return the surroundings of this process."""
        return cls(own_address(), any(Path(path).exists() for path in _CONTAINER_MARKS))


def judge(ip: str, name_servers: Iterable[str], here: Surroundings) -> str:
    """Return why remote clients cannot use an address; empty if they can.

    Args:
        ip: Resolved address of the broker.
        name_servers: Resolved addresses of name servers on other machines.
        here: The machine of the broker.
    """
    address = ipaddress.ip_address(ip)
    remote = [ipaddress.ip_address(text) for text in name_servers]
    if address.is_unspecified:
        return "is not an address that clients can connect to"
    if address.is_loopback and remote:
        return "refers to each client's own machine, while the name servers are on other machines"
    is_of_bridge = any(
        address in bridge for bridge in _BRIDGES if bridge.version == address.version
    )
    if here.is_container and is_of_bridge:
        network = ipaddress.ip_network(f"{ip}/16", strict=False)
        if not remote or any(other not in network for other in remote):
            return "is an address inside of a container: clients outside of it cannot reach it"
    return ""


async def check(
    config: BrokerConfig, identity: Identity, here: Surroundings | None = None
) -> list[Problem]:
    """Return the problems with the addresses of a started broker."""
    here = here or Surroundings.detect()
    host = config.broker_ip1
    name_servers = config.name_servers
    reasons = await asyncio.gather(
        _why_unreachable(host, identity.port),
        *(_why_unreachable(*split(server_address)) for server_address in name_servers),
    )
    fix = f"give --advertise to reput up, or set in broker.conf: brokerIP1={_better(host, here)}"
    problems = []
    if reasons[0]:
        problems.append(Problem(identity.address, f"cannot be reached: {reasons[0]}", fix))
    else:
        known = [await _resolve(split(server_address)[0]) for server_address in name_servers]
        remote = [ip for ip in known if ip and not _is_ours(ip)]
        reason = judge(await _resolve(host), remote, here)
        if reason:
            problems.append(Problem(identity.address, reason, fix))
    if identity.fast_port and not reasons[0]:
        reason = await _why_unreachable(host, identity.fast_port)
        if reason:
            text = f"cannot be reached: {reason}"
            fix = "let the port through, or set in broker.conf: fastPortEnable=false"
            problems.append(Problem(f"{host}:{identity.fast_port}", text, fix))
    problems += judge_metrics(config, here)
    for server, reason in zip(name_servers, reasons[1:], strict=True):
        if reason:
            text = f"(a name server) cannot be reached: {reason}"
            fix = "start it, or name another in broker.conf: namesrvAddr=HOST:9876"
            problems.append(Problem(server, text, fix))
    return problems


def judge_metrics(config: BrokerConfig, here: Surroundings) -> list[Problem]:
    """Return the problems with the address of /metrics and /health."""
    host, port = config.reput_metrics_address, config.metrics_port
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not port or not here.is_container or not is_loopback:
        return []
    text = "(metrics and health) is inside of a container, and cannot be reached from outside"
    fix = "give --metrics-address, or set in broker.conf: reputMetricsAddress=0.0.0.0"
    return [Problem(f"{host}:{port}", text, fix)]


def split(address: str) -> tuple[str, int]:
    """Split ``host:port``; brackets around an IPv6 address are removed."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _better(host: str, here: Surroundings) -> str:
    is_usable = here.own_address != host and not here.own_address.startswith("127.")
    if is_usable and not here.is_container:
        return here.own_address
    return "ADDRESS, one of this machine that clients can reach"


async def _why_unreachable(host: str, port: int) -> str:
    """Open and close a connection; return why that failed, empty if it succeeded."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {CONNECT_TIMEOUT_MS} ms"
    except OSError as error:
        # asyncio's message is "Connect call failed" for any cause.
        number = error.errno or 0
        return os.strerror(number) if number > 0 else error.strerror or str(error)
    writer.close()
    with contextlib.suppress(OSError):  # the address is reachable, which is all that counts
        await writer.wait_closed()
    return ""


async def _resolve(host: str) -> str:
    """Return an address of a host; empty if it has none."""
    loop = asyncio.get_running_loop()
    try:
        results: Sequence[tuple[object, ...]] = await loop.getaddrinfo(host, None)
    except OSError:
        return ""
    address = results[0][4]
    assert isinstance(address, tuple)
    return str(address[0]).partition("%")[0]


def _is_ours(ip: str) -> bool:
    """Return True if an address belongs to this machine."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
