"""Wrong advertised addresses and the problems that the check reports."""

import socket
from pathlib import Path

import pytest

import world
from reput.broker.monitoring import address_check
from reput.broker.monitoring.address_check import Surroundings, judge
from world import Subject

MACHINE = Surroundings("10.1.2.3", is_container=False)
CONTAINER = Surroundings("172.17.0.2", is_container=True)


@pytest.mark.parametrize(
    ("ip", "name_servers", "here", "part"),
    [
        ("10.1.2.3", ["10.1.2.1"], MACHINE, ""),
        ("127.0.0.1", [], MACHINE, ""),  # all on one machine
        ("127.0.0.1", ["10.1.2.1"], MACHINE, "refers to each client's own machine"),
        ("::1", ["fd00::1"], MACHINE, "refers to each client's own machine"),
        ("0.0.0.0", [], MACHINE, "not an address that clients can connect to"),
        ("172.17.0.2", [], MACHINE, ""),  # may be a company's network
        ("172.17.0.2", [], CONTAINER, "inside of a container"),
        ("172.17.0.2", ["10.1.2.1"], CONTAINER, "inside of a container"),
        ("172.17.0.2", ["172.17.0.3"], CONTAINER, ""),  # all on the same bridge
        ("10.88.0.5", [], CONTAINER, "inside of a container"),
        ("10.1.2.3", ["10.9.9.9"], CONTAINER, ""),  # the host's network, or Kubernetes
    ],
)
def test_unreachable_networks_are_judged_by_the_address(
    ip: str, name_servers: list[str], here: Surroundings, part: str
) -> None:
    reason = judge(ip, name_servers, here)
    assert part in reason
    assert bool(part) == bool(reason)


async def check(subject: Subject, here: address_check.Surroundings) -> list[address_check.Problem]:
    return await address_check.check(subject.broker.settings.broker, subject.broker.identity, here)


async def test_working_addresses_are_not_reported(tmp_path: Path) -> None:
    async with world.name_server(tmp_path) as server:
        address = f"localhost:{server.port}"
        async with world.broker(tmp_path / "s", namesrv_addr=address) as subject:
            assert await check(subject, MACHINE) == []


async def test_an_address_without_a_listener_is_reported_with_the_setting(tmp_path: Path) -> None:
    """127.0.0.2 belongs to this machine, but the broker listens on 127.0.0.1 only."""
    async with world.broker(tmp_path, broker_ip1="127.0.0.2") as subject:
        (problem,) = await check(subject, MACHINE)
    assert str(problem) == (
        f"127.0.0.2:{subject.broker.identity.port} cannot be reached: "
        f"{problem.reason.split(': ')[1]}; "
        "give --advertise to reput up, or set in broker.conf: brokerIP1=10.1.2.3"
    )
    assert "efused" in problem.reason


async def test_in_a_container_the_setting_has_a_placeholder(tmp_path: Path) -> None:
    async with world.broker(tmp_path, broker_ip1="127.0.0.2") as subject:
        (problem,) = await check(subject, CONTAINER)
    assert problem.fix == (
        "give --advertise to reput up, or set in broker.conf: brokerIP1=ADDRESS, one of this "
        "machine that clients can reach"
    )


async def test_an_unreachable_name_server_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with world.broker(tmp_path, namesrv_addr=address) as subject:
            (problem,) = await check(subject, MACHINE)
    assert problem.address == address
    assert problem.reason.startswith("(a name server) cannot be reached: ")
    assert "namesrvAddr=" in problem.fix


async def test_a_closed_fast_port_is_reported(tmp_path: Path) -> None:
    for number in range(20):  # The port two below the one that the system gives may be taken.
        async with world.broker(tmp_path / str(number)) as subject:
            servers = subject.broker._servers
            if len(servers) == 2:
                await servers[1].stop()
                (problem,) = await check(subject, MACHINE)
                break
    assert problem.address == f"127.0.0.1:{subject.broker.identity.port - 2}"
    assert "fastPortEnable=false" in problem.fix


@pytest.mark.parametrize(
    ("address", "expected"),
    [("a:1", ("a", 1)), ("10.0.0.1:9876", ("10.0.0.1", 9876)), ("[::1]:9876", ("::1", 9876))],
)
def test_split(address: str, expected: tuple[str, int]) -> None:
    assert address_check.split(address) == expected


@pytest.mark.parametrize(
    ("address", "port", "here", "is_wrong"),
    [
        ("127.0.0.1", 5557, CONTAINER, True),
        ("localhost", 5557, CONTAINER, True),
        ("127.0.0.1", 0, CONTAINER, False),
        ("127.0.0.1", 5557, MACHINE, False),
        ("0.0.0.0", 5557, CONTAINER, False),
        ("172.17.0.2", 5557, CONTAINER, False),
    ],
)
def test_metrics_unreachable_from_outside_the_container_are_reported(
    address: str, port: int, here: Surroundings, is_wrong: bool
) -> None:
    config = world.broker_config(metrics_port=port, reput_metrics_address=address)
    problems = [str(problem) for problem in address_check.judge_metrics(config, here)]
    assert problems == (
        [
            f"{address}:{port} (metrics and health) is inside of a container, and cannot be "
            "reached from outside; give --metrics-address, or set in broker.conf: "
            "reputMetricsAddress=0.0.0.0"
        ]
        if is_wrong
        else []
    )
