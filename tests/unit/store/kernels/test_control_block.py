"""The words of the control block: each field has separate words, a unit and a meaning."""

import pytest

from reput.store.kernels import control_block as state

LAYOUTS = [
    (state.BLOCK, state.BLOCK_WORDS),
    (state.TOPIC_ROW, state.TOPIC_WORDS),
    (state.QUEUE_ROW, state.QUEUE_WORDS),
    (state.READER_ROW, state.READER_WORDS),
    (state.DELIVERY_ROW, state.DELIVERY_WORDS),
]
UNITS = {"address", "position", "bytes", "count", "number", "ms", "flag", "bits"}
UNITS |= {"physical offset", "queue offset", "consumer offset"}


def numbers(start: str) -> dict[str, int]:
    return {name: n for name, n in vars(state).items() if name.startswith(start)}


@pytest.mark.parametrize(("layout", "size"), LAYOUTS, ids=["block", *"tqrd"])
def test_each_field_has_separate_words(layout: state.Layout, size: int) -> None:
    words = [field.number + i for field in layout.fields for i in range(field.words)]
    assert words == list(range(size))


@pytest.mark.parametrize(("layout", "size"), LAYOUTS, ids=["block", *"tqrd"])
def test_a_field_is_the_constant_of_its_name(layout: state.Layout, size: int) -> None:
    for field in layout.fields:
        assert getattr(state, field.name) == field.number
        assert field.unit in UNITS
        assert field.meaning


def test_reasons_to_stop_differ() -> None:
    reasons = numbers("STOP_")
    del reasons["STOP_ROW"]
    assert sorted(reasons.values()) == list(range(len(reasons)))


def test_each_mark_is_a_separate_bit() -> None:
    assert state.MARK_DIRTY & state.MARK_TOUCHED == 0
