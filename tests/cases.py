"""Cases of a test in a loop, whose errors name them: a parametrized test costs more to collect.

    with case("an empty text"):
        ...

    @each(("text", "number"), [("1", 1), ("-2", -2)])
    def test_a_text_is_a_number(text: str, number: int) -> None: ...

Cases share the fixtures of the test, so they are not for tests that write into ``tmp_path``.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Test = Callable[..., None]


@contextlib.contextmanager
def case(*names: object) -> Iterator[None]:
    """Run a case; an error in it, such as that of an ``assert``, has a note with its names."""
    try:
        yield
    except BaseException as error:  # a failure of pytest.raises is no Exception
        error.add_note(f"in the case {', '.join(map(str, names))}")
        raise


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Turn a test of a row into a test of all rows, as ``pytest.mark.parametrize`` names them."""
    keys = (names,) if isinstance(names, str) else names
    table = [(row,) if isinstance(names, str) else tuple(row) for row in rows]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for values in table:
                row = dict(zip(keys, values, strict=True))
                with case(f"{row!s:.500}"):
                    test(**row, **fixtures)

        # pytest must see the fixtures alone.
        del run.__wrapped__
        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
