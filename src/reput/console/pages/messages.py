"""The search of messages: the form, the plan, and the answer; of the cluster, or of a store.

The page runs a search for a second, which most need less than. With a script it then follows the
rest as a stream of events; without, a link continues. JSON has the whole search: a program that
asks for it follows nothing, and may give other limits.
"""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reput.console import scan, search
from reput.console.page import Fragment, Page, PageStream, RequestFailed, RequestRefused, View
from reput.console.scan import MessageSource, Progress
from reput.console.search import Answer, Budget, Plan, Question, Row
from reput.console.settings import StorePlace
from reput.console.sources.folder import FolderMessages, UnknownStore
from reput.console.sources.live_messages import LiveMessages
from reput.errors import InvalidOption, ReputError

PAGE_MS = 1_000
"""Duration of the part of a search that a page waits for."""
FIELDS = (
    *("topic", "id", "key", "begin", "end", "tags", "sql", "text", "expression"),
    *("property", "value", "order", "rows"),
)
LIMITS = ("max_messages", "max_mb", "max_seconds")
OTHERS = ("cursor", "live", "format")
"""Parameters besides those of the search."""
MESSAGES_MAX = 100_000_000
MB_MAX = 100_000
SECONDS_MAX = 600


@dataclass(frozen=True, slots=True)
class _Search:
    """The search in a URL."""

    values: Mapping[str, str]
    """The fields of the form as given."""
    question: Question | None
    plan: Plan | None
    budget: Budget


def place_of(view: View) -> list[str]:
    """Return the parts of the path before ``messages``: those of a store, or none."""
    return ["s", view.names["store"]] if "store" in view.names else []


def source_of(view: View) -> MessageSource:
    """Return the messages of the cluster, or of the store in the path."""
    if "store" not in view.names:
        return LiveMessages(view.parts.cluster.live.admin)
    return FolderMessages(view.parts.folders, store_of(view).name)


def store_of(view: View) -> StorePlace:
    """Return the store in the path. Raises ``RequestRefused`` if it is not configured."""
    try:
        return view.parts.folders.check(view.names["store"])
    except UnknownStore as error:
        raise RequestRefused(404, str(error)) from error


async def page(view: View) -> Page:
    """Return the page, with the first rows if the request contains a search."""
    source = source_of(view)
    wanted = _search(view)
    answer: Answer | None = None
    if wanted.plan is not None:
        budget = wanted.budget
        if not view.is_json:
            budget = replace(budget, duration_ms=min(PAGE_MS, budget.duration_ms))
        async for event in _events(view, source, wanted.plan, budget, view.query.text("cursor")):
            if isinstance(event, Answer):
                answer = event
    data: dict[str, Any] = {
        "place": place_of(view),
        "search": wanted.values,
        "plan": wanted.plan and wanted.plan.text,
        "answer": None,
    }
    if answer is not None:
        cursor = answer.cursor.text() if answer.cursor else None
        is_stream = cursor is not None and answer.pause == f"{PAGE_MS / 1000:g} s"
        data["answer"] = {
            "complete": answer.complete,
            "sentence": answer.sentence(),
            "rows": answer.rows,
            "looked_at": answer.looked_at,
            "missing": answer.missing,
            "pause": answer.pause,
            "took_ms": answer.took_ms,
            "cursor": cursor,
            "continues": is_stream,
        }
    title = f"Messages of store {view.names['store']}" if "store" in view.names else "Messages"
    return Page("messages.html.j2", title, data)


async def stream(view: View) -> PageStream | None:
    """Return the rest of a search as events, if the URL has ``live=1``.

    Events are ``row`` and ``state``, with HTML in JSON, then ``end``.
    """
    if not view.query.text("live"):
        return None
    source = source_of(view)
    wanted = _search(view)
    if wanted.plan is None:
        raise RequestFailed(400, "there is nothing to search for")
    return PageStream("text/event-stream", _fragments(view, source, wanted))


async def _fragments(
    view: View, source: MessageSource, wanted: _Search
) -> AsyncGenerator[bytes | Fragment, None]:
    assert wanted.plan is not None
    place = place_of(view)
    events = _events(view, source, wanted.plan, wanted.budget, view.query.text("cursor"))
    state: dict[str, Any] = {}
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Row):
                    yield Fragment("row", "message_row.html.j2", {"row": event, "place": place})
                elif isinstance(event, Progress):
                    yield Fragment("state", "search_progress.html.j2", {"progress": event})
                else:
                    state = {
                        "complete": event.complete,
                        "sentence": event.sentence(),
                        "missing": event.missing,
                        "cursor": event.cursor.text() if event.cursor else None,
                    }
    except ReputError as error:  # nothing can be looked at, and the reply has begun
        state = {"complete": False, "sentence": str(error), "missing": True, "cursor": None}
    data = {"answer": state, "place": place, "search": wanted.values}
    yield Fragment("state", "search_state.html.j2", data)
    yield b"event: end\ndata: {}\n\n"


async def _events(
    view: View, source: MessageSource, plan: Plan, budget: Budget, cursor: str
) -> AsyncGenerator[scan.Event, None]:
    """Yield the events of a search, without rows that the user may not see."""
    after = search.parse_cursor(cursor) if cursor else None
    with view.parts.search_slots.take(view.user.name):
        events = scan.run(plan, source, budget, view.parts.clock, after)
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Row) and not view.user.sees_topic(event.topic):
                    continue
                if isinstance(event, Answer):
                    rows = [row for row in event.rows if view.user.sees_topic(row.topic)]
                    yield event if len(rows) == len(event.rows) else _without_hidden(event, rows)
                else:
                    yield event


def _without_hidden(answer: Answer, rows: list[Row]) -> Answer:
    return replace(answer, rows=tuple(rows))


def _search(view: View) -> _Search:
    """Return the search in the URL. Raises ``RequestFailed``."""
    view.query.check_names((*FIELDS, *LIMITS, *OTHERS))
    values = {name: view.query.text(name) for name in (*FIELDS, *LIMITS)}
    budget = Budget(
        view.query.number("max_messages", Budget().message_count, 1, MESSAGES_MAX),
        view.query.number("max_mb", 1024, 1, MB_MAX) << 20,
        view.query.number("max_seconds", 20, 1, SECONDS_MAX) * 1000,
    )
    if not any(values[name] for name in ("topic", "id", "key")):
        return _Search(values, None, None, budget)
    try:
        question = search.question_of(values, view.now_ms)
        plan = search.plan(question)
    except InvalidOption as error:
        raise RequestFailed(400, str(error)) from error
    if question.topic and not view.user.sees_topic(question.topic):
        raise RequestFailed(404, f"there is no topic {question.topic}")
    return _Search(values, question, plan, budget)
