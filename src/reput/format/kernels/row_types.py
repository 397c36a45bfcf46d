"""Rows of words as types of numba: a field is an attribute, and costs a load or a store.

The value is the address, a number of 64 bits; all else is the type's. So an argument that is a row
is still an integer to callers. A field that a layout does not have is an error of the compiler, as
is arithmetic: ``row.address`` is the number. What can be done with an address:

* ``row.name`` and ``row.name = value``, by the fields of its layout (``rows``);
* ``row[i]``, the row that is ``i`` rows further; of words ``words[i]`` and ``words[i] = value``;
* ``row == other`` and ``row != 0``. Where functions return, or variables hold, a row or 0, the 0 is
  the address of nothing.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

import operator
import typing
from types import GenericAlias
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.errors import TypingError
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_global,
    signature,
)
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_cast,
    lower_getattr_generic,
    lower_setattr_generic,
    register_model,
)

from reput.format.kernels.rows import ADDRESS, WORD_BYTES, Field, Row, Target, fields_of, size_of

_INT64 = ir.IntType(64)


class AddressType(types.Type):
    """The address of rows, of words (``int``), or of words with the addresses of rows."""

    def __init__(self, target: Any) -> None:
        self.target = target
        name = str(target) if isinstance(target, GenericAlias) else target.__qualname__
        super().__init__(name=f"address({name})")

    @property
    def key(self) -> Any:
        """What identifies the type."""
        return self.target

    @property
    def step(self) -> int:
        """Bytes from an element to the next."""
        is_row = isinstance(self.target, type) and issubclass(self.target, Row)
        return size_of(self.target) if is_row else WORD_BYTES

    @property
    def element(self) -> types.Type:
        """Type of an element."""
        if self.target is int:
            return types.int64
        if isinstance(self.target, GenericAlias):
            return AddressType(*typing.get_args(self.target))
        return self

    def can_convert_from(self, typing_context: Any, other: types.Type) -> Conversion | None:
        """Return how an integer is converted: 0, and what Python has put into a word."""
        return Conversion.safe if isinstance(other, types.Integer) else None


@register_model(AddressType)
class _AddressModel(PrimitiveModel):
    def __init__(self, manager: Any, kind: AddressType) -> None:
        super().__init__(manager, kind, _INT64)


def argument_type(argument: Target) -> types.Type:
    """Return the type of an argument that an entry point declares: a number, or a row."""
    return types.int64 if argument is int else AddressType(argument)


def _field(kind: AddressType, name: str) -> Field | None:
    is_row = isinstance(kind.target, type) and issubclass(kind.target, Row)
    return fields_of(kind.target).get(name) if is_row else None


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _INT64.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, _INT64.as_pointer()), align=1)


def _field_address(builder: Any, address: Any, field: Field) -> Any:
    return builder.add(address, ir.Constant(_INT64, WORD_BYTES * field.number))


@lower_cast(types.Integer, AddressType)
def _cast_integer(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return context.cast(builder, value, source, types.int64)


# --- fields -----------------------------------------------------------------------------------


@infer_getattr
class _RowFields(AttributeTemplate):
    key = AddressType

    def generic_resolve(self, kind: Any, name: Any) -> Any:  # type: ignore[override]
        if name == ADDRESS:
            return types.int64
        field = _field(kind, name)
        if field is None:
            return None
        return types.int64 if field.to is None else AddressType(field.to)


@lower_getattr_generic(AddressType)
def _get(context: Any, builder: Any, kind: AddressType, value: Any, name: str) -> Any:
    if name == ADDRESS:
        return value
    field = _field(kind, name)
    assert field is not None
    address = _field_address(builder, value, field)
    return address if field.is_part else _load(builder, address)


@lower_setattr_generic(AddressType)
def _set(context: Any, builder: Any, types_of_set: Any, arguments: Any, name: str) -> None:
    kind = types_of_set.args[0]
    field = _field(kind, name)
    if field is None or field.is_part:
        raise TypingError(f"{name} of {kind} is not a word")
    _store(builder, arguments[1], _field_address(builder, arguments[0], field))


# --- elements ---------------------------------------------------------------------------------


@infer_global(operator.getitem)
class _GetElement(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        kind, index = arguments
        if isinstance(kind, AddressType) and isinstance(index, types.Integer):
            return signature(kind.element, kind, types.int64)
        return None


@infer_global(operator.setitem)
class _SetElement(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        kind, index, _ = arguments
        is_word = isinstance(kind, AddressType) and kind.element != kind
        if is_word and isinstance(index, types.Integer):
            return signature(types.none, kind, types.int64, kind.element)
        return None


def _element_address(builder: Any, kind: AddressType, address: Any, index: Any) -> Any:
    return builder.add(address, builder.mul(index, ir.Constant(_INT64, kind.step)))


@lower_builtin(operator.getitem, AddressType, types.Integer)
def _get_element(context: Any, builder: Any, types_of_get: Any, arguments: Any) -> Any:
    kind = types_of_get.args[0]
    address = _element_address(builder, kind, *arguments)
    return address if kind.element == kind else _load(builder, address)


@lower_builtin(operator.setitem, AddressType, types.Integer, types.Any)
def _set_element(context: Any, builder: Any, types_of_set: Any, arguments: Any) -> Any:
    address, index, value = arguments
    kind = types_of_set.args[0]
    _store(builder, value, _element_address(builder, kind, address, index))
    return context.get_dummy_value()


# --- comparison -------------------------------------------------------------------------------


class _Comparison(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        first, second = arguments
        if isinstance(first, AddressType) and (
            second == first or isinstance(second, types.Integer)
        ):
            return signature(types.boolean, first, first)
        return None


@infer_global(operator.eq)
class _Equal(_Comparison):
    pass


@infer_global(operator.ne)
class _Unequal(_Comparison):
    pass


@lower_builtin(operator.eq, AddressType, AddressType)
def _equal(context: Any, builder: Any, types_of_comparison: Any, arguments: Any) -> Any:
    return builder.icmp_signed("==", *arguments)


@lower_builtin(operator.ne, AddressType, AddressType)
def _unequal(context: Any, builder: Any, types_of_comparison: Any, arguments: Any) -> Any:
    return builder.icmp_signed("!=", *arguments)


# --- whole rows --------------------------------------------------------------------------------


@intrinsic
def row_after(typing_context: Any, row: Any, size: Any) -> Any:
    """Return the row that is ``size`` bytes after another one: rows may end in any number of rows.

    All others follow each other: ``row[1]``.
    """

    def generate(context: Any, builder: Any, types_of_call: Any, arguments: Any) -> Any:
        return builder.add(*arguments)

    return row(row, types.int64), generate


@intrinsic
def clear(typing_context: Any, row: Any) -> Any:
    """Set all words of a row to 0."""

    def generate(context: Any, builder: Any, types_of_call: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        memset = builder.module.declare_intrinsic("llvm.memset", [byte.as_pointer(), _INT64])
        target = builder.inttoptr(arguments[0], byte.as_pointer())
        size = ir.Constant(_INT64, types_of_call.args[0].step)
        is_volatile = ir.Constant(ir.IntType(1), 0)
        builder.call(memset, [target, ir.Constant(byte, 0), size, is_volatile])
        return context.get_dummy_value()

    return types.void(row), generate
