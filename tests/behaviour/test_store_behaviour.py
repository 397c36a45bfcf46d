"""Behaviour of every kind of store that scripts cannot express: filters, checksums, ids, a slave.

The rest of the shared behaviour is in ``tests/scripts/store/behaviour``.
"""

import functools
import inspect
import struct
from collections.abc import Callable
from typing import Any

import pytest

from memory_store import MemoryStore
from reput.format import java, message as record
from reput.format.message import Host
from reput.store.getting import GetStatus
from reput.store.kernels import hot, reference
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from store_fixture import Stores
from store_subject import KINDS, Subject, decoded, message

Open = Callable[..., Subject]


@pytest.fixture(params=KINDS)
def open_subject(
    request: pytest.FixtureRequest, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> Open:
    """Return ``open_subject(**settings)``, which opens a store of each kind in turn."""
    if request.param == "reference":
        for name in ("append", "pull", "dispatch"):
            monkeypatch.setattr(hot, name, getattr(reference, name))
    return functools.partial(Subject, request.param, stores)


@pytest.fixture
def subject(open_subject: Open) -> Subject:
    """Return a store of each kind in turn, with the settings of ``store_fixture``."""
    return open_subject()


def test_the_model_has_methods_of_the_store() -> None:
    own = {name for name in vars(MemoryStore) if not name.startswith("_")} - {"expire"}

    assert {"put", "get", "query", "step", "close"} <= own
    for name in own:
        modelled, method = getattr(MemoryStore, name), getattr(MessageStore, name)
        assert isinstance(modelled, property) == isinstance(method, property), name
        if callable(modelled):
            expected = dict(inspect.signature(method).parameters)
            for parameter in inspect.signature(modelled).parameters.values():
                assert parameter == expected.pop(parameter.name), name
            assert all(rest.kind is rest.KEYWORD_ONLY for rest in expected.values()), name


def test_the_offset_id_consists_of_host_and_physical_offset(subject: Subject) -> None:
    store_host = Host(bytes([127, 0, 0, 1]), 20911)
    host_v6 = Host(bytes.fromhex("fd000000000000000000000000000002"), 10911)

    assert subject.put(store_host=store_host).offset_id == "7F000001000051AF0000000000000000"
    expected = f"{'FD':0<31}2" + "00002A9F" + f"{102:016X}"
    assert subject.put(store_host=host_v6).offset_id == expected


def test_the_record_checksum_is_written_when_enabled(open_subject: Open) -> None:
    subject = open_subject(enabled_append_prop_crc=True)
    plain = message(tags="TagA", body=b"hello")

    subject.put(tags="TagA", body=b"hello")
    subject.put(body=b"bare")

    first, second = subject.store.get("TopicA", 0, 0).records
    stored = record.decode(first)  # Compares the checksum.
    assert stored.property_bytes.startswith(plain.property_bytes)
    assert len(stored.property_bytes) == len(plain.property_bytes) + 20
    # Encoded by the codec alone, from the record without its checksum.
    size = len(first) - 20
    bare = bytearray(first[:size])
    struct.pack_into(">i", bare, 0, size)
    record.PROPERTIES_LENGTH.pack_into(
        bare, size - len(plain.property_bytes) - 2, len(plain.property_bytes)
    )
    assert record.append_crc_property(bytes(bare)) == first
    assert list(record.decode(second).properties) == ["__CRC32#"]


def test_a_slave_keeps_offsets_that_a_master_would_correct(
    open_subject: Open, stores: Stores
) -> None:
    master = open_subject()
    if master.kind == "memory":
        pytest.skip("no such case: a slave of a store in memory has nothing to open")
    master.put()
    master.store.close()
    stores.allow(FindingKind.CHECKPOINT)

    for offset_check, overflow, unknown in ((False, 9, 7), (True, 1, 0)):
        slave = open_subject(broker_role="SLAVE", offset_check_in_slave=offset_check)
        assert slave.store.get("TopicA", 0, 9).next_offset == overflow
        assert slave.store.get("TopicA", 0, 9).status is GetStatus.OFFSET_OVERFLOW_BADLY
        assert slave.store.get("TopicX", 0, 7).next_offset == unknown
        slave.store.close()


# --- filters ----------------------------------------------------------------------------------


class EveryThird:
    """A filter that takes every third body, and records the tags codes of the units it gets."""

    uses_tags = True

    def __init__(self) -> None:
        self.codes: list[int] = []

    def takes_unit(self, tags_code: int, *_: Any) -> bool:
        self.codes.append(tags_code)
        return tags_code != java.string_hash("Never")

    def takes_record(self, data: memoryview) -> bool:
        return int(record.decode(data).body) % 3 == 0


class EveryThirdRecord(EveryThird):
    """The same filter, but it ignores units."""

    uses_tags = False


FILTERS = pytest.mark.parametrize("wanted", [EveryThird, EveryThirdRecord])


def test_a_filter_decides_by_unit_and_by_record(subject: Subject) -> None:
    tags = ["TagA", "Never", ""]
    for i in range(9):
        subject.put(body=str(i).encode(), tags=tags[i // 3])
    wanted = EveryThird()

    result = subject.store.get("TopicA", 0, 0, message_filter=wanted)

    assert [stored.body for stored in decoded(result)] == [b"0", b"6"]
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 9)
    expected = [java.string_hash("TagA")] * 3 + [java.string_hash("Never")] * 3 + [0] * 3
    assert wanted.codes == expected


@FILTERS
def test_a_filtered_get_has_the_same_limits(open_subject: Open, wanted: type[EveryThird]) -> None:
    subject = open_subject(max_transfer_bytes_on_message_in_memory=250)
    for i in range(10):
        subject.put(body=f"{i:03d}".encode())  # 100 bytes.

    result = subject.store.get("TopicA", 0, 0, message_filter=wanted())
    assert [stored.body for stored in decoded(result)] == [b"000", b"003"]
    # The next unit that does not fit ends the result, whether the filter takes it or not.
    assert result.next_offset == 4
    result = subject.store.get("TopicA", 0, 1, 1, message_filter=wanted())
    assert [stored.body for stored in decoded(result)] == [b"003"]
    assert result.next_offset == 4


@FILTERS
def test_a_filter_that_takes_nothing_advances(subject: Subject, wanted: type[EveryThird]) -> None:
    for i in range(7):
        subject.put(body=str(3 * i + 1).encode())

    result = subject.store.get("TopicA", 0, 2, message_filter=wanted())

    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 7)
