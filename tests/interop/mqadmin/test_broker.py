"""Commands of mqadmin for the cluster and its broker."""

import re
from pathlib import Path

import pytest

from interop.mqadmin.sides import Both, masked
from reput import config

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


def test_the_cluster_is_shown(both: Both) -> None:
    # Rates, the age of the oldest message, and the disk usage differ.
    rows = [masked(both.run(side, "clusterList")).splitlines() for side in both.sides]
    assert rows[0][0] == rows[1][0]
    assert rows[0][1].split()[:5] == rows[1][1].split()[:5]
    assert rows[0][1].split()[:5] == ["DefaultCluster", "broker-a", "0", "ADDRESS", "VERSION"]
    counts = re.findall(r"^DefaultCluster +broker-a +(\d+) +(\d+) +(\d+) +(\d+)$",
                        both.run(both.ours, "clusterList", "-m"), re.MULTILINE)  # fmt: skip
    assert [int(put_today) >= 6 for _, _, put_today, _ in counts] == [True]


def test_broker_status_has_all_names(both: Both) -> None:
    ours, official = (both.table(side, "brokerStatus", "-b", "BROKER") for side in both.sides)
    missing = {name for name in official.keys() - ours.keys() if "/" not in name}
    assert missing == set()
    if both.is_4:  # our broker reports a version of 4.x
        for name in ("brokerVersion", "brokerVersionDesc"):
            assert ours[name] == official[name]
    ratios = [float(status["commitLogDiskRatio"]) for status in (ours, official)]
    assert ratios[0] == pytest.approx(ratios[1], abs=0.05)  # of one disk, which other processes use
    assert ours["dispatchBehindBytes"] == "0"
    assert int(ours["msgPutTotalTodayNow"]) >= 6
    assert ours["putMessageSizeTotal"] == ours["commitLogMaxOffset"]


def test_settings_are_shown_and_changed(both: Both) -> None:
    both.prints("updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "24")
    assert both.table(both.ours, "getBrokerConfig", "-b", "BROKER")["fileReservedTime"] == "24"
    assert config.parse_properties(both.conf.read_text())["fileReservedTime"] == "24"
    # Java ignores the text without an error.
    text = both.run(
        both.ours, "updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "long"
    )
    assert "option 'fileReservedTime' is 'long'; allowed: a whole number" in text
    text = both.run(
        both.ours, "updateBrokerConfig", "-b", "BROKER", "-k", "brokerConfigPath", "-v", "/x"
    )
    assert "CODE: 16" in text


def test_configuration_and_metadata_are_exported(both: Both, tmp_path: Path) -> None:
    for command in ("exportConfigs", "exportMetadata", "exportMetrics"):
        text = both.prints(command, "-c", "DefaultCluster", "-f", str(tmp_path))
        assert "success" in text


def test_statistics_are_shown(both: Both) -> None:
    # The count of the day is as old as the last sample, and brokers sample at different times.
    masks = [(r"\d+\.\d\d", "TPS"), (r"\d+ NO_CONSUMER", "N NO_CONSUMER")]
    text = both.prints("statsAll", "-t", "Messages", masks=masks)
    assert "Messages" in text


def test_a_broker_without_slaves_has_a_status(both: Both) -> None:
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    masks = [(r"(MasterCommitLogMaxOffset\s)\d+", r"\1N")]
    text = both.prints("haStatus", "-b", "BROKER", masks=masks)
    assert "#SlaveNum\t0" in text
    assert "success" in both.prints("resetMasterFlushOffset", "-b", "BROKER", "-o", "0")


def test_pop_records_are_exported(both: Both) -> None:
    """Only the revive topic has pop records: the store for others is off by default."""
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    text = both.prints("exportPopRecord", "-b", "BROKER")
    assert "Export broker records, brokerName=broker-a, brokerAddr=ADDRESS" in text
