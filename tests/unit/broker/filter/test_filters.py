"""SQL filters of groups: their life cycle and the use of their bits.

The changes of a heartbeat are those of Java's ``ConsumerFilterManager``. Comparisons with Java:
tests/crash/test_rebuild.py for the bits, tests/interop/test_sql_pull.py for the results.
"""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

import golden
import world
from reput import config
from reput.broker.filter.consumer_filters import ConsumerFilters
from reput.broker.server import Broker
from reput.clock import ManualClock
from reput.format import message as record, sql92
from reput.format.bloom import BloomFilter
from reput.format.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.remoting.time_slices import run_whole
from reput.store.config import StoreConfig
from reput.store.files.disk import Disk
from reput.store.tables.filters import ConsumerFilter, ConsumerFilterTable
from world import Subject

DAY_MS = 24 * 3_600_000
NOW_MS = 1_700_000_000_000
BLOOM = BloomFilter.of(20, 32)


def filters_of(root: Path, bloom: BloomFilter = BLOOM) -> ConsumerFilters:
    (root / "config").mkdir(exist_ok=True)
    table = ConsumerFilterTable.load(str(root), Disk())
    return ConsumerFilters(
        table, bloom, DAY_MS, lambda expression: expression != "bad", lambda kind, expression: None
    )


def wants(topic: str, expression: str, version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, expression_type=kind, sub_version=version
    )


def register(
    filters: ConsumerFilters, *wanted: SubscriptionData, now_ms: int = NOW_MS, newest_ms: int = 0
) -> bool:
    return run_whole(filters.register("g", wanted, lambda: now_ms, lambda topic: newest_ms))


def entry_of(filters: ConsumerFilters, topic: str = "T") -> ConsumerFilter:
    consumer_filter = filters.find(topic, "g")
    assert consumer_filter is not None
    return consumer_filter


# --- changes by heartbeats ------------------------------------------------------


def test_a_filter_is_kept_for_a_day_after_its_group_left(tmp_path: Path) -> None:
    filters = filters_of(tmp_path)
    register(filters, wants("T", "a > 5"), wants("U", "a > 5"))
    register(filters, wants("T", "a > 5"), now_ms=NOW_MS + 5)
    assert entry_of(filters, "U").dead_ms == NOW_MS + 5, "not subscribed to any more"
    filters.unregister("g", NOW_MS + 8)
    assert entry_of(filters).dead_ms == NOW_MS + 8
    assert entry_of(filters, "U").dead_ms == NOW_MS + 5, "dead already"
    register(filters, wants("T", "a > 5"), now_ms=NOW_MS + 9)
    assert not entry_of(filters).is_dead
    assert entry_of(filters).born_ms == NOW_MS, "it has had its bits all the time"
    filters.expire(NOW_MS + 5 + DAY_MS)
    assert filters.find("U", "g") is None
    assert filters.find("T", "g") is not None


def test_filters_are_registered_in_small_steps(tmp_path: Path) -> None:
    filters = filters_of(tmp_path)
    wanted = [wants(f"T{i}", "a > 5") for i in range(7)]
    assert len(list(filters.register("g", wanted, lambda: NOW_MS, lambda topic: 0))) == 7


def test_a_filter_is_born_when_it_is_in_the_table(tmp_path: Path) -> None:
    """Messages put while other filters are compiled lack its bits, and used to be lost."""
    filters = filters_of(tmp_path)
    clock = ManualClock(NOW_MS)
    wanted = [wants(f"T{number}", "a > 5") for number in range(3)]
    for _ in filters.register("g", wanted, clock.now_ms, lambda topic: 0):
        clock.advance(10)
    born = [entry_of(filters, f"T{number}").born_ms for number in range(3)]
    assert born == [NOW_MS, NOW_MS + 10, NOW_MS + 20]


def test_bits_of_messages_older_than_the_filter_are_ignored(tmp_path: Path) -> None:
    """Java compares with the clock alone, and trusts wrong bits if the clock is set back."""
    filters = filters_of(tmp_path)
    register(filters, wants("T", "a > 5"), newest_ms=NOW_MS + 3_600_000)
    assert entry_of(filters).born_ms == NOW_MS + 3_600_000


def test_a_restart_marks_all_filters_dead_and_keeps_their_bits(tmp_path: Path) -> None:
    filters = filters_of(tmp_path)
    register(filters, wants("T", "a > 5"))
    filters.table.save(NOW_MS)
    again = filters_of(tmp_path)
    again.load(NOW_MS + 40_000)
    assert entry_of(again) == replace(entry_of(filters), dead_ms=NOW_MS + 10_000)
    register(again, wants("T", "a > 5"), now_ms=NOW_MS + 50_000)
    assert entry_of(again) == entry_of(filters)


# --- over the wire --------------------------------------------------------------

BITS_ON = {"enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}


def heartbeat(*wanted: SubscriptionData, group: str = "consumers") -> HeartbeatData:
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name=group,
        message_model="CLUSTERING",
        subscription_data_set=list(wanted),
        unit_mode=False,
    )
    return HeartbeatData(client_id="one", consumer_data_set=[data], producer_data_set=[])


async def send_numbers(subject: Subject, numbers: range) -> None:
    for number in numbers:
        await subject.send("T", str(number).encode(), properties={"n": str(number)})


async def test_bits_avoid_reading_the_message(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    async with world.broker(
        tmp_path, clock=clock, store=BITS_ON, enable_property_filter=True
    ) as subject:
        await subject.send_body(RequestCode.HEART_BEAT, heartbeat(wants("T", "n > 2")))
        clock.advance(1)
        await send_numbers(subject, range(6))
        looked_at: list[bytes] = []

        class Spy:
            uses_tags = False

            def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
                return by_group.takes_unit(tags_code, bit_map, store_timestamp)

            def takes_record(self, data: memoryview) -> bool:
                looked_at.extend(message.body for message in world.messages_in(bytes(data)))
                return by_group.takes_record(data)

        consumer_filter = subject.parts.consumer_filters.find("T", "consumers")
        assert consumer_filter is not None
        by_group = subject.parts.filters.of_group(consumer_filter).message_filter
        assert by_group is not None
        subject.broker.store.get("T", 0, 0, 32, message_filter=Spy())
        assert looked_at == [b"3", b"4", b"5"]


async def test_unknown_or_outdated_filters_are_refused(tmp_path: Path) -> None:
    async with world.broker(tmp_path, enable_property_filter=True) as subject:
        await send_numbers(subject, range(1))
        await subject.send_body(RequestCode.HEART_BEAT, heartbeat(wants("T", "n >", 1)))
        unknown = await subject.pull("T", sys_flag=0, sub_version=1)
        assert unknown.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert unknown.remark == (
            "The broker's consumer filter data is not exist!Your expression may be wrong!"
        )
        await subject.send_body(RequestCode.HEART_BEAT, heartbeat(wants("T", "n > 2", 5)))
        older = await subject.pull("T", sys_flag=0, sub_version=6)
        assert older.code == ResponseCode.SUBSCRIPTION_NOT_LATEST

        filters = subject.parts.consumer_filters
        consumer_filter = filters.find("T", "consumers")
        assert consumer_filter is not None
        filters.table.put(replace(consumer_filter, client_version=4))
        older = await subject.pull("T", sys_flag=0, sub_version=5)
        assert older.code == ResponseCode.FILTER_DATA_NOT_LATEST
        assert older.remark == "the consumer's consumer filter data not latest"


# --- bits of Java ---------------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
async def test_filters_and_bits_of_java_are_used(version: str, tmp_path: Path) -> None:
    """Groups of a store with extension files reconnect, and get the matching messages."""
    root = golden.copy_store(version, "ext", tmp_path)
    manifest = golden.manifest(version, "ext")
    settings = dataclasses.replace(
        config.load(StoreConfig, manifest["config"], environment={}).value,
        store_path_root_dir=str(root),
        store_path_commit_log=None,
        enable_calc_filter_bit_map=True,
    )
    properties = {
        (message["topic"], message["queueId"], message["queueOffset"]): message["properties"]
        for message in golden.messages(version, "ext")
    }
    taken, left_out = 0, 0
    broker = Broker(world.broker_config(enable_property_filter=True), settings)
    async with broker:
        filters = broker.parts.consumer_filters
        for consumer_filter in list(filters.table.all()):
            assert consumer_filter.is_dead, "no member is connected yet"
            again = wants(
                consumer_filter.topic,
                consumer_filter.expression,
                consumer_filter.client_version + 1,
            )
            run_whole(
                filters.register(
                    consumer_filter.group, [again], broker.clock.now_ms, lambda topic: 0
                )
            )
            known = filters.find(consumer_filter.topic, consumer_filter.group)
            assert known is not None
            assert known.born_ms == consumer_filter.born_ms, "its bits are good"
            by_group = broker.parts.filters.of_group(known).message_filter
            assert by_group is not None
            compiled = sql92.compile_filter(consumer_filter.expression)
            for queue in manifest["queues"]:
                if queue["topic"] != consumer_filter.topic:
                    continue
                expected = []
                for number, unit in enumerate(queue["units"], queue["minOffset"]):
                    matches = compiled.matches(
                        properties[consumer_filter.topic, queue["queueId"], number]
                    )
                    bits = bytes.fromhex(unit["ext"].get("bitMap") or "")
                    if not by_group.takes_unit(0, bits, unit["ext"]["msgStoreTime"]):
                        assert not matches
                        left_out += 1
                    if matches:
                        expected.append(number)
                queue_offsets = []
                queue_offset = queue["minOffset"]
                while queue_offset < queue["maxOffset"]:
                    result = broker.store.get(
                        consumer_filter.topic,
                        queue["queueId"],
                        queue_offset,
                        32,
                        message_filter=by_group,
                    )
                    queue_offsets += [record.decode(data).queue_offset for data in result.records]
                    queue_offset = result.next_offset
                assert queue_offsets == expected
                taken += len(queue_offsets)
    assert taken > 20
    assert left_out > 20
