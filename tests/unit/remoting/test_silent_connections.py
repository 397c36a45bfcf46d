"""Connections that have sent nothing yet: the oldest of an address, or of all."""

from reput.remoting.silent_connections import SilentConnections

EVER = 1e9


def test_the_oldest_is_the_one_that_was_added_first_and_is_still_silent() -> None:
    silent: SilentConnections[str] = SilentConnections()
    assert silent.oldest(EVER) is None
    for second, (name, address) in enumerate([("a", "1"), ("b", "2"), ("c", "1"), ("d", "2")]):
        silent.add(name, address, float(second))
    assert (silent.oldest(EVER), silent.oldest(EVER, "1"), silent.oldest(EVER, "2")) == (
        *("a", "a", "b"),
    )
    silent.remove("a")
    assert (silent.oldest(EVER), silent.oldest(EVER, "1")) == ("b", "c")
    silent.remove("c")
    assert silent.oldest(EVER, "1") is None
    assert silent.oldest(EVER) == "b"


def test_a_connection_that_was_added_later_is_none_of_the_old_ones() -> None:
    silent: SilentConnections[str] = SilentConnections()
    silent.add("a", "1", 10.0)
    assert silent.oldest(9.9) is None
    assert silent.oldest(9.9, "1") is None
    assert silent.oldest(10.0) == "a"


def test_nothing_remains_of_removed_connections() -> None:
    silent: SilentConnections[str] = SilentConnections()
    silent.add("a", "1", 0.0)
    silent.add("b", "1", 0.0)
    for name in ("a", "a", "b", "never added"):
        silent.remove(name)
    assert len(silent) == 0
    assert silent.oldest(EVER, "1") is None
    silent.add("a", "1", 1.0)
    assert silent.oldest(EVER, "1") == "a"


def test_the_oldest_is_found_without_a_look_at_all_others() -> None:
    looked = 0

    class Connection:
        def __hash__(self) -> int:
            nonlocal looked
            looked += 1
            return id(self)

    silent: SilentConnections[Connection] = SilentConnections()
    for _ in range(1_000):
        silent.add(Connection(), "1", 0.0)
    looked = 0
    for address in (None, "1"):
        oldest = silent.oldest(EVER, address)
        assert oldest is not None
        silent.remove(oldest)
    assert looked < 20
