"""Decisions of a producer without a broker: the same as Java's."""

from datetime import UTC, datetime

import pytest

from interop import java_oracle
from interop.conftest import StartOracle
from interop.java_oracle import Oracle
from reput.client.core.queue_choice import avoidance_ms
from reput.client.core.unique_key import UniqueKeys

pytestmark = pytest.mark.interop


class ProducerOracle(Oracle):
    """Running ``ProducerOracle.java``."""

    main_class = "ProducerOracle"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(version, marks=pytest.mark.xdist_group(f"rocketmq-{version}"))
        for version in java_oracle.versions()
    ],
)
def java(request: pytest.FixtureRequest, start_oracle: StartOracle) -> ProducerOracle:
    return start_oracle(ProducerOracle, request.param)


def test_java_decodes_address_and_time_of_our_unique_keys(java: ProducerOracle) -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    keys = UniqueKeys(bytes((192, 0, 2, 77)), 4711, 0x12345678)
    # Java takes the month from its clock, and cannot decode times of an earlier month.
    times = [now_ms, now_ms - 1, now_ms - 1000]
    decoded = java.ask("uniqueKey", [(keys.next(time_ms),) for time_ms in times])

    month = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().month
    for (address, java_ms), time_ms in zip(decoded, times, strict=True):
        assert address == "192.0.2.77"
        if datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().month == month:
            assert java_ms == time_ms


def test_unique_keys_of_java_have_the_parts_of_ours(java: ProducerOracle) -> None:
    theirs = java.ask_one("newKey")
    ((_, java_ms),) = java.ask("uniqueKey", [(theirs,)])
    data = bytes.fromhex(theirs)
    address, rest = data[:-12], data[-12:]
    process_id, salt = int.from_bytes(rest[:2], "big"), int.from_bytes(rest[2:6], "big")

    assert UniqueKeys(address, process_id, salt).next(java_ms)[:-4] == theirs[:-4]


def test_slow_brokers_are_avoided_as_long_as_by_java_4(java: ProducerOracle) -> None:
    if not java.is_4:
        pytest.skip("no such case: 5.x avoids brokers for other times; ours are those of 4.x")
    edges = (0, 50, 100, 550, 1000, 2000, 3000, 15_000, 30_000)
    latencies = sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})

    expected = java.ask("avoidance", [(latency_ms,) for latency_ms in latencies])
    assert [avoidance_ms(latency_ms) for latency_ms in latencies] == expected
