"""Extension files: docs/formats/consume-queue.md.

tests/crash/test_rebuild.py compares them with Java's byte by byte.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from reput.errors import CorruptRecord
from reput.format import cq_unit
from reput.store.files.disk import Disk
from reput.store.queues.consume_queue_ext import ConsumeQueueExt

FILE = 200


def unit(bits: int, code: int = 7) -> cq_unit.ExtUnit:
    return cq_unit.ExtUnit(20 + bits, code, 1_700_000_000_000, b"\xff" * bits)


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


def test_an_address_without_a_unit(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(str(tmp_path), FILE, Disk())
    ext.put(unit(4))
    for place in (24, 5000):
        with pytest.raises(CorruptRecord, match="points at no unit"):
            ext.unit(cq_unit.ext_address(place))
