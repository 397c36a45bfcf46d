"""A model of a broker's index, with the limits that its replies to queries by key have."""

from collections.abc import Sequence
from dataclasses import dataclass

from reput.format import command, headers, message as record
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.message import StoredMessage

PAGE_COUNT = 64
"""``maxMsgsNumBatch`` of RocketMQ, 4.5 to 5.5."""
UNIQUE_PAGE_COUNT = 32
"""``defaultQueryMaxNum``."""


@dataclass
class IndexModel:
    """One index file over a part of a log: ``IndexFile.selectPhyOffset``, ``queryMessage``."""

    log: Sequence[StoredMessage]
    """In log order, of which the times may go back."""
    indexed_from: int = 0
    """Physical offset from which on messages are in the index."""
    indexed_to: int = 1 << 60
    collisions: Sequence[str] = ()
    """``topic#key`` of keys that all have the same hash."""
    query_count: int = 0

    def reply(self, request: Command) -> Command:
        """Return the reply to request 12."""
        self.query_count += 1
        header = headers.decode(headers.QueryMessageHeader, request.ext_fields)
        count_max = UNIQUE_PAGE_COUNT if header.is_unique_key else header.max_num
        key = f"{header.topic}#{header.key}"
        keys = {key, *(self.collisions if key in self.collisions else ())}
        hits = [
            message
            for message in self.log
            if self.indexed_from <= message.physical_offset < self.indexed_to
            and keys & {f"{message.topic}#{text}" for text in (message.unique_key, *message.keys)}
            and header.begin_timestamp <= self._time(message) <= header.end_timestamp
        ]
        fields = {
            "indexLastUpdateTimestamp": "0",
            "indexLastUpdatePhyoffset": str(self.indexed_to),
        }
        newest = hits[-min(count_max, PAGE_COUNT) :]
        if not newest:
            code, remark = ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range"
            return command.reply(request, code, remark, fields)
        return command.reply(request, 0, None, fields, b"".join(map(record.encode, newest)))

    def _time(self, message: StoredMessage) -> int:
        """Return the time of an entry: whole seconds after the begin of the file, not before it."""
        begin_ms = self.log[0].store_timestamp
        return begin_ms + max(0, message.store_timestamp - begin_ms) // 1000 * 1000
