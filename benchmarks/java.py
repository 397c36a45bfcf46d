"""The official Java store, measured in the same run as ours where both do the same work."""

import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"


def store(version: str = "4.9.7") -> Any:
    """Return the ``JavaStore`` of the tests, or None where Java or its jars cannot be had."""
    sys.path.insert(0, str(TESTS))
    try:
        from interop import java_store

        return java_store.JavaStore(version)
    except Exception as error:  # noqa: BLE001 - whatever is missing, ours is measured
        print(f"without Java: {error}", file=sys.stderr)
        return None
    finally:
        sys.path.remove(str(TESTS))
