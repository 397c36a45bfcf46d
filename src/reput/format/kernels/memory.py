"""Loads, stores and copies at addresses, for kernels.

The arguments of kernels are integers: addresses and sizes. So kernels need no array type, no
reference counts and no Python, and the compiled object needs nothing but ``memcpy``. Files are big
endian: ``load_`` and ``store_`` swap bytes. Arrow buffers are native: ``get_`` and ``put_`` do not.
Rows of words have attributes instead: ``row_types``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from reput.format.kernels import crc_fold, sha1_blocks as sha1

_INT64 = ir.IntType(64)


def _loader(bits: int, *, signed: bool, swap: bool) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            if swap and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _INT64) if signed else builder.zext(value, _INT64)

        return types.int64(types.int64), generate

    return load


def _storer(bits: int, *, swap: bool = False) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            number = arguments[1] if bits == 64 else builder.trunc(arguments[1], kind)
            if swap:
                number = builder.bswap(number)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.store(number, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


load_u8 = _loader(8, signed=False, swap=False)
load_i16 = _loader(16, signed=True, swap=True)
load_u16 = _loader(16, signed=False, swap=True)
load_i32 = _loader(32, signed=True, swap=True)
load_i64 = _loader(64, signed=True, swap=True)

get_u8 = load_u8
get_u16 = _loader(16, signed=False, swap=False)
get_i32 = _loader(32, signed=True, swap=False)
get_u32 = _loader(32, signed=False, swap=False)
get_i64 = _loader(64, signed=True, swap=False)

store_i16 = _storer(16, swap=True)
store_i32 = _storer(32, swap=True)
store_i64 = _storer(64, swap=True)

put_u8 = _storer(8)
put_i32 = _storer(32)
put_i64 = _storer(64)


def _run_finder(stops: bytes) -> Any:
    """Return a function that examines 16 bytes at once.

    It returns the number of bytes before the first that is a control character, not ASCII, or one
    of ``stops``.
    """

    @intrinsic
    def find_run(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.VectorType(ir.IntType(8), 16)
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            # Read as signed numbers, bytes that are not ASCII are below the space too.
            is_found = builder.icmp_signed("<", value, ir.Constant(kind, [0x20] * 16))
            for stop in stops:
                is_stop = builder.icmp_unsigned("==", value, ir.Constant(kind, [stop] * 16))
                is_found = builder.or_(is_found, is_stop)
            bits = builder.zext(builder.bitcast(is_found, ir.IntType(16)), _INT64)
            bits = builder.or_(bits, ir.Constant(_INT64, 1 << 16))
            return builder.cttz(bits, ir.Constant(ir.IntType(1), 1))

        return types.int64(types.int64), generate

    return find_run


def text_writer(text: bytes) -> Any:
    """Return a function that writes ``text`` to an address."""

    @intrinsic
    def write(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            position = 0
            while position < len(text):
                size = next(width for width in (8, 4, 2, 1) if width <= len(text) - position)
                kind = ir.IntType(8 * size)
                number = int.from_bytes(text[position : position + size], sys.byteorder)
                target = builder.add(arguments[0], ir.Constant(_INT64, position))
                pointer = builder.inttoptr(target, kind.as_pointer())
                builder.store(ir.Constant(kind, number), pointer, align=1)
                position += size
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return write


text_run = _run_finder(b"")
visible_run = _run_finder(b"\x7f")
quoted_run = _run_finder(b'"')
json_run = _run_finder(b'"\\')


@intrinsic
def copy(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy ``size`` bytes between two ranges that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        memcpy = builder.module.declare_intrinsic(
            "llvm.memcpy", [byte_pointer, byte_pointer, _INT64]
        )
        builder.call(
            memcpy,
            [
                builder.inttoptr(arguments[0], byte_pointer),
                builder.inttoptr(arguments[1], byte_pointer),
                arguments[2],
                ir.Constant(ir.IntType(1), 0),
            ],
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _linked(symbol: str) -> Any:
    """Return a function of three numbers that ``build`` links in."""

    @intrinsic
    def call(typing_context: Any, first: Any, second: Any, third: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(_INT64, [_INT64] * 3)
            function = cgutils.get_or_insert_function(builder.module, kind, symbol)
            return builder.call(function, arguments)

        return types.int64(types.int64, types.int64, types.int64), generate

    return call


fold_crc = _linked(crc_fold.SYMBOL)
sha1_blocks = _linked(sha1.SYMBOL)
sha1_blocks_sha = _linked(sha1.SYMBOL_SHA)


COMPILE_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
