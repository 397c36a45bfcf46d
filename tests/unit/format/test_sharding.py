import pytest

from reput.format import sharding


@pytest.mark.parametrize(
    ("key", "count", "index"),
    [
        # String.hashCode() of "TagA" and "abc", as documented or computed by Java.
        ("TagA", 4, 2598919 % 4),
        ("abc", 5, 96354 % 5),
        ("", 7, 0),
        # hashCode() is Integer.MIN_VALUE: -2147483648 % 3 is -2 in Java.
        ("polygenelubricants", 3, 2),
    ],
)
def test_the_queue_of_a_key_is_that_of_java(key: str, count: int, index: int) -> None:
    assert sharding.queue_index(key, count) == index
