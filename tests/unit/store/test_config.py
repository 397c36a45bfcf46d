"""The store's settings; tests/interop compares names and defaults with Java's."""

import dataclasses
import typing

import pytest

import golden
from cases import each
from reput import config
from reput.errors import InvalidOption
from reput.store.config import (
    ACCEPTED_WITHOUT_EFFECT,
    ONLY,
    BrokerRole,
    FlushDiskType,
    StoreConfig,
)

FIELDS = [field.name for field in dataclasses.fields(StoreConfig)]


def test_a_broker_conf() -> None:
    text = """
        brokerRole = SYNC_MASTER
        flushDiskType=SYNC_FLUSH
        storePathRootDir=/data/store
        storePathCommitLog=/disk1/commitlog, /disk2/commitlog
        deleteWhen=04;16
        cleanFileForciblyEnable=false
        warmMapedFileEnable=true
    """
    loaded = config.load(StoreConfig, config.parse_properties(text))
    assert loaded.unknown == ()
    assert loaded.value == StoreConfig(
        broker_role=BrokerRole.SYNC_MASTER,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        store_path_root_dir="/data/store",
        store_path_commit_log="/disk1/commitlog, /disk2/commitlog",
        delete_when="04;16",
        clean_file_forcibly_enable=False,
        warm_maped_file_enable=True,
    )
    assert loaded.value.commit_log_folders == ("/disk1/commitlog", "/disk2/commitlog")
    assert loaded.value.delete_hours == (4, 16)


def test_values_that_java_reads_leniently() -> None:
    """Nothing follows the last semicolon, and case does not matter for the type of the store."""
    loaded = config.load(StoreConfig, {"deleteWhen": "04;", "storeType": "DEFAULT"})
    assert loaded.value.delete_hours == (4,)


def test_the_log_is_below_the_root_unless_configured_otherwise() -> None:
    assert StoreConfig(store_path_root_dir="/s").commit_log_folders == ("/s/commitlog",)
    assert StoreConfig().read_only_commit_log_folders == ()


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_settings_of_the_golden_brokers(version: str) -> None:
    """Files are tiny: the bound of a record follows from their size."""
    settings = golden.manifest(version, "clean")["config"]
    loaded = config.load(StoreConfig, settings)
    assert loaded.unknown == ()
    assert loaded.value.mapped_file_size_commit_log == int(settings["mappedFileSizeCommitLog"])
    assert loaded.value.record_bytes_max == int(settings["mappedFileSizeCommitLog"]) - 8
    assert len(loaded.value.delay_levels_ms) == 18


# --- Java's interpretation of values (compared in interop) --------------------


@pytest.mark.parametrize(("given", "used"), [(1, 20), (20, 20), (21, 40), (6_000_001, 6_000_020)])
def test_a_queue_file_holds_whole_units(given: int, used: int) -> None:
    settings = StoreConfig(mapped_file_size_consume_queue=given)
    assert settings.mapped_file_size_consume_queue == used


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("disk_max_used_space_ratio", 10, 95),
        ("disk_space_clean_forcibly_ratio", 30, 85),
        ("disk_space_warning_level_ratio", 35, 90),
    ],
)
def test_percentages_are_clamped_to_their_range(name: str, least: int, most: int) -> None:
    for given in (-5, 0, least - 1, least, 60, most, most + 1, 100, 1000):
        settings = config.load(StoreConfig, explicit={name: given}).value
        assert getattr(settings, name) == min(max(given, least), most)


def test_names_of_other_versions() -> None:
    given = {
        "haMaxGapNotInSync": "1000",
        "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.70",
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.8",
    }
    loaded = config.load(StoreConfig, given).value
    assert loaded.ha_slave_fallbehind_max == 1000
    assert loaded.disk_space_clean_forcibly_ratio == 70
    assert loaded.disk_space_warning_level_ratio == 80


def test_delay_levels() -> None:
    levels = StoreConfig().delay_levels_ms
    assert levels[:6] == (1_000, 5_000, 10_000, 30_000, 60_000, 120_000)
    assert levels[-2:] == (3_600_000, 7_200_000)
    assert StoreConfig(message_delay_level="2d 1s").delay_levels_ms == (172_800_000, 1_000)


@pytest.mark.parametrize(
    ("role", "flush", "is_used"),
    [
        (BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH, True),
        (BrokerRole.SYNC_MASTER, FlushDiskType.ASYNC_FLUSH, True),
        (BrokerRole.ASYNC_MASTER, FlushDiskType.SYNC_FLUSH, False),
        (BrokerRole.SLAVE, FlushDiskType.ASYNC_FLUSH, False),
    ],
)
def test_when_the_pool_is_used(role: BrokerRole, flush: FlushDiskType, is_used: bool) -> None:
    on = StoreConfig(transient_store_pool_enable=True, broker_role=role, flush_disk_type=flush)
    assert on.uses_transient_store_pool is is_used
    assert not dataclasses.replace(on, transient_store_pool_enable=False).uses_transient_store_pool


# --- refused settings --------------------------------------------------------


@each(
    ("key", "text", "allowed"),
    [
        ("flushDiskType", "SYNC", "ASYNC_FLUSH, SYNC_FLUSH"),
        ("brokerRole", "MASTER", "ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("mappedFileSizeCommitLog", "0", "from 1 to 2147483647"),
        ("mappedFileSizeCommitLog", "2147483648", "from 1 to 2147483647"),
        ("mappedFileSizeConsumeQueue", "-20", "from 1"),
        ("maxIndexNum", "1", "from 2"),
        ("flushIntervalCommitLog", "-1", "from 0"),
        ("deleteWhen", "24", "hours from 00 to 23"),
        ("deleteWhen", "04,05", "hours from 00 to 23"),
        ("deleteWhen", ";", "hours from 00 to 23"),
        ("deleteWhen", ";04", "hours from 00 to 23"),
        ("deleteWhen", "", "hours from 00 to 23"),
        ("messageDelayLevel", "1s 5x", "times such as"),
        ("messageDelayLevel", "", "times such as"),
        ("storePathRootDir", " ", "a folder"),
        ("storeType", "defaultRocksDB", "default: this store uses files"),
        ("rocksdbCQDoubleWriteEnable", "true", "not RocksDB"),
        ("enableDLegerCommitLog", "true", "false: DLedger"),
        ("indexFileWriteEnable", "false", "messageIndexEnable=false"),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(
    key: str, text: str, allowed: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        config.load(StoreConfig, {key: text})
    assert refused.value.name == key
    assert allowed in refused.value.allowed


def test_a_body_that_no_log_file_can_hold_is_refused() -> None:
    """Java starts with such a setting, answers success, and stores nothing."""
    with pytest.raises(InvalidOption, match="log file of 1000000 bytes"):
        StoreConfig(mapped_file_size_commit_log=1_000_000)
    settings = StoreConfig(mapped_file_size_commit_log=1_000_000, max_message_size=999_900)
    assert settings.record_bytes_max == 1_000_000 - 8


def test_a_record_has_java_room_around_its_body() -> None:
    assert StoreConfig().record_bytes_max == 4 * 1024 * 1024 + 64 * 1024


# --- names -------------------------------------------------------------------


def test_every_field_has_its_own_key() -> None:
    assert len({config.key_of(name) for name in FIELDS}) == len(FIELDS)


def test_a_key_is_in_one_category() -> None:
    keys = {config.key_of(name) for name in FIELDS}
    assert keys.isdisjoint(ACCEPTED_WITHOUT_EFFECT)
    assert keys.isdisjoint(ONLY)
    assert set(ACCEPTED_WITHOUT_EFFECT).isdisjoint(ONLY)
    assert set(StoreConfig.keys.renamed.values()) <= keys


def test_every_number_has_a_range() -> None:
    hints = typing.get_type_hints(StoreConfig, include_extras=True)
    assert [name for name in FIELDS if hints[name] is int] == []
