"""Rows of words: what kernels and Python share, declared once, a line a field.

A row is a run of int64 words in native order, at an address. A class declares its fields, in order,
each with its unit and its meaning:

    class Place(Row):
        queue_offset = word("queue offset", "Of the record; -1: any")
        physical_offset = word("physical offset", "Of the record")

In Python a field is an attribute of a row: of a new one (``Place()``), of one in memory that others
keep (``Place.from_address``), or of one among several (``rows_of(Place, 10)``).
In kernels it is an attribute of the argument, which an entry point declares to be a row
(``reput.format.kernels.row_types``). Both cost one load or store.

A word with ``to`` is the address of more: of rows (``to=Place``), of words (``to=int``), or of
words with the addresses of rows (``to=list[Place]``). It is a number in Python. In kernels it has
that type, so that ``call.places[2].queue_offset`` reads the third row. 0 is the address of nothing.

Units: ``address`` (of memory), ``position`` (a byte of a file or buffer), ``bytes`` (a size),
``count``, ``number`` (an id or code), ``ms`` (a time or a duration), ``flag`` (0 or 1), ``bits``,
and the offsets of ARCHITECTURE.md.

Modules of layouts do not import numba: a broker with compiled kernels runs without it.
"""

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

WORD_BYTES = 8
ADDRESS = "address"
"""Unit of addresses, and the attribute with the address of a row."""
RESERVED = frozenset({ADDRESS, "clear"})
UNITS = frozenset(
    {
        *(ADDRESS, "position", "bytes", "count", "number", "ms", "flag", "bits"),
        *("physical offset", "queue offset", "consumer offset"),
    }
)


class Field(NamedTuple):
    """A field of a layout: a word, or words or rows that are part of the row."""

    unit: str
    meaning: str
    to: Any
    """What a word is the address of, or what the part consists of: ``int``, a layout, or a list of
    a layout; None: a word is a number."""
    is_part: bool
    """True of words and rows that are part of the row."""
    stored: Any
    """Type of the field's memory, of ctypes."""
    number: int = 0
    """Number of the field's first word in the row, from 0."""


if TYPE_CHECKING:
    # The stub of ``ctypes.Structure`` allows any attribute; this is what rows need of it.
    _MemoryType = type

    class _Memory:
        def __init__(self, **words: Any) -> None: ...
        @classmethod
        def from_address(cls, address: int) -> Self: ...
        @classmethod
        def from_buffer(cls, memory: Any, offset: int = 0) -> Self: ...
        @classmethod
        def from_buffer_copy(cls, memory: Any, offset: int = 0) -> Self: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...

else:
    _Memory = ctypes.Structure
    _MemoryType = type(ctypes.Structure)


class _RowType(_MemoryType):
    """Makes attributes of the fields that a class declares; they follow those of its base."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> "_RowType":
        declared = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        fields: dict[str, Field] = {}
        for base in bases:
            fields |= getattr(base, "_words_", {})
        number = sum(ctypes.sizeof(field.stored) for field in fields.values()) // WORD_BYTES
        for key, field in declared.items():
            assert field.unit in UNITS, f"{name}.{key} has no unit"
            assert key not in RESERVED, f"{name}.{key} is an attribute of all rows"
            fields[key] = field._replace(number=number)
            number += ctypes.sizeof(field.stored) // WORD_BYTES
            del namespace[key]
        # Without slots, a misspelled attribute would be set elsewhere.
        namespace |= {"__slots__": (), "_words_": fields}
        namespace["_fields_"] = [(key, field.stored) for key, field in declared.items()]
        return super().__new__(cls, name, bases, namespace)


class Row(_Memory, metaclass=_RowType):
    """A row. A value that is set is taken modulo 2^64, as in kernels."""

    _words_: ClassVar[dict[str, Field]]

    @property
    def address(self) -> int:
        """Address of the row."""
        address: int = _address_of(self)
        return address

    def clear(self) -> None:
        """Set all words to 0."""
        ctypes.memset(_address_of(self), 0, size_of(type(self)))


RowKind = TypeVar("RowKind", bound=Row)
TailKind = TypeVar("TailKind", bound=Row)
Words = ctypes.Array[ctypes.c_int64]
Target = type[Any]
"""``int``, a layout, or a list of a layout."""
_address_of: Any = ctypes.addressof
_size_of: Any = ctypes.sizeof


class Rows(Protocol[RowKind]):
    """Rows of one layout, one after another: the part of ``ctypes.Array`` that is used."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[RowKind]: ...
    @overload
    def __getitem__(self, number: int, /) -> RowKind: ...
    @overload
    def __getitem__(self, numbers: slice, /) -> list[RowKind]: ...


def _array(kind: Any, count: int) -> Any:
    return kind * count


def word(unit: str, meaning: str, *, to: Target | None = None) -> int:
    """Declare a word; ``to`` is the type of the memory at the address in it."""
    return cast("int", Field(unit, meaning, to, False, ctypes.c_int64))


def words(count: int, unit: str, meaning: str, *, to: type[Row] | None = None) -> Words:
    """Declare words that are part of the row; ``to`` is the layout at the address in each."""
    target = int if to is None else list[to]  # type: ignore[valid-type]
    return cast("Words", Field(unit, meaning, target, True, ctypes.c_int64 * count))


def row(kind: type[RowKind], meaning: str) -> RowKind:
    """Declare a row that is part of the row."""
    return cast("RowKind", Field(ADDRESS, meaning, kind, True, kind))


def rows(count: int, kind: type[RowKind], meaning: str) -> Rows[RowKind]:
    """Declare rows that are part of the row; a count of 0: any number, at its end."""
    return cast("Rows[RowKind]", Field(ADDRESS, meaning, kind, True, _array(kind, count)))


def fields_of(kind: type[Row]) -> dict[str, Field]:
    """Return the fields of a layout by name, in order."""
    return kind._words_


def size_of(kind: type[Row]) -> int:
    """Return the size of a row, bytes."""
    size: int = _size_of(kind)
    return size


def word_count(kind: type[Row]) -> int:
    """Return the number of words of a row."""
    return size_of(kind) // WORD_BYTES


def columns_of(kind: type[Row]) -> Any:
    """Return the number of each field's first word as attributes, for rows as arrays of words."""
    return SimpleNamespace(**{name: field.number for name, field in kind._words_.items()})


def rows_of(kind: type[RowKind], count: int) -> Rows[RowKind]:
    """Return rows of zeros."""
    return cast("Rows[RowKind]", _array(kind, count)())


def start_of(rows: Rows[Any]) -> int:
    """Return the address of the first of some rows."""
    address: int = _address_of(rows)
    return address


def row_and_tail(
    kind: type[RowKind], tail: type[TailKind], count: int
) -> tuple[RowKind, Rows[TailKind]]:
    """Return a row of zeros, and as many rows of its last field, which may have any number."""
    memory = bytearray(size_of(kind) + size_of(tail) * count)
    rest = _array(tail, count).from_buffer(memory, size_of(kind))
    return kind.from_buffer(memory), cast("Rows[TailKind]", rest)
