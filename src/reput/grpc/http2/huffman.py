"""The Huffman code of header strings. Pure. Source: RFC 7541, 5.2 and appendix B.

Strings are decoded a byte at a time, by a state machine: the state is a node of the code's tree.
Its steps are computed when they first occur: headers use few of the 65,536.
"""

from reput.errors import Http2Error
from reput.grpc.http2.frames import ErrorCode

# fmt: off
_LENGTHS = bytes((
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
))
# fmt: on
"""Bits of the code of each byte, and of the end of a string. Codes of equal length follow the order
of their bytes, so that the lengths define all codes."""

_END = 256


def lengths() -> list[tuple[int, int]]:
    """Return length and byte of each code, in the order of the codes; 256 is the end."""
    return sorted((length, byte) for byte, length in enumerate(_LENGTHS))


def _tree() -> list[list[int]]:
    """Return the nodes: two children each, a node if not negative, or ``-1 - byte``."""
    nodes: list[list[int]] = [[0, 0]]
    code, bits = 0, 0
    for length, byte in lengths():
        code <<= length - bits
        bits = length
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes[node][bit] = len(nodes)
                nodes.append([0, 0])
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - byte
        code += 1
    return nodes


_NODES = _tree()


def _endings() -> frozenset[int]:
    """Return the states in which a string may end: fewer than 8 bits, all ones."""
    node, states = 0, [0]
    for _ in range(7):
        node = _NODES[node][1]
        states.append(node << 8)
    return frozenset(states)


_ENDINGS = _endings()


_PIECES: dict[bytes, bytes] = {}


class _Steps(dict[int, tuple[int, bytes]]):
    """Steps: ``node << 8 | byte`` -> ``next node << 8``, decoded bytes. All take 10 MB."""

    def __missing__(self, key: int) -> tuple[int, bytes]:
        node, decoded = key >> 8, bytearray()
        for shift in range(7, -1, -1):
            node = _NODES[node][key >> shift & 1]
            if node < 0:
                if node == -1 - _END:
                    raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a string has an end inside")
                decoded.append(-1 - node)
                node = 0
        piece = bytes(decoded)
        step = self[key] = node << 8, _PIECES.setdefault(piece, piece)
        return step


_STEPS = _Steps()


def decode(data: bytes) -> bytes:
    """Decode a string.

    Raises:
        Http2Error: It contains the code of the end, or its last bits are no padding.
    """
    steps, state, pieces = _STEPS, 0, []
    for byte in data:
        state, piece = steps[state | byte]
        pieces.append(piece)
    if state not in _ENDINGS:
        raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a string ends inside of a code")
    return b"".join(pieces)
