"""Replies to pulls: what a reply means for the next offset, and for missing messages. Pure.

    code of the reply         its meaning, if the next offset is higher     otherwise
    SUCCESS                   RECORDS                                       STUCK
    PULL_RETRY_IMMEDIATELY    NO_MATCH if the broker filters, else GAP      STUCK
    PULL_NOT_FOUND            GAP: a hole                                   GAP: the queue ends
    PULL_OFFSET_MOVED         GAP: expired messages                         GAP: it ends before

Messages that a broker skips between others are seen only by counting: a reply without a filter has
as many messages as it advances.

Source: rocketmq 4.9.8 ``PullMessageProcessor``, ``DefaultMessageStore.getMessage``,
``MQClientAPIImpl.processPullResponse``.
"""

import enum
from dataclasses import dataclass

from reput.errors import broker_error
from reput.format import headers
from reput.format.codes import ResponseCode
from reput.format.command import Command

_REMOVING = "MESSAGE_WAS_REMOVING"
"""Remark of a broker that is deleting the files of the messages."""
_SUCCESS, _RETRY = ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY


class PullStatus(enum.Enum):
    """Outcome of a pull."""

    FOUND = "found"
    NO_NEW = "no new message"
    NO_MATCH = "no message matched"
    ILLEGAL_OFFSET = "the queue does not reach from or to this offset"


_STATUS: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCH,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.ILLEGAL_OFFSET,
}


class PullOutcome(enum.Enum):
    """Meaning of a reply for the range of queue offsets that is read."""

    RECORDS = "the next messages, up to the next offset"
    NO_MATCH = "no message up to the next offset matches the tags"
    GAP = "no message is there up to the end of the gap"
    STUCK = "the broker makes no progress: files are deleted, or the store was replaced"


def outcome(
    code: int, remark: str | None, queue_offset: int, next_offset: int, *, is_filtered: bool
) -> PullOutcome:
    """Return the meaning of a reply that is no error.

    Args:
        code: Code of the reply.
        remark: Its remark.
        queue_offset: Queue offset of the pull.
        next_offset: Queue offset of the next pull, in the reply.
        is_filtered: True if the broker selects by tags.
    """
    if code == _SUCCESS:
        return PullOutcome.RECORDS if next_offset > queue_offset else PullOutcome.STUCK
    if code != _RETRY:
        return PullOutcome.GAP
    if next_offset <= queue_offset:
        return PullOutcome.STUCK
    return PullOutcome.NO_MATCH if is_filtered and remark != _REMOVING else PullOutcome.GAP


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """Reply to a pull that is no error, undecoded."""

    code: int
    remark: str
    records: bytes
    """Records that the broker selected, in the order of their offsets."""
    next_offset: int
    """Queue offset of the next pull."""
    min_offset: int
    max_offset: int
    broker_id: int
    """Id of the broker that the reply suggests for the next pull."""

    @property
    def status(self) -> PullStatus:
        """The outcome of the pull for a consumer, which corrects its offset."""
        return _STATUS[self.code]

    def outcome(self, queue_offset: int, *, is_filtered: bool) -> PullOutcome:
        """Return the meaning of the reply to a pull from a queue offset on; see ``outcome``."""
        return outcome(
            self.code, self.remark, queue_offset, self.next_offset, is_filtered=is_filtered
        )

    def gap_end(self, queue_offset: int, stop: int) -> int:
        """Return the end of the gap at a queue offset, where the next pull begins.

        Args:
            queue_offset: Queue offset of the pull.
            stop: End of the range that is read.
        """
        begin = self.min_offset if queue_offset < self.min_offset else 0
        following = max(self.next_offset, begin)
        if following <= queue_offset or queue_offset >= self.max_offset:
            return stop
        return min(following, stop)


def read(reply: Command, address: str) -> PulledRecords:
    """Return the reply to a pull of the broker at an address. Raises ``BrokerError``."""
    if reply.code not in _STATUS:
        raise broker_error(reply.code, reply.remark, address)
    header = headers.decode(headers.PullMessageReplyHeader, reply.ext_fields)
    return PulledRecords(
        reply.code,
        reply.remark or "",
        reply.body if reply.code == _SUCCESS else b"",
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )
