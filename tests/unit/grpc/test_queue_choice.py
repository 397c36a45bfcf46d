"""Queues of message groups, with vectors that Guava 31 and 32 gave."""

import pytest

from reput.grpc.queue_choice import queue_index


@pytest.mark.parametrize(
    ("group", "expected"),
    [("group-1", (0, 1, 7, 15)), ("order", (0, 0, 0, 0)), ("订单", (0, 1, 7, 7))],
)
def test_queues_are_those_of_guava(group: str, expected: tuple[int, ...]) -> None:
    assert tuple(queue_index(group, count) for count in (1, 4, 8, 16)) == expected


def test_further_queue_takes_groups_only_for_itself() -> None:
    groups = [f"group-{number}" for number in range(1000)]
    moved = 0
    for group in groups:
        before, after = queue_index(group, 8), queue_index(group, 9)
        assert after in (before, 8)
        moved += after == 8
    assert 60 < moved < 170  # a ninth


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("polygenelubricants", (0, 1, 2, 2, 2, 2, 2, 185)),  # Integer.MIN_VALUE
        ("TopicTest", (0, 1, 2, 2, 2, 2, 2, 633)),
    ],
)
def test_negative_hash_is_sign_extended(group: str, expected: tuple[int, ...]) -> None:
    counts = (1, 2, 3, 4, 7, 8, 16, 1000)
    assert tuple(queue_index(group, count) for count in counts) == expected
