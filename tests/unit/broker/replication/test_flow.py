"""The limit of bytes per second to slaves."""

from hypothesis import given, strategies as st

from reput.broker.replication.flow import FlowControl


def test_without_a_limit_all_may_be_sent() -> None:
    assert FlowControl(None).take(1 << 40, 0) == 1 << 40


def test_a_second_grants_no_more_than_the_limit_and_a_burst() -> None:
    control = FlowControl(10_000)
    granted = sum(control.take(1 << 20, now_ms) for now_ms in range(5_000, 6_001, 10))
    # 100 ms at once, then a second.
    assert 10_900 <= granted <= 11_000


def test_an_idle_time_is_no_credit() -> None:
    control = FlowControl(10_000)
    assert control.take(1 << 20, 0) == 1_000
    assert control.take(1 << 20, 0) == 0
    assert control.take(1 << 20, 3_600_000) == 1_000


def test_unused_bytes_can_be_given_back() -> None:
    control = FlowControl(10_000)
    assert control.take(800, 0) == 800
    control.give_back(700)
    assert control.take(1 << 20, 0) == 900


@given(
    st.integers(1024, 1 << 30),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1 << 24)), max_size=50),
)
def test_the_sum_is_bounded(bytes_per_s: int, asked: list[tuple[int, int]]) -> None:
    control, now_ms, granted = FlowControl(bytes_per_s), 0, 0
    for pause_ms, wanted in asked:
        now_ms += pause_ms
        taken = control.take(wanted, now_ms)
        assert 0 <= taken <= wanted
        granted += taken
        assert granted <= bytes_per_s * (now_ms + 100) / 1000 + 1
