"""Resends of all dead letters of a group that match a filter: preview, start and stop of a job."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reput.console import resending, search
from reput.console.access import Right
from reput.console.changes import Cell, Change, Preview, Receipt
from reput.console.page import RequestFailed, View
from reput.console.pages.dead_letters import FILTER
from reput.console.pages.resend_job import job_of
from reput.console.query import Query
from reput.console.resending import RATE, RATE_MAX, JobRefused, ResendOrder
from reput.console.resends import TO
from reput.console.search import Conditions, Cursor, Missing, Span
from reput.console.sources.live_messages import LiveMessages
from reput.errors import CorruptRecord
from reput.format import names, properties as props
from reput.html.texts import count_text, time_text

LETTERS_MAX = 1_000_000
"""Offsets of one job."""
COUNTED_MAX = 50_000
"""Letters that a preview reads to count the matching ones."""
COUNTED_BYTES_MAX = 256 << 20
COUNTING_S = 20
_PART = 128


@dataclass(slots=True)
class _Count:
    """The letters of a queue that would be sent."""

    span: Span
    letters: int = 0
    """Letters that match."""
    sent_before: int = 0
    """Matching letters that have a receipt."""
    is_exact: bool = True
    """True if all letters were read; else ``letters`` is an upper limit."""
    origins: Counter[str] = field(default_factory=Counter)


async def preview_resend_all(view: View) -> Preview:
    """Return how many letters of each queue would be sent, from where and to where.

    Begins, ends and offsets are fixed here: letters that arrive later are not sent.
    """
    try:
        view.parts.resend_jobs.check_free(view.names["group"])
    except JobRefused as error:
        raise RequestFailed(409, str(error)) from error
    order, missing = await _with_spans(_order(view), view)
    counts = await _counts(view, order)
    shown = [count for count in counts if count.letters or not count.is_exact]
    to_send = sum(count.letters - count.sent_before for count in shown)
    if not to_send:
        why = "all that match were sent again before" if shown else "none matches"
        raise RequestFailed(409, f"there is no dead letter to send: {why}")
    fixed = {
        "spans": Cursor(spans=tuple(count.span for count in counts)).text(),
        **{
            name: str(value)
            for name in ("begin", "end")
            if (value := getattr(order.question, f"{name}_ms")) is not None
        },
    }
    is_exact = all(count.is_exact for count in shown)
    amount = count_text(to_send, "dead letter")
    return Preview(
        title=f"Resend {amount if is_exact else f'up to {amount}'} of {order.group}",
        button="Start",
        columns=(
            *("Broker", "Queue", "First offset", "Last offset"),
            *("Letters", "Sent before, skipped", "To"),
        ),
        rows=[_row(count, order) for count in shown],
        state=_state(counts),
        warnings=_warnings(order, shown, missing, to_send),
        typed_name=order.group if order.to == "origin" else "",
        fixed=fixed,
    )


def _row(count: _Count, order: ResendOrder) -> Sequence[Cell]:
    span = count.span
    letters = count.letters if count.is_exact else f"at most {count.letters:,}"
    to = names.retry_topic(order.group) if order.to == "group" else _origins(count)
    return (
        *(span.broker, span.queue_id, span.low, span.high - 1),
        *(letters, count.sent_before, to),
    )


def _origins(count: _Count) -> str:
    shown = [f"{topic} ({number:,})" for topic, number in count.origins.most_common(5)]
    if len(count.origins) > 5:
        shown.append(f"{len(count.origins) - 5} more")
    if not count.is_exact:
        shown.append("those of letters that were not read")
    return ", ".join(shown)


def _state(counts: Sequence[_Count]) -> Mapping[str, int | str]:
    state: dict[str, int | str] = {}
    for count in counts:
        where = f"{count.span.broker} queue {count.span.queue_id}"
        state |= {
            f"{where}, first offset": count.span.low,
            f"{where}, last offset": count.span.high - 1,
            f"{where}, letters": count.letters,
            f"{where}, sent before": count.sent_before,
        }
    return state


def _warnings(
    order: ResendOrder, counts: Sequence[_Count], missing: Sequence[Missing], to_send: int
) -> list[str]:
    warnings = [f"Not part of it: {part}" for part in missing[:20]]
    if not all(count.is_exact for count in counts):
        warnings.append(
            f"Only the first {COUNTED_MAX:,} letters (or {COUNTED_BYTES_MAX >> 20} MiB) were read "
            "to count the matching ones: of the others, the largest number is shown."
        )
    if order.to == "origin":
        warnings.append("All groups of the original topics get the messages again.")
    shortest_s = -(-to_send // order.rate)
    warnings.append(
        f"At {order.rate:,} letters/s it takes {shortest_s:,} s or longer. "
        "Letters that arrive from now on are not sent."
    )
    return warnings


def _order(view: View) -> ResendOrder:
    """Return the resend of a form, with the offsets that it fixes, if any.

    Raises:
        InvalidOption: A condition or cursor is not allowed.
        RequestFailed: Another value is not allowed.
    """
    group, form = view.names["group"], Query({name: [text] for name, text in view.form.items()})
    values = {name: form.text(name) for name in FILTER}
    topic = names.dlq_topic(group)
    question = search.question_of({**values, "topic": topic, "order": "oldest"}, view.now_ms)
    search.plan(question)  # which checks it
    to = form.choice("to", TO, "group")
    rate = form.number("rate", RATE, 1, RATE_MAX)
    text = form.text("spans")
    fixed = search.parse_cursor(text).spans if text else ()
    return ResendOrder(group, to, view.user, question, tuple(fixed), rate)


async def _with_spans(order: ResendOrder, view: View) -> tuple[ResendOrder, Sequence[Missing]]:
    """Return a resend of the existing offsets, and the brokers that it omits.

    Raises:
        RequestFailed: There are too many letters.
        ReputError: No name server answers, or none has the topic.
    """
    known = await LiveMessages(view.parts.cluster.live.admin).spans(order.question)
    spans = _within(order.spans, known.spans) if order.spans else known.spans
    count = sum(span.high - span.low for span in spans)
    if count > LETTERS_MAX:
        raise RequestFailed(
            413, f"{count:,} letters: at most {LETTERS_MAX:,} in a job; narrow it by time"
        )
    return replace(order, spans=spans), known.missing


def _within(fixed: Sequence[Span], known: Sequence[Span]) -> tuple[Span, ...]:
    """Return the part of fixed spans that is there now."""
    now = {span.queue: span for span in known}
    return tuple(
        Span(*span.queue, max(span.low, there.low), min(span.high, there.high))
        for span in fixed
        if (there := now.get(span.queue)) is not None
        and max(span.low, there.low) < min(span.high, there.high)
    )


async def _counts(view: View, order: ResendOrder) -> list[_Count]:
    """Return the letters of each queue. Raises ``RequestFailed``."""
    counter = _Counter(view, order)
    with view.parts.search_slots.take(view.user.name):
        try:
            async with asyncio.timeout(COUNTING_S):
                return [await counter.count(span) for span in order.spans]
        except TimeoutError as error:
            text = f"the letters could not be counted in {COUNTING_S} s; narrow it by time"
            raise RequestFailed(503, text) from error


class _Counter:
    """Counts letters by reading them, within the limits of a preview."""

    def __init__(self, view: View, order: ResendOrder) -> None:
        self._resends = view.parts.resends
        self._order = order
        self._source = LiveMessages(view.parts.cluster.live.admin)
        self._conditions = Conditions(order.question)
        self._letter_count = self._byte_count = 0

    async def count(self, span: Span) -> _Count:
        """Return the letters of a queue. Raises ``RequestFailed``."""
        count, group = _Count(span), self._order.group
        for low in range(span.low, span.high, _PART):
            if self._letter_count >= COUNTED_MAX or self._byte_count >= COUNTED_BYTES_MAX:
                count.is_exact = False
                count.letters += span.high - low
                count.sent_before += self._resends.count(group, *span.queue, low, span.high)
                break
            part = Span(*span.queue, low, min(low + _PART, span.high))
            await self._read(part, count)
        return count

    async def _read(self, part: Span, count: _Count) -> None:
        read = await self._source.read(part, self._order.question)
        if read.is_failed:
            reasons = "; ".join(map(str, read.missing))
            raise RequestFailed(503, f"the letters cannot be counted: {reasons}")
        self._letter_count += part.high - part.low
        self._byte_count += read.left_out_bytes
        for message in read.messages:
            self._byte_count += message.size_bytes
            try:
                if not self._conditions.match(message):
                    continue
            except CorruptRecord:
                pass  # the job looks at it, and names the problem
            place = (self._order.group, *part.queue, message.queue_offset)
            count.letters += 1
            count.sent_before += self._resends.has(place, message.message_id)
            origin = message.stored.properties.get(props.RETRY_TOPIC)
            if origin and not self._order.user.sees_topic(origin):
                origin = f"(topics that {self._order.user.name} does not see: not sent)"
            count.origins[origin or "(no original topic: not sent)"] += 1


async def start_resend_all(view: View, preview: Preview) -> Receipt:
    """Start the job of the letters that were shown."""
    fixed = search.parse_cursor(preview.fixed["spans"]).spans
    order = replace(_order(view), spans=fixed)
    job = view.parts.resend_jobs.start(order, view.parts.cluster.live)
    text = f"Job {job.id} has started; its page shows the progress, also after this one is closed."
    return Receipt("done", text, link=("dlq", order.group, "jobs", job.id))


RESEND_ALL = Change(
    resending.ACTION, Right.OPERATE, preview_resend_all, start_resend_all, unrecorded=("spans",)
)


# --- stop ---------------------------------------------------------------------------------------


async def preview_stop(view: View) -> Preview:
    """Return the job that would be stopped."""
    job = job_of(view)
    begun = time_text(job.begun_ms)
    return Preview(f"Stop job {job.id}", "Stop", ("Job", "Begun"), [(job.id, begun)], {})


async def stop(view: View, preview: Preview) -> Receipt:
    """Stop a job after the letter that is being sent."""
    job = job_of(view)
    link = ("dlq", job.order.group, "jobs", job.id)
    if job.has_ended:
        return Receipt("done", f"Job {job.id} had ended before: {job.text}.", link=link)
    view.parts.resend_jobs.stop(job, f"stopped by {view.user.name}")
    return Receipt("done", f"Job {job.id} ends after the letter that is being sent.", link=link)


STOP = Change("stop a resend", Right.OPERATE, preview_stop, stop, is_immediate=True)
