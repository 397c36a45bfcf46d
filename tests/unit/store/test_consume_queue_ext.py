"""Extension files: docs/formats/consume-queue.md. For Java's bytes see crash/test_rebuild.py."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from reput.errors import CorruptRecord
from reput.format import cq_unit
from reput.store.consume_queue_ext import ConsumeQueueExt
from reput.store.disk import Disk

FILE = 200


def unit(bits: int, code: int = 7) -> cq_unit.ExtUnit:
    return cq_unit.ExtUnit(20 + bits, code, 1_700_000_000_000, b"\xff" * bits)


def test_addresses_follow_from_sizes(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    addresses = [ext.put(unit(4)) for _ in range(3)]
    assert [cq_unit.ext_offset(one) for one in addresses] == [0, 24, 48]
    assert all(cq_unit.is_ext_address(one) for one in addresses)


def test_a_file_keeps_four_bytes_and_ends_with_a_mark(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    # 8 units of 24 bytes take 192; a ninth must leave 4 bytes free: 200 - 192 < 24 + 4.
    addresses = [ext.put(unit(4)) for _ in range(9)]
    ext.write_out()
    assert cq_unit.ext_offset(addresses[8]) == FILE
    first = (tmp_path / "00000000000000000000").read_bytes()
    assert len(first) == FILE
    assert first[192:] == b"\xff\xff" + bytes(6)
    # 196 bytes of units, and 4 that stay free.
    exact = ConsumeQueueExt(str(tmp_path / "exact"), FILE, Disk())
    for bits in (78, 78):
        assert cq_unit.ext_offset(exact.put(unit(bits))) < FILE
    assert cq_unit.ext_offset(exact.put(unit(0))) == FILE


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=40))
def test_units_are_found_written_out_or_not(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    ext = ConsumeQueueExt(str(tmp_path_factory.mktemp("ext")), FILE, Disk())
    put = {}
    for number, (bits, writes) in enumerate(steps):
        put[ext.put(unit(bits, number))] = unit(bits, number)
        if writes:
            ext.write_out()
    for address, expected in put.items():
        assert ext.unit(address) == expected


def test_put_again_after_a_cut_lands_where_it_was(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    addresses = [ext.put(unit(9, number)) for number in range(12)]
    ext.write_out()
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    again = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    again.cut(again.end_of(addresses[4]))
    assert [again.put(unit(9, number)) for number in range(5, 12)] == addresses[5:]
    again.write_out()
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_an_address_that_leads_nowhere(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    ext.put(unit(4))
    for place in (24, 5000):
        with pytest.raises(CorruptRecord, match="points at no unit"):
            ext.unit(cq_unit.ext_address(place))


def test_files_before_an_address_go_but_the_last(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    addresses = [ext.put(unit(20)) for _ in range(20)]
    ext.write_out()
    ext.delete_before(addresses[9])
    kept = sorted(int(one.name) for one in tmp_path.iterdir())
    assert kept[0] == cq_unit.ext_offset(addresses[9]) // FILE * FILE
    assert ext.unit(addresses[9]) == unit(20)
    ext.delete()
    assert list(tmp_path.iterdir()) == []
