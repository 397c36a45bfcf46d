"""The caller: who asks, from where, and how long it waits."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from reput.format.codes import LanguageCode
from reput.format.signing import Signer

EARLY_MS = 500
"""Time before the deadline of a call at which its answer is given, in ms."""
_LANGUAGES = {
    "JAVA": LanguageCode.JAVA,
    "CPP": LanguageCode.CPP,
    "DOT_NET": LanguageCode.DOTNET,
    "CSHARP": LanguageCode.DOTNET,
    "PYTHON": LanguageCode.PYTHON,
    "GOLANG": LanguageCode.GO,
    "GO": LanguageCode.GO,
    "RUST": LanguageCode.RUST,
    "PHP": LanguageCode.PHP,
    "NODE_JS": LanguageCode.NODE_JS,
    "HTTP": LanguageCode.HTTP,
}


Pause = Callable[[], Awaitable[None]]


async def _no_pause() -> None:
    """Continue."""


@dataclass(slots=True)
class Caller:
    """The client of a call.

    Attributes:
        client_id: Id of the client; empty if it sent none.
        language: Its language, as the SDK writes it.
        address: Host and port of the client.
        local_address: Host and port that it has connected to.
        deadline_ms: Monotonic time in ms at which it gives up; None if it waits forever.
        signer: Signs as its user; None without access control.
        user: Name of its user; empty without one.
        pause: Waits, if this turn of the loop has no time left: to be called in long work.
    """

    client_id: str
    language: str
    address: tuple[str, int]
    local_address: tuple[str, int]
    deadline_ms: int | None = None
    signer: Signer | None = None
    user: str = ""
    pause: Pause = _no_pause

    @property
    def language_code(self) -> int:
        """The language as brokers show it."""
        return _LANGUAGES.get(self.language.upper(), LanguageCode.OTHER)

    def patience_ms(self, now_ms: int, longest_ms: int) -> int:
        """Return the time that a broker may take so that its reply still reaches the caller.

        Args:
            now_ms: Monotonic time in ms.
            longest_ms: The time for a caller without a deadline, in ms.
        """
        if self.deadline_ms is None:
            return longest_ms
        return max(min(longest_ms, self.deadline_ms - now_ms - EARLY_MS), 1)
