"""The control block: reasons to stop, and marks."""

from reput.store.kernels import control_block as state


def numbers(start: str) -> dict[str, int]:
    return {name: n for name, n in vars(state).items() if name.startswith(start)}


def test_reasons_to_stop_differ() -> None:
    reasons = numbers("STOP_")
    assert sorted(reasons.values()) == list(range(len(reasons)))


def test_each_mark_is_a_separate_bit() -> None:
    assert state.MARK_DIRTY & state.MARK_TOUCHED == 0
