"""Can clients reach what they are told? Asked after the start, from here.

A broker tells name servers where it is, and they tell clients. In a container, or with a wrong
``brokerIP1``, that is an address which works nowhere else: clients get a route and then time out.
What is wrong is said with the line of broker.conf that puts it right.

A connection from here shows that somebody listens, not that others get through: what cannot be
seen from here is judged by the address alone.
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
_BRIDGES = tuple(ipaddress.ip_network(one) for one in ("172.16.0.0/12", "10.88.0.0/16"))
"""Where Docker and Podman put containers unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An address that does not work, or not for everybody."""

    address: str
    reason: str
    fix: str
    """What to do; a line of broker.conf where there is one."""

    def __str__(self) -> str:
        """Return one line for the log."""
        return f"{self.address} {self.reason}; {self.fix}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the broker runs."""

    own_address: str
    """What others see of this machine, as far as routes tell."""
    is_container: bool

    @classmethod
    def look(cls) -> "Surroundings":
        """Return those of this process."""
        return cls(own_address(), any(Path(one).exists() for one in _CONTAINER_MARKS))


def judge(ip: str, name_servers: Iterable[str], here: Surroundings) -> str:
    """Return why clients elsewhere cannot use an address; empty if they may.

    Args:
        ip: Of the broker, resolved.
        name_servers: Addresses of those that are on other machines, resolved.
        here: Where the broker runs.
    """
    address = ipaddress.ip_address(ip)
    remote = [ipaddress.ip_address(one) for one in name_servers]
    if address.is_unspecified:
        return "is no address that anybody can connect to"
    if address.is_loopback and remote:
        return "leads every client to itself, and the name servers are on other machines"
    is_of_bridge = any(address in one for one in _BRIDGES if one.version == address.version)
    if here.is_container and is_of_bridge:
        network = ipaddress.ip_network(f"{ip}/16", strict=False)
        if not remote or any(one not in network for one in remote):
            return "is an address inside of a container: clients outside of it cannot reach it"
    return ""


async def check(
    config: BrokerConfig, identity: Identity, here: Surroundings | None = None
) -> list[Problem]:
    """Return what is wrong with the addresses of a broker that is started."""
    here = here or Surroundings.look()
    host = config.broker_ip1
    name_servers = config.name_servers
    reasons = await asyncio.gather(
        _why_unreachable(host, identity.port),
        *(_why_unreachable(*split(one)) for one in name_servers),
    )
    fix = f"set in broker.conf: brokerIP1={_better(host, here)}"
    problems = []
    if reasons[0]:
        problems.append(Problem(identity.address, f"cannot be reached: {reasons[0]}", fix))
    else:
        known = [await _resolve(split(one)[0]) for one in name_servers]
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
    """Return what is wrong with the address of /metrics and /health."""
    host, port = config.reput_metrics_address, config.metrics_port
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not port or not here.is_container or not is_loopback:
        return []
    text = "(metrics and health) is an address inside of a container: nobody outside can read them"
    return [Problem(f"{host}:{port}", text, "set in broker.conf: reputMetricsAddress=0.0.0.0")]


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; brackets around an IPv6 address are dropped."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _better(host: str, here: Surroundings) -> str:
    is_usable = here.own_address != host and not here.own_address.startswith("127.")
    if is_usable and not here.is_container:
        return here.own_address
    return "ADDRESS, one of this machine that clients can reach"


async def _why_unreachable(host: str, port: int) -> str:
    """Connect and hang up; return what went wrong, empty if nothing did."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {CONNECT_TIMEOUT_MS} ms"
    except OSError as error:
        # Of a connection asyncio says "Connect call failed", whatever the reason was.
        number = error.errno or 0
        return os.strerror(number) if number > 0 else error.strerror or str(error)
    writer.close()
    with contextlib.suppress(OSError):  # it was reached, and that was the question
        await writer.wait_closed()
    return ""


async def _resolve(host: str) -> str:
    """Return an address of a host; empty if it has none."""
    loop = asyncio.get_running_loop()
    try:
        found: Sequence[tuple[object, ...]] = await loop.getaddrinfo(host, None)
    except OSError:
        return ""
    address = found[0][4]
    assert isinstance(address, tuple)
    return str(address[0]).partition("%")[0]


def _is_ours(ip: str) -> bool:
    """Whether an address is one of this machine."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
