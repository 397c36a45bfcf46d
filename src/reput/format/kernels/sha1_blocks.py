"""SHA-1 of whole blocks, as LLVM text: numba's integers have 64 bits, which take twice the time.

There are two functions: one with the instructions for SHA-1 that x86 processors have, one for all
others. ``native.has_sha`` finds out at run time which of them this processor can run. The rounds
are those of FIPS 180-4; what each instruction does is in Gulley et al., "Intel SHA Extensions"
(2013).
"""

SYMBOL = "reput_sha1_blocks"
SYMBOL_SHA = "reput_sha1_blocks_sha"
BLOCK_BYTES = 64

_CONSTANTS = (0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6)
_ROUNDS = 80
_VECTOR = "<4 x i32>"
_BYTES = "<16 x i8>"
_REVERSED = "<4 x i32> <i32 3, i32 2, i32 1, i32 0>"
_REVERSED_BYTES = f"<16 x i32> <{', '.join(f'i32 {15 - i}' for i in range(16))}>"
_PARAMETERS = "(i64 %state, i64 %data, i64 %count)"


def text(triple: str) -> str:
    """Return LLVM text of both functions.

    ``i64 NAME(i64 state, i64 data, i64 count)`` continues a hash over ``count`` blocks at the
    address ``data``. The state is five numbers of 32 bits in native order. The result is 0.
    """
    return _portable() + _with_sha(triple)


class _Lines:
    """Lines of a function; each result gets the next name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def add(self, line: str) -> None:
        """Add a line without a result."""
        self.lines.append(f"  {line}\n")

    def value(self, instruction: str) -> str:
        """Add an instruction; return the name of its result."""
        self._count += 1
        self.add(f"%v{self._count} = {instruction}")
        return f"%v{self._count}"


def _looped(name: str, kind: str, words: list[str], body: str, results: list[str]) -> str:
    """Return a function that runs ``body`` for each block.

    ``words`` are the names of the state in the body, ``results`` those after it; the block's
    address is ``%block`` there. The state is loaded by ``%first.N`` and stored from ``%last.N``.
    """
    states = "".join(
        f"  {word} = phi {kind} [ %first.{i}, %entry ], [ {result}, %body ]\n"
        for i, (word, result) in enumerate(zip(words, results, strict=True))
    )
    return (
        f"  %size = shl i64 %count, 6\n  %end = add i64 %data, %size\n  br label %loop\nloop:\n"
        f"  %block.at = phi i64 [ %data, %entry ], [ %block.next, %body ]\n{states}"
        f"  %has.block = icmp ult i64 %block.at, %end\n"
        f"  br i1 %has.block, label %body, label %done\nbody:\n"
        f"  %block = inttoptr i64 %block.at to ptr\n{body}"
        f"  %block.next = add i64 %block.at, {BLOCK_BYTES}\n  br label %loop\ndone:\n"
    )


# --- for all processors -------------------------------------------------------------------------


def _chosen(lines: _Lines, number: int, b: str, c: str, d: str) -> str:
    """Return the function of a round."""
    if number // 20 == 0:
        either = lines.value(f"xor i32 {c}, {d}")
        kept = lines.value(f"and i32 {b}, {either}")
        return lines.value(f"xor i32 {d}, {kept}")
    if number // 20 == 2:
        both = lines.value(f"and i32 {b}, {c}")
        any_ = lines.value(f"or i32 {b}, {c}")
        kept = lines.value(f"and i32 {d}, {any_}")
        return lines.value(f"or i32 {both}, {kept}")
    first = lines.value(f"xor i32 {b}, {c}")
    return lines.value(f"xor i32 {first}, {d}")


def _rotated(lines: _Lines, value: str, bits: int) -> str:
    return lines.value(f"call i32 @llvm.fshl.i32(i32 {value}, i32 {value}, i32 {bits})")


def _message_word(lines: _Lines, number: int, words: list[str]) -> str:
    """Return a word of the message schedule."""
    if number < 16:
        place = lines.value(f"getelementptr i8, ptr %block, i64 {4 * number}")
        loaded = lines.value(f"load i32, ptr {place}, align 1")
        return lines.value(f"call i32 @llvm.bswap.i32(i32 {loaded})")
    mixed = words[number - 3]
    for distance in (8, 14, 16):
        mixed = lines.value(f"xor i32 {mixed}, {words[number - distance]}")
    return _rotated(lines, mixed, 1)


def _portable() -> str:
    lines = _Lines()
    start = [f"%s{i}" for i in range(5)]
    a, b, c, d, e = start
    words: list[str] = []
    for number in range(_ROUNDS):
        words.append(_message_word(lines, number, words))
        total = _rotated(lines, a, 5)
        for term in (_chosen(lines, number, b, c, d), e, words[-1]):
            total = lines.value(f"add i32 {total}, {term}")
        total = lines.value(f"add i32 {total}, {_CONSTANTS[number // 20]}")
        a, b, c, d, e = total, a, _rotated(lines, b, 30), c, d
    results = [
        lines.value(f"add i32 {before}, {after}")
        for before, after in zip(start, (a, b, c, d, e), strict=True)
    ]
    places = range(5)
    return "".join(
        (
            "declare i32 @llvm.fshl.i32(i32, i32, i32)\ndeclare i32 @llvm.bswap.i32(i32)\n",
            f"define i64 @{SYMBOL}{_PARAMETERS} nounwind {{\nentry:\n",
            "  %words = inttoptr i64 %state to ptr\n",
            *(f"  %p{i} = getelementptr i8, ptr %words, i64 {4 * i}\n" for i in places),
            *(f"  %first.{i} = load i32, ptr %p{i}, align 1\n" for i in places),
            _looped(SYMBOL, "i32", start, "".join(lines.lines), results),
            *(f"  store i32 {word}, ptr %p{i}, align 1\n" for i, word in enumerate(start)),
            "  ret i64 0\n}\n",
        )
    )


# --- with instructions for SHA-1 ----------------------------------------------------------------


def _reversed(lines: _Lines, value: str) -> str:
    """Return a vector of four words in reverse order, as the instructions have them."""
    return lines.value(f"shufflevector {_VECTOR} {value}, {_VECTOR} poison, {_REVERSED}")


def _call(lines: _Lines, name: str, a: str, b: str, more: str = "") -> str:
    call = f"call {_VECTOR} @llvm.x86.sha1{name}({_VECTOR} {a}, {_VECTOR} {b}{more})"
    return lines.value(call)


def _message_vector(lines: _Lines, number: int, vectors: list[str]) -> str:
    """Return four words of the message schedule."""
    if number < 4:
        place = lines.value(f"getelementptr i8, ptr %block, i64 {16 * number}")
        loaded = lines.value(f"load {_BYTES}, ptr {place}, align 1")
        turned = lines.value(f"shufflevector {_BYTES} {loaded}, {_BYTES} poison, {_REVERSED_BYTES}")
        return lines.value(f"bitcast {_BYTES} {turned} to {_VECTOR}")
    mixed = _call(lines, "msg1", vectors[number - 4], vectors[number - 3])
    mixed = lines.value(f"xor {_VECTOR} {mixed}, {vectors[number - 2]}")
    return _call(lines, "msg2", mixed, vectors[number - 1])


def _with_sha(triple: str) -> str:
    head = f"define i64 @{SYMBOL_SHA}{_PARAMETERS}"
    if not triple.startswith("x86_64"):
        return f"{head} {{\n  ret i64 0\n}}\n"
    lines = _Lines()
    before, current = "", "%abcd"
    vectors: list[str] = []
    for number in range(_ROUNDS // 4):
        vectors.append(_message_vector(lines, number, vectors))
        if number == 0:
            e = lines.value(f"add {_VECTOR} %e, {vectors[0]}")
        else:
            e = _call(lines, "nexte", before, vectors[number])
        before = current
        current = _call(lines, "rnds4", before, e, f", i8 {number // 5}")
    last_e = _call(lines, "nexte", before, "%e")
    last = lines.value(f"add {_VECTOR} %abcd, {current}")
    declared = ("nexte", "msg1", "msg2")
    return "".join(
        (
            *(
                f"declare {_VECTOR} @llvm.x86.sha1{name}({_VECTOR}, {_VECTOR})\n"
                for name in declared
            ),
            f"declare {_VECTOR} @llvm.x86.sha1rnds4({_VECTOR}, {_VECTOR}, i8 immarg)\n",
            f"{head} #1 {{\nentry:\n",
            "  %words = inttoptr i64 %state to ptr\n",
            "  %word.4 = getelementptr i8, ptr %words, i64 16\n",
            f"  %loaded = load {_VECTOR}, ptr %words, align 1\n",
            f"  %first.0 = shufflevector {_VECTOR} %loaded, {_VECTOR} poison, {_REVERSED}\n",
            "  %loaded.4 = load i32, ptr %word.4, align 1\n",
            f"  %first.1 = insertelement {_VECTOR} zeroinitializer, i32 %loaded.4, i32 3\n",
            _looped(SYMBOL_SHA, _VECTOR, ["%abcd", "%e"], "".join(lines.lines), [last, last_e]),
            f"  %stored = shufflevector {_VECTOR} %abcd, {_VECTOR} poison, {_REVERSED}\n",
            f"  store {_VECTOR} %stored, ptr %words, align 1\n",
            f"  %stored.4 = extractelement {_VECTOR} %e, i32 3\n",
            "  store i32 %stored.4, ptr %word.4, align 1\n  ret i64 0\n}\n",
            'attributes #1 = { nounwind "target-features"="+sha,+ssse3,+sse4.1" }\n',
        )
    )
