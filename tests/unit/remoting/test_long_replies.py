"""Bodies that all clients share: made once at a time, and never older than a request."""

import pytest

from reput.errors import LimitExceeded
from reput.remoting import limits
from reput.remoting.long_replies import COUNTED_BYTES, LongBody, SharedReplies, counting
from reput.remoting.time_slices import Steps, run_whole

STEPS = 200


class Table:
    """Contents that change, and the making of their listing."""

    def __init__(self) -> None:
        self.replies = SharedReplies()
        self.content = b"0"
        self.made_steps = 0

    def ask(self, version: bytes | None = None) -> Steps[bytes]:
        return self.replies.ask("table", self._make, version)

    def _make(self) -> Steps[bytes]:
        content = self.content
        for _ in range(STEPS):
            self.made_steps += 1
            yield
        return content


def in_turns(asking: list[Steps[bytes]]) -> list[bytes]:
    """Return what each gets when they take turns."""
    bodies: dict[int, bytes] = {}
    while len(bodies) < len(asking):
        for number, work in enumerate(asking):
            if number not in bodies:
                try:
                    next(work)
                except StopIteration as end:
                    bodies[number] = end.value
    return [bodies[number] for number in range(len(asking))]


def test_a_body_is_made_once_for_all_that_wait() -> None:
    table = Table()
    first = table.ask()
    next(first)
    # These come after its begin: they share the next one.
    others = [table.ask() for _ in range(100)]
    assert in_turns([first, *others]) == [b"0"] * 101
    assert table.made_steps == 2 * STEPS


def test_no_body_is_older_than_its_request() -> None:
    table = Table()
    first = table.ask()
    next(first)
    table.content = b"1"
    second = table.ask()
    next(second)
    assert in_turns([first, second]) == [b"0", b"1"]
    table.content = b"2"
    assert run_whole(table.ask()) == b"2"


def test_a_body_whose_version_is_in_force_is_kept() -> None:
    table = Table()
    assert run_whole(table.ask(b"v0")) == b"0"
    assert run_whole(table.ask(b"v0")) == b"0"
    assert table.made_steps == STEPS
    table.content = b"1"
    assert run_whole(table.ask(b"v1")) == b"1"
    assert table.made_steps == 2 * STEPS


def test_a_client_that_leaves_does_not_end_the_work_of_others() -> None:
    table = Table()
    first, second = table.ask(b"v"), table.ask(b"v")
    next(first)
    next(second)
    first.close()
    assert run_whole(second) == b"0"
    assert table.made_steps == STEPS


def test_all_that_wait_get_the_error() -> None:
    replies = SharedReplies()

    def make() -> Steps[bytes]:
        yield
        raise limits.REPLY_BYTES.exceeded()

    asking = [replies.ask("table", make, b"v") for _ in range(3)]
    for work in asking:
        with pytest.raises(LimitExceeded, match="reply_bytes"):
            run_whole(work)


def test_a_body_is_counted_while_it_is_made() -> None:
    counts: list[int] = []
    with counting(counts.append):
        body = LongBody("ask for less")
    for _ in range(3 * COUNTED_BYTES // 100):
        body.add_text(bytes(99))
    assert sum(counts) <= 3 * COUNTED_BYTES < sum(counts) + COUNTED_BYTES
    assert all(count >= COUNTED_BYTES for count in counts)
