"""Bodies are shown whole, or with what was left out; nothing in them is trusted."""

import dataclasses
import json
import zlib

import pytest
from hypothesis import given, strategies as st

from reput.console import bodies
from reput.console.bodies import BodyKind, Node
from reput.format import sys_flag as flags
from reput.format.message import Host, StoredMessage


def message(body: bytes, sys_flag: int = 0) -> StoredMessage:
    return StoredMessage(
        topic="Orders",
        queue_id=0,
        body=body,
        sys_flag=sys_flag,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=0,
        born_host=Host(b"\x7f\0\0\1", 1),
        store_timestamp=0,
        store_host=Host(b"\x7f\0\0\1", 1),
    )


def test_json_is_a_tree_and_large_integers_keep_their_digits() -> None:
    view = bodies.view(message(b'{"id": 9007199254740993, "ok": true, "n": [1.50, null, "x"]}'))
    assert view.kind is BodyKind.JSON
    assert not view.is_cut
    assert view.tree == Node(
        "",
        "object",
        "3",
        (
            Node("id", "integer", "9007199254740993"),
            Node("ok", "boolean", "true"),
            Node(
                "n",
                "array",
                "3",
                (
                    Node("0", "number", "1.50"),
                    Node("1", "null", "null"),
                    Node("2", "string", "x"),
                ),
            ),
        ),
    )


def test_a_name_that_repeats_is_shown_twice() -> None:
    tree = bodies.view(message(b'{"a": 1, "a": 2}')).tree
    assert tree is not None
    assert [(node.name, node.text) for node in tree.nodes] == [("a", "1"), ("a", "2")]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[1, 2", "not JSON"),
        (b"[NaN]", "NaN is no number"),
        (b"[" * 1_000 + b"]" * 1_000, "nested over 40 deep"),
        (b"[" * 30_000 + b"]" * 30_000, "nested over 40 deep"),
        (b"[" + b"1," * 5_000 + b"1]", "over 4000 values"),
    ],
)
def test_what_is_no_tree_is_text_and_says_why(body: bytes, reason: str) -> None:
    view = bodies.view(message(body))
    assert view.kind is BodyKind.TEXT
    assert view.tree is None
    assert reason in (view.problem or "")


def test_long_text_is_cut_between_characters_and_says_so() -> None:
    body = ("é" * 40_000).encode()
    view = bodies.view(message(b"x" + body))
    assert (view.kind, view.is_cut, view.size_bytes) == (BodyKind.TEXT, True, 80_001)
    assert view.shown_bytes == 65_535  # the 65,536th byte is the first of two
    assert view.text == "x" + "é" * 32_767


def test_long_json_is_text() -> None:
    view = bodies.view(message(json.dumps(["x" * 70_000]).encode()))
    assert view.kind is BodyKind.TEXT
    assert "over 65536 bytes" in (view.problem or "")


def test_bytes_are_hex_with_positions() -> None:
    view = bodies.view(message(bytes(range(0x30, 0x42)) + b"\xff"))
    assert view.kind is BodyKind.HEX
    assert view.text == (
        "00000000  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f  0123456789:;<=>?\n"
        "00000010  40 41 ff                                         @A."
    )


def test_long_bytes_are_cut_and_say_so() -> None:
    view = bodies.view(message(b"\xff" * 10_000))
    assert (view.shown_bytes, view.size_bytes, view.is_cut) == (4096, 10_000, True)


def test_a_compressed_body_says_so() -> None:
    stored = zlib.compress(b"hello " * 100)
    view = bodies.view(message(stored, flags.COMPRESSED))
    assert (view.compression, view.text) == ("zlib", "hello " * 100)
    assert (view.stored_bytes, view.size_bytes) == (len(stored), 600)


def test_a_body_that_cannot_be_decompressed_is_shown_as_stored() -> None:
    view = bodies.view(message(b"plain", flags.COMPRESSED))
    assert view.text == "plain"
    assert (view.problem or "").startswith("shown as stored: body is not zlib")


def test_control_characters_make_a_body_bytes() -> None:
    assert bodies.view(message(b"a\x1b[31mb")).kind is BodyKind.HEX
    assert bodies.view(message(b"")).kind is BodyKind.EMPTY


@given(st.binary(max_size=300), st.booleans())
def test_any_body_has_a_view_and_a_preview(body: bytes, is_compressed: bool) -> None:
    view = bodies.view(message(body, flags.COMPRESSED if is_compressed else 0))
    assert dataclasses.is_dataclass(view)
    assert "\n" not in bodies.preview(body)
    assert len(bodies.preview(body)) <= bodies.PREVIEW_LETTERS + 2
