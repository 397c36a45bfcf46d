"""Topics: a page of them, by kind, name and order."""

from reput.console import history
from reput.console.page import Page, View
from reput.console.paging import cut


async def page(view: View) -> Page:
    """Return the list of topics."""
    cluster, query, user = view.parts.cluster, view.query, view.user
    listing = cluster.rows.topics()
    choice = listing.choose(query, user.topics, user.sees_topic)
    names, paging = cut(choice.names, query)
    shown = listing.of(names)
    cluster.note_viewed(topics=names)
    data = {
        "filter": {"kind": choice.kind, "q": choice.text, "sort": choice.order.parameter},
        "counts": choice.counts,
        "known": bool(cluster.snapshot.listed_ms),
        "problem": cluster.snapshot.name_server_problem or None,
        "clusters": sorted({facts.place.cluster for facts in cluster.snapshot.masters()}),
        "rows": shown,
        "series": {
            row.name: history.rates(
                cluster.history.hour(("end", row.name), view.now_ms), history.FINE_MS
            )
            for row in shown
        },
        "step_ms": history.FINE_MS,
        "paging": paging,
    }
    return Page("topics.html.j2", "Topics", data)
