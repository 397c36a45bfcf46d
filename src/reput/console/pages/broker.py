"""A broker: rates, runtime values, and settings that differ from those of other brokers."""

from collections.abc import Mapping

from reput.console import history
from reput.console.page import Page, RequestFailed, View
from reput.console.pages.brokers import row_of
from reput.console.sources.live import gather
from reput.console.unknown import Unknown
from reput.format.codes import MASTER_ID


async def page(view: View) -> Page:
    """Return the page of a broker: of its master, or of the slave ``id``."""
    cluster, name = view.parts.cluster, view.names["broker"]
    broker_id = view.query.number("id", MASTER_ID)
    brokers = {
        facts.place.broker_id: facts
        for facts in cluster.snapshot.brokers.values()
        if facts.place.name == name
    }
    facts = brokers.get(broker_id)
    if facts is None:
        raise RequestFailed(404, f"no name server knows broker {name[:80]!r} with id {broker_id}")
    others = [other for other in cluster.snapshot.masters() if other.place.name != name]
    asked = {name: cluster.live.config(facts.place.address)} | {
        other.place.name: cluster.live.config(other.place.address)
        for other in others
        if view.query.text("diff") and not other.is_silent
    }
    if facts.is_silent:
        asked.pop(name).close()
    settings = await gather(asked)
    own = settings.pop(name, Unknown(facts.problem))
    data = {
        "broker": row_of(cluster, facts, view.now_ms),
        "ids": sorted(brokers),
        "status": dict(sorted(facts.status.items())),
        "status_ms": facts.status_ms or None,
        "topic_count": len(facts.topics),
        "group_count": len(facts.groups),
        "settings": own,
        "diff": _differences(own, settings) if view.query.text("diff") else None,
        "series": {
            "in": cluster.history.hour(("in", name), view.now_ms),
            "out": cluster.history.hour(("out", name), view.now_ms),
        },
        "step_ms": history.FINE_MS,
    }
    return Page("broker.html.j2", name, data)


def _differences(own: object, others: Mapping[str, object]) -> list[tuple[str, str, str, str]]:
    """Return (setting, value here, other broker, value there) where they differ."""
    if not isinstance(own, dict):
        return []
    return [
        (key, own.get(key, ""), other, settings.get(key, ""))
        for other, settings in others.items()
        if isinstance(settings, dict)
        for key in sorted({*own, *settings})
        if own.get(key) != settings.get(key)
    ]
