"""Whether a send is tried again, and what is said when it is not.

Source: rocketmq 4.9.7 ``DefaultMQProducerImpl.sendDefaultImpl``.
"""

from collections.abc import Sequence

from reput.errors import (
    Answered,
    ConnectionLost,
    Overloaded,
    RemotingError,
    RequestTimedOut,
    Unreachable,
)
from reput.format.codes import ResponseCode

RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""What another broker may answer otherwise."""


class SendFailed(RemotingError):
    """A message was not acknowledged. It may be stored all the same, if a reply was lost.

    Args:
        topic: The message's.
        broker_names: The brokers that were tried, in order.
        reason: Why the last attempt failed.
    """

    def __init__(self, topic: str, broker_names: Sequence[str], reason: RemotingError) -> None:
        self.topic = topic
        self.broker_names = tuple(broker_names)
        self.reason = reason
        self.retriable = reason.retriable
        self.refresh_route = reason.refresh_route
        self.response_code = reason.response_code
        count = len(self.broker_names)
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        super().__init__(
            f"message to topic {topic!r} not sent in {attempts}"
            f" ({', '.join(self.broker_names)}): {reason}"
        )


def may_retry(error: RemotingError) -> bool:
    """Whether another broker may do what this one did not."""
    if isinstance(error, Answered):
        return error.response_code in RETRY_CODES
    return isinstance(error, (Unreachable, ConnectionLost, RequestTimedOut, Overloaded))
