"""The audit log: who changed what, and what was refused."""

from reput.console.page import Page, View
from reput.console.paging import cut

OUTCOMES = ("", "done", "partly", "failed", "refused")


async def page(view: View) -> Page:
    """Return the page: the newest entries first, of one user, action or outcome."""
    outcome = view.query.choice("outcome", OUTCOMES, "")
    text = view.query.text("q")
    entries = [
        entry
        for entry in view.parts.audit.newest()
        if outcome in ("", entry.outcome)
        and (not text or any(text in value for value in (entry.user, entry.action, entry.detail)))
    ]
    rows, paging = cut(entries, view.query)
    data = {
        "file": str(view.parts.audit.path),
        "filter": {"outcome": outcome, "q": text},
        "entries": rows,
        "paging": paging,
    }
    return Page("audit.html.j2", "Audit log", data)
