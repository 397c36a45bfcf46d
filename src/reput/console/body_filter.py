"""Leaves out messages whose bodies do not contain a text, without decoding them.

A record is left out if its body can be seen to be intact, and does not contain the text: decoding
it and checking the conditions of the search would do nothing else. Compressed bodies, batches,
damaged records and all others that need decoding stay, so that a search has the same answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reput.client.message import plain_body_in, queue_offset_at, record_spans
from reput.console.search import Question
from reput.format import names


class PulledRange(NamedTuple):
    """Records of a reply, of which those of a range of queue offsets are wanted."""

    low: int
    high: int
    """Queue offset after the last one."""
    records: bytes


@dataclass(frozen=True, slots=True)
class Candidates:
    """Records that have to be decoded."""

    ranges: list[PulledRange]
    left_out_bytes: int
    """Size of the records that are left out."""


def text_of(question: Question) -> bytes | None:
    """Return the text whose absence decides about a message; None if others are looked at first.

    A key or tag that cannot be read is a problem to report, whatever the body is. A message in a
    light queue is not at the queue offset of its record.
    """
    if not question.text or question.key or question.tags or names.is_light(question.topic):
        return None
    return question.text.encode("utf-8", "surrogatepass")


def candidates(ranges: Iterable[PulledRange], text: bytes) -> Candidates:
    """Return the records that may have a text in their bodies, and the first and last of all.

    The store times of the first and the last one say how far the queue has been read.

    Raises:
        CorruptRecord: A size is impossible.
    """
    kept: list[PulledRange] = []
    left_out_bytes = 0
    is_first = True
    last: tuple[int, PulledRange, int, int] | None = None
    """The last record, if it was left out: its place in ``kept``, its reply, begin and end."""
    for reply in ranges:
        low, high, data = reply
        for begin, end in record_spans(data):
            body = plain_body_in(data, begin, end)
            if body is not None:
                if not low <= queue_offset_at(data, begin) < high:
                    continue
                if not is_first and data.find(text, body[0], body[1]) < 0:
                    left_out_bytes += end - begin
                    last = len(kept), reply, begin, end
                    continue
                is_first, last = False, None
            kept.append(PulledRange(low, high, data[begin:end]))
    if last is not None:
        place, (low, high, data), begin, end = last
        kept.insert(place, PulledRange(low, high, data[begin:end]))
        left_out_bytes -= end - begin
    return Candidates(kept, left_out_bytes)
