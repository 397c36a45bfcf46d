"""The words of the control block: each has a place of its own."""

from collections.abc import Callable

import pytest

from reput.store.kernels import control_block as state

BLOCK_END = state.BLOCK_WORDS


def numbers(belongs: Callable[[str], bool]) -> dict[str, int]:
    return {name: n for name, n in vars(state).items() if name.isupper() and belongs(name)}


def is_reason(name: str) -> bool:
    return name.startswith("STOP_") and name != "STOP_ROW"


ROWS = ("TOPIC", "QUEUE", "READER", "DELIVERY")


def is_of_a_row(name: str) -> bool:
    kind, _, rest = name.partition("_")
    return kind in (*ROWS, "KIND", "MARK") and rest != "SLOTS"


def is_of_the_block(name: str) -> bool:
    others = ("BLOCK_WORDS", "PLACE_BYTES", "FILE_IS_GONE", "HELD_HALF", "HELD_TIMER")
    return not (is_reason(name) or is_of_a_row(name) or name in others)


def test_the_block_has_each_word_once() -> None:
    assert sorted(numbers(is_of_the_block).values()) == list(range(BLOCK_END))


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_has_each_word_once(kind: str) -> None:
    words = numbers(lambda name: name.startswith(f"{kind}_") and is_of_a_row(name))
    assert sorted(words.values()) == list(range(getattr(state, f"{kind}_WORDS") + 1))


def test_reasons_to_stop_differ() -> None:
    reasons = numbers(is_reason)
    assert sorted(reasons.values()) == list(range(len(reasons)))


def test_marks_are_bits_of_their_own() -> None:
    assert state.MARK_DIRTY & state.MARK_TOUCHED == 0
