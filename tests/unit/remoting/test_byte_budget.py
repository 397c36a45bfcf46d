"""Memory that connections may occupy in a server, per address and in total."""

from hypothesis import given, strategies as st

from reput.limits import Limit
from reput.remoting.byte_budget import ByteBudget

IN_ALL = Limit("in_all", "bytes", 100)
PER_ADDRESS = Limit("per_address", "bytes of an address", 60)


def test_no_connection_is_dropped_within_the_limits() -> None:
    budget: ByteBudget[str] = ByteBudget(IN_ALL, PER_ADDRESS)
    assert budget.set("a", "10.0.0.1", 60) is None
    assert budget.set("b", "10.0.0.2", 40) is None
    assert budget.total_bytes == 100


def test_the_largest_connection_of_an_address_is_dropped() -> None:
    budget: ByteBudget[str] = ByteBudget(IN_ALL, PER_ADDRESS)
    budget.set("large elsewhere", "10.0.0.9", 39)
    budget.set("small", "10.0.0.1", 21)
    budget.set("large", "10.0.0.1", 35)
    assert budget.set("new", "10.0.0.1", 5) == ("large", PER_ADDRESS)


def test_the_oldest_of_equal_connections_is_dropped() -> None:
    budget: ByteBudget[str] = ByteBudget(IN_ALL, PER_ADDRESS)
    for number in range(3):
        budget.set(f"c{number}", f"10.0.0.{number}", 33)
    assert budget.set("c3", "10.0.0.3", 33) == ("c0", IN_ALL)


def test_a_smaller_or_closed_connection_makes_room() -> None:
    budget: ByteBudget[str] = ByteBudget(IN_ALL, PER_ADDRESS)
    budget.set("a", "10.0.0.1", 60)
    budget.set("a", "10.0.0.1", 10)
    assert budget.set("b", "10.0.0.1", 50) is None
    budget.set("a", "10.0.0.1", 0)
    budget.set("b", "10.0.0.1", 0)
    assert (budget.total_bytes, len(budget)) == (0, 0)


def test_a_connection_is_chosen_without_a_look_at_all_others() -> None:
    """With a thousand of them, each that exceeded a limit took as long as the others together."""
    compared = 0

    class Connection:
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        def __hash__(self) -> int:
            nonlocal compared
            compared += 1
            return id(self)

    budget: ByteBudget[Connection] = ByteBudget(IN_ALL.at(1_000), PER_ADDRESS.at(1_000))
    for _ in range(1_000):
        assert budget.set(Connection(), "10.0.0.1", 1) is None
    compared = 0
    assert budget.set(Connection(), "10.0.0.1", 1) is not None
    assert compared < 50


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 50)),
        max_size=60,
    )
)
def test_sums_equal_those_of_a_plain_table(steps: list[tuple[int, int]]) -> None:
    budget: ByteBudget[int] = ByteBudget(IN_ALL, PER_ADDRESS)
    table: dict[int, int] = {}
    for connection, kept in steps:
        address = str(connection % 3)
        excess = budget.set(connection, address, kept)
        table[connection] = kept
        of_address = sum(size for other, size in table.items() if str(other % 3) == address)
        assert budget.total_bytes == sum(table.values())
        if of_address > PER_ADDRESS.maximum:
            assert excess is not None
            assert excess[1] is PER_ADDRESS
            assert str(excess[0] % 3) == address
        elif sum(table.values()) > IN_ALL.maximum:
            assert excess is not None
            assert excess[1] is IN_ALL
            assert 2 * table[excess[0]] > max(table.values())
        else:
            assert excess is None
