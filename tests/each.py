"""Rows of a table as one test, which names the row that fails.

    @each(("text", "number"), [("1", 1), ("-2", -2)])
    def test_a_text_is_a_number(text: str, number: int) -> None: ...

For hundreds of rows that take microseconds: as many cases of pytest would take seconds. Rows share
the fixtures of the test, so it is not for tests that write into ``tmp_path``.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Turn a test of a row into a test of all rows, as ``pytest.mark.parametrize`` names them."""
    keys = (names,) if isinstance(names, str) else names
    table = [(row,) if isinstance(names, str) else tuple(row) for row in rows]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for values in table:
                row = dict(zip(keys, values, strict=True))
                try:
                    test(**row, **fixtures)
                except BaseException as error:
                    error.add_note(f"row: {row!s:.500}")
                    raise

        # pytest must see the fixtures alone.
        del run.__wrapped__
        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
