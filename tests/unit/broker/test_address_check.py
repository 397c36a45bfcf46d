"""Which advertised addresses are called wrong, and what is said of them (anchors C18)."""

import socket
from pathlib import Path

import pytest

import broker_subject
from reput.broker import address_check
from reput.broker.address_check import Surroundings, judge
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer

MACHINE = Surroundings("10.1.2.3", is_container=False)
CONTAINER = Surroundings("172.17.0.2", is_container=True)


@pytest.mark.parametrize(
    ("ip", "name_servers", "here", "part"),
    [
        ("10.1.2.3", ["10.1.2.1"], MACHINE, ""),
        ("127.0.0.1", [], MACHINE, ""),  # all on one machine
        ("127.0.0.1", ["10.1.2.1"], MACHINE, "leads every client to itself"),
        ("::1", ["fd00::1"], MACHINE, "leads every client to itself"),
        ("0.0.0.0", [], MACHINE, "no address that anybody can connect to"),
        ("172.17.0.2", [], MACHINE, ""),  # a company's network may be there
        ("172.17.0.2", [], CONTAINER, "inside of a container"),
        ("172.17.0.2", ["10.1.2.1"], CONTAINER, "inside of a container"),
        ("172.17.0.2", ["172.17.0.3"], CONTAINER, ""),  # all in the same bridge
        ("10.88.0.5", [], CONTAINER, "inside of a container"),
        ("10.1.2.3", ["10.9.9.9"], CONTAINER, ""),  # the host's network, or Kubernetes
    ],
)
def test_what_cannot_be_seen_is_judged_by_the_address(
    ip: str, name_servers: list[str], here: Surroundings, part: str
) -> None:
    reason = judge(ip, name_servers, here)
    assert part in reason
    assert bool(part) == bool(reason)


async def test_addresses_that_work_are_not_mentioned(tmp_path: Path) -> None:
    names = NamesrvConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json")
    )
    async with NameServer(names) as server:
        address = f"localhost:{server.port}"
        async with broker_subject.running(tmp_path / "s", namesrv_addr=address) as subject:
            assert await address_check.check(subject.broker, MACHINE) == []


async def test_an_address_that_nobody_listens_on_is_named_with_the_line(tmp_path: Path) -> None:
    """127.0.0.2 is this machine's as well, and the broker listens on 127.0.0.1 alone."""
    async with broker_subject.running(tmp_path, broker_ip1="127.0.0.2") as subject:
        (problem,) = await address_check.check(subject.broker, MACHINE)
    assert str(problem) == (
        f"127.0.0.2:{subject.broker.port} cannot be reached: {problem.reason.split(': ')[1]}; "
        "set in broker.conf: brokerIP1=10.1.2.3"
    )
    assert "efused" in problem.reason


async def test_in_a_container_the_line_says_what_to_look_for(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, broker_ip1="127.0.0.2") as subject:
        (problem,) = await address_check.check(subject.broker, CONTAINER)
    assert problem.fix == (
        "set in broker.conf: brokerIP1=ADDRESS, one of this machine that clients can reach"
    )


async def test_a_name_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with broker_subject.running(tmp_path, namesrv_addr=address) as subject:
            (problem,) = await address_check.check(subject.broker, MACHINE)
    assert problem.address == address
    assert problem.reason.startswith("(a name server) cannot be reached: ")
    assert "namesrvAddr=" in problem.fix


async def test_a_fast_port_that_is_closed_is_named(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        servers = subject.broker._servers
        if len(servers) < 2:
            pytest.skip("the port two below the one the system gave was taken")
        await servers[1].stop()
        (problem,) = await address_check.check(subject.broker, MACHINE)
    assert problem.address == f"127.0.0.1:{subject.broker.port - 2}"
    assert "fastPortEnable=false" in problem.fix


@pytest.mark.parametrize(
    ("address", "expected"),
    [("a:1", ("a", 1)), ("10.0.0.1:9876", ("10.0.0.1", 9876)), ("[::1]:9876", ("::1", 9876))],
)
def test_split(address: str, expected: tuple[str, int]) -> None:
    assert address_check.split(address) == expected
