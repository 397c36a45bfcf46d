"""Decisions of a producer without a broker: the same as Java's."""

from datetime import UTC, datetime

import pytest

from interop import java_oracle
from interop.java_oracle import JavaOracle, Oracle
from interop.recorded_oracle import oracle_fixture
from reput.client.core.queue_choice import avoidance_ms
from reput.client.core.unique_key import UniqueKeys

pytestmark = pytest.mark.interop


class ProducerOracle(JavaOracle):
    """Running ``ProducerOracle.java``."""

    main_class = "ProducerOracle"


java = oracle_fixture(ProducerOracle)
running_java = oracle_fixture(ProducerOracle, java_oracle.versions(), is_recorded=False)


@pytest.mark.rotating
def test_java_decodes_address_and_time_of_our_unique_keys(running_java: Oracle) -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    keys = UniqueKeys(bytes((192, 0, 2, 77)), 4711, 0x12345678)
    # Java takes the month from its clock, and cannot decode times of an earlier month.
    times = [now_ms, now_ms - 1, now_ms - 1000]
    decoded = running_java.ask("uniqueKey", [(keys.next(time_ms),) for time_ms in times])

    month = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().month
    for (address, java_ms), time_ms in zip(decoded, times, strict=True):
        assert address == "192.0.2.77"
        if datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().month == month:
            assert java_ms == time_ms


@pytest.mark.rotating
def test_unique_keys_of_java_have_the_parts_of_ours(running_java: Oracle) -> None:
    theirs = running_java.ask_one("newKey")
    ((_, java_ms),) = running_java.ask("uniqueKey", [(theirs,)])
    data = bytes.fromhex(theirs)
    address, rest = data[:-12], data[-12:]
    process_id, salt = int.from_bytes(rest[:2], "big"), int.from_bytes(rest[2:6], "big")

    assert UniqueKeys(address, process_id, salt).next(java_ms)[:-4] == theirs[:-4]


def test_slow_brokers_are_avoided_as_long_as_by_java_4(java: Oracle) -> None:
    if not java.is_4:
        pytest.skip("no such case: 5.x avoids brokers for other times; ours are those of 4.x")
    edges = (0, 50, 100, 550, 1000, 2000, 3000, 15_000, 30_000)
    latencies = sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})

    expected = java.ask("avoidance", [(latency_ms,) for latency_ms in latencies])
    assert [avoidance_ms(latency_ms) for latency_ms in latencies] == expected
