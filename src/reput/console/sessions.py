"""Sessions of users who have logged in, and the limit of wrong passwords."""

import hashlib
import hmac
import os
import secrets
from collections import deque
from dataclasses import dataclass

LIFETIME_MS = 12 * 3600 * 1000
"""Time after which a user logs in again."""
SESSION_COUNT_MAX = 10_000
WRONG_COUNT_MAX = 5
"""Maximum wrong passwords of an address within ``WRONG_WINDOW_MS`` before it must wait."""
WRONG_WINDOW_MS = 60_000
ADDRESS_COUNT_MAX = 10_000
_ID_BYTES = 32
_TOKEN_BYTES = 32
"""Size of SHA-256."""


@dataclass(frozen=True, slots=True)
class Session:
    """A user who has logged in."""

    user_name: str
    end_ms: int


class Sessions:
    """The sessions of a console; they end with its process.

    Ids are kept as hashes: the time that a look-up takes says nothing about an id.
    """

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session] = {}
        self._key = os.urandom(_ID_BYTES)

    def begin(self, user_name: str, now_ms: int) -> str:
        """Begin a session, and return its id; the oldest one ends if there are too many."""
        for digest in [key for key, open_ in self._sessions.items() if open_.end_ms <= now_ms]:
            del self._sessions[digest]
        while len(self._sessions) >= SESSION_COUNT_MAX:
            del self._sessions[next(iter(self._sessions))]
        session_id = secrets.token_urlsafe(_ID_BYTES)
        self._sessions[_digest(session_id)] = Session(user_name, now_ms + LIFETIME_MS)
        return session_id

    def user_name(self, session_id: str, now_ms: int) -> str | None:
        """Return the user of a session; None if it does not exist or has ended."""
        session = self._sessions.get(_digest(session_id))
        return session.user_name if session is not None and now_ms < session.end_ms else None

    def end(self, session_id: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(session_id), None)

    def form_token(self, session_id: str) -> str:
        """Return a token for forms of a session; without users, of the id ``""``.

        It is masked, and different each time: the size of compressed pages says nothing about it.
        """
        mask = os.urandom(_TOKEN_BYTES)
        return (mask + _xor(mask, self._token(session_id))).hex()

    def is_form_token(self, session_id: str, token: str) -> bool:
        """Return whether a form carries the token of its session."""
        try:
            masked = bytes.fromhex(token)
        except ValueError:
            return False
        if len(masked) != 2 * _TOKEN_BYTES:
            return False
        unmasked = _xor(masked[:_TOKEN_BYTES], masked[_TOKEN_BYTES:])
        return hmac.compare_digest(self._token(session_id), unmasked)

    def _token(self, session_id: str) -> bytes:
        return hmac.digest(self._key, session_id.encode(), "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode(errors="replace")).digest()


class Throttle:
    """Counts wrong passwords by address."""

    def __init__(self) -> None:
        self._wrong: dict[str, deque[int]] = {}

    def wait_ms(self, address: str, now_ms: int) -> int:
        """Return how long an address must wait before its next attempt; 0 for no wait."""
        times = self._recent(address, now_ms)
        return times[0] + WRONG_WINDOW_MS - now_ms if len(times) >= WRONG_COUNT_MAX else 0

    def add_attempt(self, address: str, now_ms: int) -> None:
        """Count an attempt; ``clear`` forgets the attempts of an address."""
        times = self._recent(address, now_ms)
        while len(self._wrong) >= ADDRESS_COUNT_MAX and address not in self._wrong:
            del self._wrong[next(iter(self._wrong))]
        times.append(now_ms)
        self._wrong[address] = times

    def clear(self, address: str) -> None:
        """Forget the attempts of an address."""
        self._wrong.pop(address, None)

    def _recent(self, address: str, now_ms: int) -> deque[int]:
        times = self._wrong.get(address, deque(maxlen=WRONG_COUNT_MAX))
        while times and times[0] + WRONG_WINDOW_MS <= now_ms:
            times.popleft()
        return times
