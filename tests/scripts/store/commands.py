"""Commands of the store's scripts."""

from pathlib import Path

from reput.errors import ReputError
from scripts.runner import Milliseconds


class Commands:
    ERRORS = (ReputError,)

    def __init__(self, folder: Path, subject: str) -> None:
        pass

    def advance(self, duration: Milliseconds) -> None:
        """Let time pass."""
