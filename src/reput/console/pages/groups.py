"""Consumer groups: a page of them, by name and order."""

from reput.console import history
from reput.console.page import Page, View
from reput.console.paging import chosen, cut, ordered

KINDS = ("user", "system", "all")
FIELDS = ("name", "lag", "delay_ms", "rate", "members", "retries", "dead_letters")


async def page(view: View) -> Page:
    """Return the list of groups."""
    cluster, query = view.parts.cluster, view.query
    seen = (row for name, row in cluster.rows.groups().items() if view.user.sees_group(name))
    choice = chosen(seen, query, KINDS)
    rows, order = ordered(choice.rows, query, FIELDS, "-lag")
    shown, paging = cut(rows, query)
    topics = {topic for row in shown for topic in row.topics}
    cluster.look_at(topics, [row.name for row in shown])
    data = {
        "filter": {"kind": choice.kind, "q": choice.text, "sort": order.parameter},
        "counts": choice.counts,
        "known": bool(cluster.snapshot.listed_ms),
        "problem": cluster.snapshot.name_server_problem or None,
        "rows": shown,
        "series": {row.name: cluster.history.hour(("lag", row.name), view.now_ms) for row in shown},
        "step_ms": history.FINE_MS,
        "paging": paging,
    }
    return Page("groups.html.j2", "Groups", data)
