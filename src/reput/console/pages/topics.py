"""Topics: a page of them, by kind, name and order."""

from reput.console import history
from reput.console.page import Page, View
from reput.console.paging import cut, ordered

KINDS = ("user", "retry", "dead letter", "system", "light", "all")
FIELDS = ("name", "queues", "messages", "rate", "last_ms", "groups", "lag")


async def page(view: View) -> Page:
    """Return the list of topics."""
    cluster, query = view.parts.cluster, view.query
    kind, text = query.choice("kind", KINDS, "user"), query.text("q")
    seen = [row for name, row in cluster.rows.topics().items() if view.user.sees_topic(name)]
    counts = dict.fromkeys(KINDS, 0)
    for row in seen:
        counts[row.kind] += 1
        counts["all"] += 1
    letters = text.lower()
    chosen = (row for row in seen if kind in ("all", row.kind) and (letters in row.name.lower()))
    rows, order = ordered(chosen, query, FIELDS, "name")
    shown, paging = cut(rows, query)
    cluster.look_at(topics=[row.name for row in shown])
    data = {
        "filter": {"kind": kind, "q": text, "sort": order.parameter},
        "counts": counts,
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
