"""Topics: a page of them, by kind, name and order."""

from reput.console import history
from reput.console.page import Page, View
from reput.console.paging import chosen, cut, ordered

KINDS = ("user", "retry", "dead letter", "system", "light", "all")
FIELDS = ("name", "queues", "messages", "rate", "last_ms", "groups", "lag")


async def page(view: View) -> Page:
    """Return the list of topics."""
    cluster, query = view.parts.cluster, view.query
    seen = (row for name, row in cluster.rows.topics().items() if view.user.sees_topic(name))
    choice = chosen(seen, query, KINDS)
    rows, order = ordered(choice.rows, query, FIELDS, "name")
    shown, paging = cut(rows, query)
    cluster.look_at(topics=[row.name for row in shown])
    data = {
        "filter": {"kind": choice.kind, "q": choice.text, "sort": order.parameter},
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
