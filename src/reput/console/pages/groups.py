"""Consumer groups: a page of them, by name and order."""

from reput.console import history
from reput.console.page import Page, View
from reput.console.paging import cut


async def page(view: View) -> Page:
    """Return the list of groups."""
    cluster, query, user = view.parts.cluster, view.query, view.user
    listing = cluster.rows.groups()
    choice = listing.choose(query, user.groups, user.sees_group)
    names, paging = cut(choice.names, query)
    shown = listing.of(names)
    topics = {topic for row in shown for topic in row.topics}
    cluster.note_viewed(topics, names)
    data = {
        "filter": {"kind": choice.kind, "q": choice.text, "sort": choice.order.parameter},
        "counts": choice.counts,
        "known": bool(cluster.snapshot.listed_ms),
        "problem": cluster.snapshot.name_server_problem or None,
        "rows": [row.seen_by(user) for row in shown],
        "series": {row.name: cluster.history.hour(("lag", row.name), view.now_ms) for row in shown},
        "step_ms": history.FINE_MS,
        "paging": paging,
    }
    return Page("groups.html.j2", "Groups", data)
