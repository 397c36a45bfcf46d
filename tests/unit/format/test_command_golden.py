"""Frames that RocketMQ wrote, and their decoded form in RocketMQ; see ``interop.record_frames``."""

import json
from pathlib import Path
from typing import Any

import pytest

from cases import each
from reput.format import codes, command
from reput.format.command import Command, Serialization

DATA = Path(__file__).parents[2] / "data" / "remoting"
MANIFEST: list[dict[str, Any]] = json.loads((DATA / "manifest.json").read_text(encoding="ascii"))

pytestmark = pytest.mark.interop


def frame_of(entry: dict[str, Any]) -> bytes:
    return (DATA / entry["file"]).read_bytes()


def expected(entry: dict[str, Any]) -> Command:
    return Command(
        entry["code"],
        entry["opaque"],
        entry["flag"],
        codes.LanguageCode[entry["language"]],
        entry["version"],
        entry["remark"],
        entry["extFields"],
        bytes.fromhex(entry["body"]),
        Serialization[entry["serialization"]],
    )


def test_nothing_is_missing() -> None:
    files = {str(path.relative_to(DATA)) for path in DATA.glob("*/*.frame")}
    assert files == {frame["file"] for frame in MANIFEST}
    for version in ("4.9.7", "5.5.0"):
        mine = [frame for frame in MANIFEST if frame["file"].startswith(version)]
        assert {frame["serialization"] for frame in mine} == {"JSON", "ROCKETMQ"}
        codes_seen = {frame["code"] for frame in mine if not frame["flag"] & command.IS_REPLY}
        assert codes_seen >= {10, 310, 320, 11, 34, 35, 36, 38, 40, 41, 14, 15, 103, 105}


@each("kind", [bytes, bytearray, memoryview])
@each("entry", MANIFEST)
def test_decode(entry: dict[str, Any], kind: type) -> None:
    frame = frame_of(entry)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    decoded = command.decode(kind(frame[4:]))
    # No fields and an empty map of fields are the same to readers.
    decoded.ext_fields = decoded.ext_fields or None
    wanted = expected(entry)
    wanted.ext_fields = wanted.ext_fields or None
    assert decoded == wanted


@each("entry", MANIFEST)
def test_encode_gives_the_same_bytes_in_binary_and_the_same_json(entry: dict[str, Any]) -> None:
    frame = frame_of(entry)
    mine = command.encode(command.decode(frame[4:]))
    if entry["serialization"] == "ROCKETMQ":
        assert mine == frame
        return
    assert int.from_bytes(mine[:4], "big") == len(mine) - 4
    assert json_header(mine) == json_header(frame)
    assert mine[8 + header_length(mine) :] == bytes.fromhex(entry["body"])


@each("entry", MANIFEST)
def test_a_truncated_frame_is_no_frame(entry: dict[str, Any]) -> None:
    frame = frame_of(entry)
    for end in {4, 5, 7, 8, 9, 8 + header_length(frame) // 2, 7 + header_length(frame)}:
        with pytest.raises(command.NotAFrame):
            command.decode(frame[4:end])


def header_length(frame: bytes) -> int:
    return int.from_bytes(frame[5:8], "big")


def json_header(frame: bytes) -> Any:
    assert frame[4] == 0
    return json.loads(frame[8 : 8 + header_length(frame)])
