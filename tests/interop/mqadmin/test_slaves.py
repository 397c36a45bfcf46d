"""Commands of mqadmin for a master with its slave: our two, and the official two."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from interop.clusters import until
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaMessage
from interop.mqadmin.conftest import TOOLS
from interop.mqadmin.sides import Both, Side, masked
from interop.pairs import REPUT, Pair

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.slow,
]

NUMBERS = [(r"(?<![\w.-])-?\d+(\.\d+)?(?![\w.])", "N"), (r"[ \t]+", " ")]


@dataclass
class Slaves:
    """The two pairs.

    Attributes:
        masters: The masters, as arguments of commands.
        slaves: The slaves.
    """

    masters: Both
    slaves: Both


@pytest.fixture(scope="module", params=TOOLS)
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slaves]:
    folder = tmp_path_factory.mktemp("slaves")
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(_or_skip(lambda: JavaClient(request.param, folder / "java")))
        running = [
            stack.enter_context(_or_skip(lambda kind=kind: Pair(kind, kind, folder / kind)))
            for kind in (REPUT, request.param)
        ]
        for pair in running:
            with java.producer(pair.namesrv, mqClientApiTimeout=60_000) as producer:
                (sent,) = producer.send([JavaMessage("T", b"body")], timeout_ms=60_000)
                assert sent.status == "SEND_OK"
            pair.until_equal()
        masters = [Side(pair.namesrv, pair.master.address, []) for pair in running]
        slaves = [Side(pair.namesrv, pair.slave.address, []) for pair in running]
        # No broker.conf is changed.
        yield Slaves(*(Both(java, *both, folder, folder / "java") for both in (masters, slaves)))


def test_the_cluster_lists_the_slave(two: Slaves) -> None:
    """Rates, the age of the oldest message and the disk usage differ."""

    def rows(side: Side) -> list[list[str]]:
        lines = masked(two.masters.run(side, "clusterList")).splitlines()
        return [lines[0].split(), *(line.split() for line in sorted(lines[1:]) if line)]

    ours, official = (until(lambda side=side: rows(side)) for side in two.masters.sides)
    assert ours[0] == official[0]
    assert [row[:5] for row in ours[1:]] == [row[:5] for row in official[1:]]
    assert [row[2] for row in ours[1:]] == ["0", "1"]
    if not two.masters.is_4:
        assert ours[0][-1] == "#ACTIVATED"
        assert [row[-1] for row in ours[1:]] == [row[-1] for row in official[1:]]


def test_broker_status_of_both_has_all_names(two: Slaves) -> None:
    for both in (two.masters, two.slaves):
        ours, official = (both.table(side, "brokerStatus", "-b", "BROKER") for side in both.sides)
        assert {name for name in official.keys() - ours.keys() if "/" not in name} == set()
        assert ours["dispatchBehindBytes"] == "0"
    assert ours["slaveState"] == "following"


def test_the_status_of_replication(two: Slaves) -> None:
    if two.masters.is_4:
        pytest.skip("no such case: only in 5.x")
    for side in two.masters.sides:
        # Its slave's last report is seconds old.
        until(lambda side=side: re.search(r"\s0\s+\S+\s+OK\s", two.masters.run(side, *HA_STATUS)))
    text = two.masters.prints(*HA_STATUS, masks=NUMBERS)
    assert "#SlaveNum N" in text
    text = two.slaves.prints(*HA_STATUS, masks=NUMBERS)
    assert "#MasterAddr ADDRESS" in text


HA_STATUS = ("haStatus", "-b", "BROKER")


def test_the_flushed_offset_of_the_master_is_reset(two: Slaves) -> None:
    if two.masters.is_4:
        pytest.skip("no such case: only in 5.x")
    for both in (two.masters, two.slaves):
        text = both.prints("resetMasterFlushOffset", "-b", "BROKER", "-o", "0")
        assert "success" in text
