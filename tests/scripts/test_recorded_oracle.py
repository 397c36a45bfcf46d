"""Recorded answers of Java's classes: their files, and what differs from a JVM."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from interop import recorded_oracle as recorded
from interop.java_oracle import JavaError, Oracle, Word
from interop.recorded_oracle import Call, RecordedOracle

INTEROP = Path(__file__).parents[1] / "interop"
ASKED = recorded.digest(["hash 0061", "hash 0062"])
CALLS = [Call("hash", ASKED, [97, 98]), Call("hash", recorded.digest(["hash 0063"]), "Refused: c")]


def test_a_recording_answers_the_same_requests() -> None:
    oracle: Oracle = RecordedOracle("5.5.0", CALLS)
    assert oracle.ask("hash", [("a",), ("b",)]) == [97, 98]
    with pytest.raises(JavaError, match="Refused: c"):
        oracle.ask_one("hash", "c")


@pytest.mark.parametrize(("command", "word"), [("hash", "c"), ("crc", "b")])
def test_a_recording_has_no_answer_to_other_requests(command: str, word: Word) -> None:
    oracle = RecordedOracle("5.5.0", CALLS)
    with pytest.raises(AssertionError, match=r"the requests of .* are not the recorded ones"):
        oracle.ask(command, [("a",), (word,)])


def test_calls_that_a_test_no_longer_makes_are_missing() -> None:
    oracle = RecordedOracle("5.5.0", CALLS)
    oracle.ask("hash", [("a",), ("b",)])
    with pytest.raises(AssertionError, match="1 calls are missing"):
        oracle.check()


def test_files_keep_calls_and_errors_and_share_equal_ones() -> None:
    recording = {"test_x[a]": {"4.9.7": CALLS, "5.5.0": CALLS, "4.5.2": CALLS[:1]}}
    text = recorded.render(recording)
    assert recorded.parse(text) == recording
    assert text.count('"versions":["4.9.7","5.5.0"]') == 2
    assert text.count("\n") == 3


def test_the_first_differences_are_named() -> None:
    def differ(old: Sequence[Call], new: Sequence[Call]) -> str:
        return "\n".join(recorded.differences(old, new))

    other: list[Any] = [97, 99]
    assert "call 1, hash, request 1: " in differ(CALLS, [Call("hash", ASKED, other), CALLS[1]])
    assert "other requests" in differ(CALLS, [Call("crc", ASKED, [97, 98]), CALLS[1]])
    assert "2 calls are recorded, 1 were made" in differ(CALLS, CALLS[:1])
    assert "Refused: c" in differ(CALLS, [CALLS[0], Call("hash", CALLS[1].asked, [1])])
    assert differ(CALLS, CALLS) == ""


def test_each_recording_is_that_of_a_test() -> None:
    paths = sorted(recorded.FOLDER.glob("*.jsonl"))
    assert paths
    for path in paths:
        text = (INTEROP / f"test_{path.stem}.py").read_text(encoding="utf-8")
        for test in names(path):
            assert re.search(rf"def {test}\(", text), (path.name, test)


def names(path: Path) -> Iterable[str]:
    return {test.partition("[")[0] for test in recorded.parse(path.read_text(encoding="ascii"))}
