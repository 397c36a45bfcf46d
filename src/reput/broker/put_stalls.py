"""Puts that stall, and the sends that have waited for them.

The event loop puts: while the disk keeps a put waiting, no request is read. The sends that clients
have sent meanwhile are read afterwards:

    in the rest of the loop's turn    their connections were readable before the put: they have
                                      waited at least as long as it took
    in the next turn                  they came during the put, or a moment later

RocketMQ answers SYSTEM_BUSY to sends that wait longer than waitTimeMillsInSendQueue, and to all
sends while a put takes longer than osPageCacheBusyTimeOutMills (``BrokerFastFailure``): a producer
then uses another broker, instead of sending again after its timeout. The same is done here with the
rest of the turn, and with the next turn. The sends that one call of a kernel stores are one put.
"""

import asyncio

from reput.broker.settings.live import LiveConfig
from reput.clock import Clock
from reput.errors import RequestRefused
from reput.format.codes import ResponseCode
from reput.store.durations import Durations


class PutStalls:
    """Measures puts, and refuses sends that have waited too long for a stalled put.

    To be used only on the event loop.

    Args:
        settings: The limits.
        clock: Measures the puts.
    """

    def __init__(self, settings: LiveConfig, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._reason = ""
        self._turns_left = 0
        self._durations = Durations("a put")
        self.refused_count = 0
        """Number of refused sends."""

    @property
    def is_over(self) -> bool:
        """True if sends that are read now need not be refused."""
        return not self._turns_left

    def refuse(self) -> None:
        """Refuse a send that has waited for a put that stalled.

        Raises:
            RequestRefused: It has.
        """
        if self._turns_left:
            self.refused_count += 1
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, self._reason)

    def end(self, begun_ms: int) -> int:
        """Record the end of a put, or of several in one call; return its duration in ms.

        Args:
            begun_ms: The time when it began, monotonic ms.
        """
        now_ms = self._clock.monotonic_ms()
        duration_ms = now_ms - begun_ms
        config = self._settings.broker
        self._durations.add(duration_ms, now_ms)
        wait_max_ms = config.wait_time_mills_in_send_queue
        busy_ms = self._settings.store.os_page_cache_busy_time_out_mills
        if config.broker_fast_failure_enable and duration_ms > min(wait_max_ms, busy_ms):
            is_busy = duration_ms > busy_ms
            kind = "PCBUSY_CLEAN_QUEUE" if is_busy else "TIMEOUT_CLEAN_QUEUE"
            self._reason = (
                f"[{kind}]broker busy, start flow control for a while, period in queue: "
                f"{duration_ms}ms"
            )
            if not self._turns_left:
                asyncio.get_running_loop().call_soon(self._end_turn)
            self._turns_left = 2 if is_busy else max(self._turns_left, 1)
        return duration_ms

    def _end_turn(self) -> None:
        # At the beginning of the next turn, before the requests that it reads.
        self._turns_left -= 1
        if self._turns_left:
            asyncio.get_running_loop().call_soon(self._end_turn)
