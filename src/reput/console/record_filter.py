"""Leaves out messages that a search does not want, without decoding them.

A record is left out if it can be seen to be intact, and if its body does not contain the text, its
properties not the property, or an SQL92 condition does not hold: decoding it and checking the
conditions of the search would do nothing else. Compressed bodies, batches, damaged records and all
others that need decoding stay, so that a search has the same answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.client.message import PlainRecord, plain_records
from reput.client.queue_ranges import PulledRange
from reput.console import literals, search
from reput.console.search import Question
from reput.format import java, names, properties as props

if TYPE_CHECKING:
    from reput.format.sql92 import Filter


@dataclass(frozen=True, slots=True)
class Candidates:
    """Records that have to be decoded."""

    ranges: list[PulledRange]
    left_out_bytes: int
    """Size of the records that are left out."""


class RecordFilter:
    """The conditions of a question that can be checked on an intact record.

    Args:
        question: The question.
    """

    def __init__(self, question: Question) -> None:
        text = question.text.encode("utf-8", "surrogatepass")
        self._text = text or literals.contained_in(question.expression)
        self._property = b""
        if question.property_name:
            pair = f"{question.property_name}{props.NAME_VALUE_SEPARATOR}{question.property_value}"
            # Malformed bytes are decoded to U+FFFD.
            if "\ufffd" not in pair:
                self._property = pair.encode("utf-8", "surrogatepass")
        self._sql: Filter | None = search.compiled(question.sql) if question.sql else None

    @classmethod
    def of(cls, question: Question) -> "RecordFilter | None":
        """Return the filter for a question; None if every message must be decoded.

        A key or tag that cannot be read is a problem to report, whatever the body is. A message in
        a light queue is not at the queue offset of its record.
        """
        if question.key or question.tags or names.is_light(question.topic):
            return None
        record_filter = cls(question)
        parts = record_filter._text, record_filter._property, record_filter._sql
        return record_filter if any(parts) else None

    def candidates(self, replies: Iterable[PulledRange]) -> Candidates:
        """Return the records that may match, and the first and last of all.

        The store times of the first and the last one say how far the queue has been read.

        Raises:
            CorruptRecord: A size is impossible.
        """
        kept: list[PulledRange] = []
        left_out_bytes = 0
        scanned = [(reply, *_scanned(reply)) for reply in replies]
        numbers = [number for number, (_, plain, _) in enumerate(scanned) if plain]
        for number, (reply, plain, others) in enumerate(scanned):
            wanted = {*others, *self._matching(reply.records, plain)}
            if numbers[:1] == [number]:
                wanted.add(plain[0])
            if numbers[-1:] == [number]:
                wanted.add(plain[-1])
            left_out_bytes += _size(plain) + _size(others) - _size(wanted)
            low, high, data = reply
            kept += [PulledRange(low, high, data[place[0] : place[1]]) for place in sorted(wanted)]
        return Candidates(kept, left_out_bytes)

    def _matching(self, data: bytes, places: Sequence[PlainRecord]) -> Sequence[PlainRecord]:
        """Return the records that may match, in their order."""
        if self._text:
            places = _with_text(data, self._text, places)
        if self._property:
            find, pair = data.find, self._property
            places = [place for place in places if find(pair, place[5], place[1]) >= 0]
        if self._sql is not None:
            matches = self._sql.matches_text
            places = [
                place for place in places if matches(java.decode_utf8(data[place[5] : place[1]]))
            ]
        return places


def _scanned(reply: PulledRange) -> tuple[list[PlainRecord], list[PlainRecord]]:
    """Return the plain records of the range, and all records that are not plain."""
    low, high, data = reply
    plain: list[PlainRecord] = []
    others: list[PlainRecord] = []
    for place in plain_records(data):
        if not place[3]:
            others.append(place)
        elif low <= place[2] < high:
            plain.append(place)
    return plain, others


def _size(places: Iterable[PlainRecord]) -> int:
    return sum([place[1] - place[0] for place in places])


def _with_text(data: bytes, text: bytes, places: Sequence[PlainRecord]) -> list[PlainRecord]:
    """Return the records whose bodies contain a text, with one search in all bodies."""
    containing = []
    position = data.find(text)
    for place in places:
        begin, end = place[3:5]
        if 0 <= position < begin:
            position = data.find(text, begin)  # the last one was elsewhere
        if position < 0:
            break
        if position + len(text) <= end:
            containing.append(place)
    return containing
