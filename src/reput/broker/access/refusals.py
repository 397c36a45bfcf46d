"""Counts of refused requests, and log lines about them.

Requests whose sender is not known are counted by address too: many from one address are guesses of
a secret. The first ``ADDRESSES_MAX`` addresses have separate counts, for as long as the broker
runs; all others share ``OTHERS``. So neither the memory nor the metrics grow with the number of
addresses, which a sender can choose.

There is one line of the log a minute for an address and kind of refusal, with the number of those
since the last one. No address is locked out: that would let each client lock out others.
"""

import logging
from collections.abc import Callable

ADDRESSES_MAX = 100
"""Addresses with separate counts."""
OTHERS = "_other"
"""Name of all further addresses."""
LINE_MS = 60_000
"""Time between two lines about an address."""

_log = logging.getLogger(__name__)


class AccessRefusals:
    """Counts refused requests.

    Args:
        monotonic_ms: Returns the monotonic time in ms.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self.unauthenticated_count = 0
        """Requests whose sender is not known."""
        self.unauthorized_count = 0
        """Requests for which the known sender lacks permission."""
        self._by_address: dict[str, int] = {}
        self._lines: dict[tuple[str, bool], tuple[int, int]] = {}
        """Address and kind -> time of the last line, and number of refusals since."""

    @property
    def by_address(self) -> dict[str, int]:
        """Address -> requests whose sender is not known, as a copy."""
        return dict(self._by_address)

    def add(self, address: str, code: int, text: str, *, is_unverified: bool) -> None:
        """Count a refused request.

        Args:
            address: Address of the sender.
            code: Code of the request.
            text: The reason, which may have text from the request.
            is_unverified: True if the sender is not known.
        """
        name = self._name(address)
        if is_unverified:
            self.unauthenticated_count += 1
            self._by_address[name] = self._by_address.get(name, 0) + 1
        else:
            self.unauthorized_count += 1
        now_ms = self._monotonic_ms()
        last_ms, count = self._lines.get((name, is_unverified), (now_ms - LINE_MS, 0))
        if now_ms - last_ms < LINE_MS:
            self._lines[name, is_unverified] = last_ms, count + 1
            return
        self._lines[name, is_unverified] = now_ms, 0
        more = f" ({count} more since the last line)" if count else ""
        _log.warning("%s: request %d refused: %r%s", address, code, text, more)

    def _name(self, address: str) -> str:
        """Return the name under which an address is counted."""
        if address in self._by_address:
            return address
        if len(self._by_address.keys() - {OTHERS}) >= ADDRESSES_MAX:
            return OTHERS
        self._by_address[address] = 0
        return address
