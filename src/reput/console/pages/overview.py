"""The overview: problems first, then each cluster."""

from reput.console.page import Page, View


async def page(view: View) -> Page:
    """Return the overview."""
    return Page("overview.html.j2", "Overview", {"namesrv": view.parts.namesrv})
