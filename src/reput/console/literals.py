"""Bytes that each match of a regular expression contains, to leave out bodies without them."""

import importlib
import re
from collections.abc import Iterable
from typing import Any


def contained_in(expression: str) -> bytes:
    """Return the longest known bytes that every match contains; empty if none are known.

    Args:
        expression: A regular expression that can be compiled.
    """
    if not expression:
        return b""
    try:
        # The parser of ``re`` is not public: another version of Python may have none.
        parsed = importlib.import_module("re._parser").parse(expression.encode())
        if parsed.state.flags & re.IGNORECASE:
            return b""
        runs: list[bytearray] = [bytearray()]
        _collect(parsed, runs)
    except (ImportError, AttributeError, TypeError, ValueError):
        return b""
    return bytes(max(runs, key=len))


def _collect(parts: Iterable[tuple[Any, Any]], runs: list[bytearray]) -> None:
    """Add the literal bytes of consecutive parts, each of which matches, to the last run."""
    for operation, argument in parts:
        match operation.name:
            case "LITERAL":
                runs[-1].append(argument)
            case "AT":  # of no width, as a word boundary is
                pass
            case "SUBPATTERN" if not argument[1] & re.IGNORECASE:
                _collect(argument[3], runs)
            case "ATOMIC_GROUP":
                _collect(argument, runs)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT" if argument[0] > 0:
                runs.append(bytearray())
                _collect(argument[2], runs)
                runs.append(bytearray())
            case _:
                runs.append(bytearray())
