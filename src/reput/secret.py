"""A text that is never shown: secret keys, tokens, passwords."""


class Secret:
    """A text whose ``str`` and ``repr`` are masked; ``reveal`` returns it.

    It has no JSON form either, so that it cannot get into a document unnoticed.
    """

    __slots__ = ("_text",)

    def __init__(self, text: "str | Secret" = "") -> None:
        self._text: str = text.reveal() if isinstance(text, Secret) else text

    def reveal(self) -> str:
        """Return the text. The caller must not print, log or store it."""
        return self._text

    def __bool__(self) -> bool:
        """Return False for an empty text."""
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        """Return whether both are secrets with equal texts."""
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        """Return a mask, also for an empty text."""
        return "***"


NO_SECRET = Secret()
"""An empty secret: none is given."""
