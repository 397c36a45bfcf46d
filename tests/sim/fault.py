"""A fault put in by hand: a small change of today's code, as long as a context lasts."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

Patch = contextlib.AbstractContextManager[object]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    Attributes:
        text: The error.
        kinds: Kinds of clusters in which it can be seen.
        put_in: Puts it in, as long as the context lasts.
        is_found_soon: Whether a few tens of seeds find it; the others need a longer search.
        scenario: Name of a scenario that finds it, instead of random ones.
    """

    text: str
    kinds: tuple[str, ...]
    put_in: Callable[[], Patch]
    is_found_soon: bool = True
    scenario: str = ""


def replaced(owner: Any, name: str, body: Callable[..., Any]) -> Patch:
    """Replace a method by a function that gets the original one first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **options: Any) -> Any:
        return body(original, *args, **options)

    return mock.patch.object(owner, name, replacement)


def skipped(owner: Any, name: str, result: Any = None) -> Patch:
    """Replace a method by one that does nothing."""
    return replaced(owner, name, lambda _original, *_args, **_options: result)
