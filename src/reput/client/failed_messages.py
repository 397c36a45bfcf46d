"""Failed messages of a consumer: a line of the log for each, with what happens next, and counts."""

import logging

from reput.client.core.consume_rates import RatesByTopic
from reput.client.message import ReceivedMessage
from reput.clock import Clock
from reput.errors import CorruptRecord

log = logging.getLogger(__name__)

DELAYS = (
    "1 s", "5 s", "10 s", "30 s", "1 min", "2 min", "3 min", "4 min", "5 min",
    "6 min", "7 min", "8 min", "9 min", "10 min", "20 min", "30 min", "1 h", "2 h",
)  # fmt: skip
"""Delay of each level by default; brokers may have others (``messageDelayLevel``)."""


class FailedMessages:
    """Logs what happens to failed messages, and counts dead letters.

    Args:
        group: The consumer group, by its full name.
        rates: Counts of the consumer.
        clock: The clock.
    """

    def __init__(self, group: str, rates: RatesByTopic, clock: Clock) -> None:
        self._group = group
        self._rates = rates
        self._clock = clock

    def dead(self, message: ReceivedMessage, attempt: int) -> None:
        """Record a message that went to the dead letters.

        Args:
            message: The message.
            attempt: Number of the attempt that failed, from 1.
        """
        self._rates.of(message.queue.topic, self._clock.now_ms()).dead_count += 1
        self._log(message, attempt, f"sent to the dead letters of {self._group}")

    def after_level(self, message: ReceivedMessage, attempt: int, delay_level: int) -> None:
        """Record a message that is delivered again after the delay of a level."""
        level = min(delay_level, len(DELAYS))
        text = f"delivered again after delay level {level}, {DELAYS[level - 1]} by default"
        self._log(message, attempt, text)

    def after(self, message: ReceivedMessage, attempt: int, delay_ms: int) -> None:
        """Record a message that is delivered again after a time."""
        self._log(message, attempt, f"delivered again in {delay_ms / 1000:g} s")

    def dropped(self, message: ReceivedMessage) -> None:
        """Record a message of a broadcasting group, which is not delivered again."""
        self._log(message, 1, "dropped: the group is broadcasting")

    def _log(self, message: ReceivedMessage, attempt: int, outcome: str) -> None:
        try:
            message_id, topic = message.message_id, message.topic
            keys = " ".join(message.keys) or "none"
        except CorruptRecord:
            message_id = topic = keys = "unknown"  # it is damaged
        log.warning(
            "group %s: message %s of topic %s (queue %d of %s, offset %d, keys: %s)"
            " failed in attempt %d, and is %s",
            self._group, message_id, topic, message.queue_id, message.broker_name,
            message.queue_offset, keys, attempt, outcome,
        )  # fmt: skip
