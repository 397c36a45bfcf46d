"""Layouts of words: order, units, and rows as attributes in Python."""

import ctypes
import importlib
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from reput.format.kernels import build
from reput.format.kernels.rows import (
    UNITS,
    Row,
    columns_of,
    fields_of,
    row,
    rows,
    rows_of,
    size_of,
    word,
    word_count,
    words,
)

PACKAGES = ("reput.format.kernels", "reput.store.kernels", "reput.broker.kernels")
PACKAGES += ("reput.grpc.kernels",)


class Place(Row):
    """Where something is."""

    offset = word("physical offset", "Its offset")
    size = word("bytes", "Its size")


class MarkedPlace(Place):
    """A place with a mark."""

    mark = word("flag", "Whether it is marked")


class Call(Row):
    """Everything that a layout may have."""

    places = word("address", "Some places", to=Place)
    codes = words(3, "number", "Some codes")
    first = row(Place, "The first place")
    two = rows(2, Place, "Two places")
    count = word("count", "How many")
    tail = rows(0, MarkedPlace, "The others")


def layouts(kind: type[Row] = Row) -> Iterator[type[Row]]:
    for each in kind.__subclasses__():
        yield each
        yield from layouts(each)


def test_a_field_follows_the_one_before_it() -> None:
    numbers = {name: field.number for name, field in fields_of(Call).items()}
    assert numbers == {"places": 0, "codes": 1, "first": 4, "two": 6, "count": 10, "tail": 11}
    assert word_count(Call) == 11
    assert columns_of(Call).count == 10


def test_fields_of_a_base_come_first() -> None:
    assert list(fields_of(MarkedPlace)) == ["offset", "size", "mark"]
    assert word_count(MarkedPlace) == 3
    assert list(fields_of(Place)) == ["offset", "size"]


def test_attributes_are_the_words_in_order() -> None:
    numbers = np.zeros(word_count(Call), np.int64)
    call = Call.from_buffer(numbers)
    call.places = 7
    call.codes[2] = 8
    call.first.size = 9
    call.two[1].offset = 10
    call.count = -1
    assert numbers.tolist() == [7, 0, 0, 8, 0, 9, 0, 0, 10, 0, -1]
    assert call.address == int(numbers.__array_interface__["data"][0])
    call.clear()
    assert not numbers.any()


def test_rows_follow_each_other() -> None:
    places = rows_of(MarkedPlace, 3)
    places[2].mark = 5
    assert np.frombuffer(places, np.int64).tolist() == [0] * 8 + [5]
    assert places[1].address == places[0].address + 24


def test_an_unknown_attribute_of_a_layout_is_no_field() -> None:
    with pytest.raises(AttributeError, match="offfset"):
        Place().offfset = 1  # type: ignore[attr-defined]


def test_a_layout_is_refused_if_a_field_has_no_unit() -> None:
    with pytest.raises(AssertionError, match="size has no unit"):

        class _Broken(Row):
            size = word("furlongs", "A size")


def test_a_layout_is_refused_if_a_field_hides_the_address() -> None:
    with pytest.raises(AssertionError, match="is an attribute of all rows"):

        class _Broken(Row):
            address = word("address", "An address")  # type: ignore[assignment]


def test_words_are_of_64_bits() -> None:
    assert all(size_of(each) == 8 * word_count(each) for each in layouts())
    place = Place()
    place.offset = -(1 << 63)
    assert place.offset == -(1 << 63)


def test_each_field_has_a_unit_a_meaning_and_separate_words() -> None:
    for package in PACKAGES:
        for module in build.sources(package):
            importlib.import_module(module)
    counted = [each for each in layouts() if each.__module__.startswith("reput.")]
    assert counted
    for each in counted:
        number = 0
        for name, field in fields_of(each).items():
            assert field.unit in UNITS
            assert field.meaning, name
            assert field.number == number
            number += ctypes.sizeof(field.stored) // 8
        assert number == word_count(each)
        assert each.__doc__ != Row.__doc__, each


def test_layouts_do_not_import_numba() -> None:
    """A broker with compiled kernels starts without it."""
    modules = [
        name
        for package in PACKAGES
        for name, source in build.sources(package).items()
        if b"from reput.format.kernels.rows import" in source and b"(Row):" in source
    ]
    program = f"import sys, {', '.join(modules or ['sys'])}; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
