"""Rows of words in kernels: attributes, elements, and what the compiler refuses."""

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

from cases import each
from reput.format.kernels.row_types import argument_type
from reput.format.kernels.rows import Row, row, rows, rows_of, word, words


class Place(Row):
    """Where something is."""

    offset = word("physical offset", "Its offset")
    size = word("bytes", "Its size")


class Wide(Row):
    """A row of three words."""

    first = word("number", "A number")
    second = word("number", "A number")
    third = word("number", "A number")


class Call(Row):
    """Everything that a layout may have."""

    places = word("address", "Some places", to=Place)
    codes = word("address", "Some numbers", to=int)
    table = word("address", "Addresses of places", to=list[Place])
    own_codes = words(3, "number", "Some codes")
    own_place = row(Place, "A place")
    own_places = rows(2, Place, "Two places")
    count = word("count", "How many")
    tail = rows(0, Wide, "The others")


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[..., int]:
    """Return a function as kernels are compiled: it takes numbers."""
    signature = numba.types.int64(*map(argument_type, arguments))
    code = numba.cfunc(signature, nogil=True, error_model="numpy")(function)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    entry = kind(code.address)
    entry.code = code  # type: ignore[attr-defined]
    return entry


@pytest.mark.parametrize("value", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_a_word_is_stored_and_loaded_with_its_sign(value: int) -> None:
    def swap(place: Any, value: Any) -> Any:
        old = place.size
        place.size = value
        return old

    place = Place(offset=5, size=7)
    kernel = compiled(swap, Place, int)
    assert kernel(place.address, value) == 7
    assert (place.offset, place.size) == (5, value)
    assert kernel(place.address, 1) == value


def test_numbers_are_compared_with_their_sign() -> None:
    def is_before(place: Any) -> Any:
        return place.offset - 1 < place.size

    assert compiled(is_before, Place)(Place(offset=0, size=0).address) == 1


def test_rows_at_an_address_have_the_width_of_their_layout() -> None:
    def read(call: Any, number: Any) -> Any:
        return call.places[number].size * 1000 + call.tail[number].second

    numbers = np.arange(100, 160)
    call = Call.from_buffer(numbers)
    places = rows_of(Place, 3)
    places[2].size = 9
    call.places = places[0].address
    # The fields of a call take 13 words; the third of its last rows begins 6 later.
    assert compiled(read, Call, int)(call.address, 2) == 9 * 1000 + 100 + 13 + 6 + 1


def test_words_and_rows_may_be_part_of_a_row() -> None:
    def fill(call: Any) -> Any:
        call.own_codes[2] = 1
        call.own_place.size = 2
        call.own_places[1].offset = 3
        call.count = call.own_codes[2] + call.own_place.size
        return call.own_places.address - call.address

    call = Call()
    assert compiled(fill, Call)(call.address) == 8 * 8
    assert list(call.own_codes) == [0, 0, 1]
    assert call.own_place.size == 2
    assert call.own_places[1].offset == 3
    assert call.count == 3


def test_an_address_may_be_of_words_and_of_addresses() -> None:
    def read(call: Any) -> Any:
        call.codes[1] = 40
        if call.table[0] != 0:
            return -1
        place = call.table[1]
        call.table[0] = place
        return call.codes[1] + place.size

    codes, table = np.zeros(2, np.int64), np.zeros(2, np.int64)
    place = Place(size=2)
    table[1] = place.address
    call = Call(codes=codes.ctypes.data, table=table.ctypes.data)
    assert compiled(read, Call)(call.address) == 42
    assert codes.tolist() == [0, 40]
    assert table.tolist() == [place.address] * 2


def test_zero_is_the_address_of_no_row() -> None:
    def find(call: Any, size: Any) -> Any:
        return call.places if call.places.size == size else 0

    def find_two(call: Any, size: Any) -> Any:
        if call.places.size != size:
            return 0, 0
        return call.places, size

    inner, inner_two = numba.njit(find), numba.njit(find_two)

    def offset_of(call: Any, size: Any) -> Any:
        place = inner(call, size)
        other, _ = inner_two(call, size)
        if place == 0 or other == 0:
            return -1
        if place != other:
            return -2
        return place.offset

    place = Place(offset=11, size=3)
    call = Call(places=place.address)
    kernel = compiled(offset_of, Call, int)
    assert kernel(call.address, 3) == 11
    assert kernel(call.address, 4) == -1


def test_a_row_is_set_to_nothing() -> None:
    def forget(call: Any) -> Any:
        call.places = 0
        return 1 if call.places == 0 else 0

    call = Call(places=99)
    assert compiled(forget, Call)(call.address) == 1
    assert call.places == 0


def unknown_field(call: Any) -> Any:
    return call.plaices


def set_unknown_field(call: Any) -> Any:
    call.plaices = 1
    return 0


def set_part(call: Any) -> Any:
    call.own_place = 0
    return 0


def add_to_row(call: Any) -> Any:
    return call + 8


def field_of_number(call: Any) -> Any:
    return call.count.size


def row_as_number(call: Any) -> Any:
    call.count = call.places
    return 0


def other_layout(call: Any) -> Any:
    call.places = call.tail
    return 0


def set_row(call: Any) -> Any:
    call.places[0] = 1
    return 0


@each(
    "function",
    [
        *(unknown_field, set_unknown_field, set_part, add_to_row, field_of_number),
        *(row_as_number, other_layout, set_row),
    ],
)
def test_the_compiler_refuses(function: Callable[..., Any]) -> None:
    with pytest.raises(TypingError):
        compiled(function, Call)


def test_an_argument_that_is_no_row_has_no_fields() -> None:
    with pytest.raises(TypingError):
        compiled(unknown_field, int)
