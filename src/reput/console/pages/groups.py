"""Consumer groups: a page of them, by name and order."""

from reput.console import history
from reput.console.page import Page, View
from reput.console.paging import cut, ordered

KINDS = ("user", "system", "all")
FIELDS = ("name", "lag", "delay_ms", "rate", "members", "retries", "dead_letters")


async def page(view: View) -> Page:
    """Return the list of groups."""
    cluster, query = view.parts.cluster, view.query
    kind, text = query.choice("kind", KINDS, "user"), query.text("q")
    seen = [row for name, row in cluster.rows.groups().items() if view.user.sees_group(name)]
    counts = dict.fromkeys(KINDS, 0)
    for row in seen:
        counts[row.kind] += 1
        counts["all"] += 1
    letters = text.lower()
    chosen = (row for row in seen if kind in ("all", row.kind) and letters in row.name.lower())
    rows, order = ordered(chosen, query, FIELDS, "-lag")
    shown, paging = cut(rows, query)
    topics = {topic for row in shown for topic in row.topics}
    cluster.look_at(topics, [row.name for row in shown])
    data = {
        "filter": {"kind": kind, "q": text, "sort": order.parameter},
        "counts": counts,
        "known": bool(cluster.snapshot.listed_ms),
        "problem": cluster.snapshot.name_server_problem or None,
        "rows": shown,
        "series": {row.name: cluster.history.hour(("lag", row.name), view.now_ms) for row in shown},
        "step_ms": history.FINE_MS,
        "paging": paging,
    }
    return Page("groups.html.j2", "Groups", data)
