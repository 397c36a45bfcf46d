"""The stores of the configuration, and one of them: its files, queues, index, tables, verdicts."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from reput.console.access import User
from reput.console.changes import Preview, Receipt
from reput.console.page import Page, Unknown, View
from reput.console.pages.messages import store_of
from reput.console.settings import StorePlace
from reput.console.verifying import Verification
from reput.errors import ReputError
from reput.html.texts import size_text

_Read = Callable[[str], asyncio.Task[Mapping[str, Any]]]
_TABLES = ("topics", "queues", "groups")
"""Facts with the names of topics and groups."""
WAIT_S = 2.0
"""Time that a page waits for a folder before it reports that the folder is being read."""


async def list_page(view: View) -> Page:
    """Return the page of all stores."""
    places = sorted(view.parts.folders.places.values(), key=lambda place: place.name)
    infos = await asyncio.gather(*(_facts(place, view.parts.folders.info) for place in places))
    stores = [
        {"name": place.name, "path": place.path, "info": info, "is_being_verified": is_verified}
        for place, info in zip(places, infos, strict=True)
        for is_verified in [view.parts.verifications.running == place.name]
    ]
    return Page("stores.html.j2", "Stores", {"stores": stores})


async def page(view: View) -> Page:
    """Return the page of a store."""
    place = store_of(view)
    facts = await _facts(place, view.parts.folders.facts)
    data = {
        "name": place.name,
        "path": place.path,
        "facts": facts if isinstance(facts, Unknown) else _seen(facts, view.user),
        "verification": _seen_report(view.parts.verifications.of(place.name), view.user),
        "running": view.parts.verifications.running,
    }
    return Page("store.html.j2", f"Store {place.name}", data)


def _seen(facts: Mapping[str, Any], user: User) -> Mapping[str, Any]:
    """Return facts of a store without topics and groups that a user does not see."""
    return {**facts, **{name: _seen_rows(facts[name], user) for name in _TABLES}}


def _seen_rows(
    rows: list[Mapping[str, Any]] | Unknown, user: User
) -> list[Mapping[str, Any]] | Unknown:
    if isinstance(rows, Unknown):
        return rows
    return [
        row
        for row in rows
        if user.sees_topic(row["topic"]) and ("group" not in row or user.sees_group(row["group"]))
    ]


def _seen_report(run: Verification | None, user: User) -> Verification | None:
    """Return a verification; entries that name topics are left out if not all are seen."""
    if run is None or run.report is None or user.sees_everything:
        return run
    names = tuple(run.report["left_out"])
    counts = {name: run.report["left_out"][name] + len(run.report[name]) for name in names}
    return replace(run, report={**run.report, **dict.fromkeys(names, ()), "left_out": counts})


async def _facts(place: StorePlace, read: _Read) -> Mapping[str, Any] | Unknown:
    """Return what a read of a store returns, or why it is not known."""
    task = read(place.name)
    await asyncio.wait([task], timeout=WAIT_S)
    if not task.done():
        return Unknown("the folder is still being read; reload the page")
    try:
        facts: Mapping[str, Any] = task.result()
    except ReputError as error:
        return Unknown(str(error))
    return facts


# --- verification -------------------------------------------------------------------------------


async def preview_verification(view: View) -> Preview:
    """Return what a verification would read."""
    place = store_of(view)
    facts = await _facts(place, view.parts.folders.info)
    size = "unknown" if isinstance(facts, Unknown) else size_text(facts["log"]["bytes"])
    return Preview(
        title=f"Verify store {place.name}",
        button="Verify",
        columns=("Store", "Folder", "Log to read"),
        rows=[(place.name, place.path, size)],
        state={},
        warnings=["It reads every byte of the log, and changes nothing."],
    )


async def start_verification(view: View, preview: Preview) -> Receipt:
    """Start a verification."""
    place = store_of(view)
    view.parts.verifications.start(place)
    text = f"Store {place.name} is being verified; its page shows the progress."
    return Receipt("done", text, link=("s", place.name))
