"""Cases of a test in a loop: an error names its case. A parametrized test costs more to collect."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def case(*names: object) -> Iterator[None]:
    """Run a case; an error in it, such as that of an ``assert``, has a note with its names."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(map(str, names))}")
        raise
