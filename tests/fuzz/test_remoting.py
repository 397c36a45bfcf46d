"""Frames made by Hypothesis: encoded frames decode to the same command, and no frame does harm."""

import contextlib
import json
import struct

from hypothesis import given, strategies as st

from reput.errors import NotAFrame
from reput.format import command as commands
from reput.format.codes import LanguageCode
from reput.format.command import Command, Serialization
from reput.remoting.connection import FrameBuffer, find_frame

BUFFER_BYTES = 128

ints = st.integers(-(1 << 31), (1 << 31) - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
"""Text without halves of surrogate pairs: neither JSON nor UTF-8 has them."""
some_text = text.filter(bool)


@st.composite
def any_command(draw: st.DrawFn) -> Command:
    serialization = draw(st.sampled_from(Serialization))
    is_binary = serialization is Serialization.ROCKETMQ
    # The binary header does not distinguish empty from none.
    value = some_text if is_binary else text
    fields = st.dictionaries(text, value, min_size=is_binary, max_size=5)
    return Command(
        code=draw(st.integers(-(1 << 15), (1 << 15) - 1) if is_binary else ints),
        opaque=draw(ints),
        flag=draw(ints),
        language=draw(st.sampled_from(LanguageCode)),
        version=draw(st.integers(0, (1 << 15) - 1)),
        remark=draw(st.none() | value),
        ext_fields=draw(st.none() | fields),
        body=draw(st.binary(max_size=200)),
        serialization=serialization,
    )


def content(frame: bytes) -> bytes:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    return frame[4:]


@given(any_command())
def test_encode_decode_round_trip(command: Command) -> None:
    for buffer in (bytes, bytearray, memoryview):
        assert commands.decode(buffer(content(commands.encode(command)))) == command


@given(any_command(), st.data())
def test_damaged_frames_are_refused_or_decoded(command: Command, data: st.DataObject) -> None:
    frame = bytearray(content(commands.encode(command)))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "number"]))
        position = data.draw(st.integers(0, max(len(frame) - 1, 0)))
        if kind == "flip" and frame:
            frame[position] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del frame[position:]
        elif kind == "insert":
            frame[position:position] = data.draw(st.binary(max_size=8))
        elif kind == "number":
            number = data.draw(st.sampled_from([0, -1, 1 << 30, -(1 << 31), 0xFFFFFF]))
            frame[position : position + 4] = struct.pack(">i", number)
    try:
        decoded = commands.decode(bytes(frame))
    except NotAFrame:
        return
    assert isinstance(decoded, Command)
    assert isinstance(decoded.is_reply, bool)


@given(st.binary(max_size=300), st.sampled_from(Serialization), st.booleans())
def test_random_headers_are_refused_or_decoded(
    data: bytes, serialization: Serialization, is_framed: bool
) -> None:
    mark = struct.pack(">i", serialization << 24 | len(data)) if is_framed else b""
    with contextlib.suppress(NotAFrame):
        assert isinstance(commands.decode(mark + data), Command)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["code", "flag", "language", "opaque", "version", "remark", "extFields", "other"]
        ),
        json_values,
    )
)
def test_any_json_is_a_command_or_no_frame(fields: dict[str, object]) -> None:
    header = json.dumps(fields).encode()
    try:
        command = commands.decode(struct.pack(">i", len(header)) + header)
    except NotAFrame:
        return
    if command.ext_fields is not None:
        assert all(isinstance(value, str) for value in command.ext_fields.values())


@given(
    st.lists(st.binary(min_size=4, max_size=3 * BUFFER_BYTES), max_size=8),
    st.lists(st.integers(1, 2 * BUFFER_BYTES), min_size=1),
    st.lists(st.integers(0, 3), min_size=1),
)
def test_frames_do_not_depend_on_the_pieces(
    frames: list[bytes], pieces: list[int], stops: list[int]
) -> None:
    """This holds also if the reader stops in between, and continues later."""
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    buffer, taken = FrameBuffer(bytearray(BUFFER_BYTES)), []
    turn = 0

    def take(view: memoryview, end: int) -> bool:
        """Take some frames; return whether none is left."""
        nonlocal turn
        turn += 1
        count = stops[turn % len(stops)] or 1 << 30
        position = 0
        while count and (place := find_frame(view, position, end)) is not None and place[1] <= end:
            taken.append(bytes(view[place[0] : place[1]]))
            position = place[1]
            count -= 1
        place = find_frame(view, position, end)
        is_all = place is None or place[1] > end
        buffer.keep(view, position, end)
        return is_all

    while data:
        room = buffer.room()
        assert len(room)
        piece = data[: min(len(room), pieces[turn % len(pieces)])]
        data = data[len(piece) :]
        room[: len(piece)] = piece
        is_all = take(*buffer.filled(len(piece)))
        while not is_all:
            is_all = take(*buffer.kept())
    assert taken == frames
