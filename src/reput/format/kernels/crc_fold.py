"""CRC-32 by carry-less multiplication, as LLVM text, since numba has no such instruction.

Four runs of 16 bytes are folded forward at once, then one at a time, then reduced (Barrett). The
method and its constants are those of Gopal et al., "Fast CRC Computation for Generic Polynomials
Using PCLMULQDQ Instruction" (Intel, 2009), for the bit-reflected polynomial 0xEDB88320: x to the
power of N bits, modulo the polynomial.

It is compiled for processors that have the instruction, independent of the target of the other
code; ``native.crc_tables`` finds out at run time whether this processor has it. On other
architectures there is a function that is never called.
"""

SYMBOL = "reput_fold_crc"
BYTES_MIN = 64
"""Minimum size of the input, bytes, which must be whole runs of 16."""

_FOLD_4 = (0x154442BD4, 0x1C6E41596)
_FOLD_1 = (0x1751997D0, 0xCCAA009E)
_TO_64 = (0x163CD6124, 0)
_BARRETT = (0x1DB710641, 0x1F7011641)

_VECTOR = "<2 x i64>"
_LOW_32 = "<i64 4294967295, i64 4294967295>"


def _constant(pair: tuple[int, int]) -> str:
    return f"{_VECTOR} <i64 {pair[0]}, i64 {pair[1]}>"


def _multiply(name: str, a: str, b: str, halves: int) -> str:
    call = f"call {_VECTOR} @llvm.x86.pclmulqdq({_VECTOR} {a}, {b}, i8 {halves})"
    return f"  {name} = {call}\n"


def _load(name: str, address: str, count: int) -> str:
    lines = [f"  {name}p = inttoptr i64 {address} to ptr\n"]
    for i in range(count):
        lines.append(f"  {name}p{i} = getelementptr i8, ptr {name}p, i64 {16 * i}\n")
        lines.append(f"  {name}{i} = load {_VECTOR}, ptr {name}p{i}, align 1\n")
    return "".join(lines)


def _fold(name: str, value: str, data: str, constants: tuple[int, int]) -> str:
    call = f"call {_VECTOR} @fold({_VECTOR} {value}, {_VECTOR} {data}, {_constant(constants)})"
    return f"  {name} = {call}\n"


def _shift(name: str, value: str, bits: int) -> str:
    return (
        f"  {name}w = bitcast {_VECTOR} {value} to i128\n"
        f"  {name}s = lshr i128 {name}w, {bits}\n"
        f"  {name} = bitcast i128 {name}s to {_VECTOR}\n"
    )


def text(triple: str) -> str:
    """Return LLVM text of ``i64 reput_fold_crc(i64 crc, i64 address, i64 size)``.

    It continues a CRC, which is not inverted, over ``size`` bytes.
    """
    head = f"define i64 @{SYMBOL}(i64 %crc, i64 %address, i64 %size)"
    if not triple.startswith("x86_64"):
        return f"{head} {{\n  ret i64 0\n}}\n"
    names = range(4)
    return "".join(
        (
            f"declare {_VECTOR} @llvm.x86.pclmulqdq({_VECTOR}, {_VECTOR}, i8 immarg)\n",
            f"define {_VECTOR} @fold",
            f"({_VECTOR} %x, {_VECTOR} %data, {_VECTOR} %k) alwaysinline #0 {{\n",
            _multiply("%low", "%x", f"{_VECTOR} %k", 0x00),
            _multiply("%high", "%x", f"{_VECTOR} %k", 0x11),
            f"  %both = xor {_VECTOR} %low, %high\n",
            f"  %folded = xor {_VECTOR} %both, %data\n",
            f"  ret {_VECTOR} %folded\n}}\n",
            f"{head} #0 {{\nentry:\n",
            _load("%d", "%address", 4),
            f"  %start = insertelement {_VECTOR} zeroinitializer, i64 %crc, i32 0\n",
            f"  %first = xor {_VECTOR} %d0, %start\n",
            "  %end = add i64 %address, %size\n",
            f"  %after = add i64 %address, {BYTES_MIN}\n",
            "  br label %four\nfour:\n",
            "  %at = phi i64 [ %after, %entry ], [ %next, %four.fold ]\n",
            *(
                f"  %x{i} = phi {_VECTOR} [ {'%first' if i == 0 else f'%d{i}'}, %entry ], "
                f"[ %y{i}, %four.fold ]\n"
                for i in names
            ),
            "  %next = add i64 %at, 64\n  %has.four = icmp sle i64 %next, %end\n",
            "  br i1 %has.four, label %four.fold, label %join\nfour.fold:\n",
            _load("%e", "%at", 4),
            *(_fold(f"%y{i}", f"%x{i}", f"%e{i}", _FOLD_4) for i in names),
            "  br label %four\njoin:\n",
            _fold("%j1", "%x0", "%x1", _FOLD_1),
            _fold("%j2", "%j1", "%x2", _FOLD_1),
            _fold("%j3", "%j2", "%x3", _FOLD_1),
            "  br label %one\none:\n",
            "  %at1 = phi i64 [ %at, %join ], [ %next1, %one.fold ]\n",
            f"  %w = phi {_VECTOR} [ %j3, %join ], [ %v, %one.fold ]\n",
            "  %next1 = add i64 %at1, 16\n  %has.one = icmp sle i64 %next1, %end\n",
            "  br i1 %has.one, label %one.fold, label %reduce\none.fold:\n",
            _load("%f", "%at1", 1),
            _fold("%v", "%w", "%f0", _FOLD_1),
            "  br label %one\nreduce:\n",
            _multiply("%m1", "%w", _constant(_FOLD_1), 0x10),
            _shift("%h1", "%w", 64),
            f"  %n1 = xor {_VECTOR} %h1, %m1\n",
            _shift("%h2", "%n1", 32),
            f"  %l2 = and {_VECTOR} %n1, {_LOW_32}\n",
            _multiply("%m2", "%l2", _constant(_TO_64), 0x00),
            f"  %n2 = xor {_VECTOR} %h2, %m2\n",
            f"  %l3 = and {_VECTOR} %n2, {_LOW_32}\n",
            _multiply("%m3", "%l3", _constant(_BARRETT), 0x10),
            f"  %l4 = and {_VECTOR} %m3, {_LOW_32}\n",
            _multiply("%m4", "%l4", _constant(_BARRETT), 0x00),
            f"  %n3 = xor {_VECTOR} %n2, %m4\n",
            f"  %words = bitcast {_VECTOR} %n3 to <4 x i32>\n",
            "  %word = extractelement <4 x i32> %words, i32 1\n",
            "  %result = zext i32 %word to i64\n  ret i64 %result\n}\n",
            'attributes #0 = { nounwind "target-features"="+pclmul,+sse2" }\n',
        )
    )
