"""Replace functions for one thread: the broker that tests share runs in another thread."""

import threading
from collections.abc import Callable
from typing import Any

import pytest


def replace(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, replacement: Callable[..., Any]
) -> None:
    """Replace a function, or a method of a class, for calls of this thread."""
    plain, thread = getattr(owner, name), threading.get_ident()

    def call(*arguments: Any, **options: Any) -> Any:
        chosen = replacement if threading.get_ident() == thread else plain
        return chosen(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
