"""Changes of brokers: whether producers may write to one.

Name servers take the write permission of all topics of a broker out of their routes, or put it
back, as ``mqadmin wipeWritePerm`` does: consumers read on. It lasts until the broker registers a
topic again that has been changed.
"""

from reput.console.access import Right
from reput.console.changes import Change, Preview, Receipt
from reput.console.page import RequestFailed, View
from reput.console.snapshot import BrokerFacts

WRITING = ("off", "on")


def _wanted(view: View) -> tuple[str, bool]:
    """Return the broker, and whether it should be writable. Raises ``RequestFailed``."""
    name, text = view.names["broker"], view.form.get("writing", "")
    if text not in WRITING:
        raise RequestFailed(400, f"writing={text[:40]!r}: allowed are {', '.join(WRITING)}")
    return name, text == "on"


def _master(view: View, name: str) -> BrokerFacts:
    for facts in view.parts.cluster.snapshot.masters():
        if facts.place.name == name:
            return facts
    raise RequestFailed(404, f"no name server knows a master of broker {name[:80]!r}")


async def preview_writing(view: View) -> Preview:
    """Return what producers would lose or get."""
    name, is_on = _wanted(view)
    facts = _master(view, name)
    others = [
        other.place.name
        for other in view.parts.cluster.snapshot.masters()
        if other.place.cluster == facts.place.cluster and other is not facts
    ]
    warnings = []
    if not is_on:
        others_text = f"send to {', '.join(others)} then" if others else "cannot send anywhere then"
        warnings.append(f"Producers {others_text}. Consumers read on.")
        alone = [
            topic
            for topic in facts.topics
            if view.user.sees_topic(topic)
            and not any(
                topic in other.topics
                for other in view.parts.cluster.snapshot.masters()
                if other is not facts
            )
        ]
        if others and alone:
            warnings.append(f"{len(alone)} topics are on no other broker, as {alone[0]}.")
    return Preview(
        title=f"Switch writing to {name} {'on' if is_on else 'off'}",
        button="Let producers write to it" if is_on else "Let producers write elsewhere",
        columns=("Broker", "Cluster", "Topics", "Writing then"),
        rows=[(name, facts.place.cluster, len(facts.topics), "on" if is_on else "off")],
        state={"address": facts.place.address},
        warnings=warnings,
        typed_name="" if is_on else name,
    )


async def run_writing(view: View, preview: Preview) -> Receipt:
    """Change the routes of all name servers."""
    name, is_on = _wanted(view)
    admin = view.parts.cluster.live.admin
    count = await (admin.add_write_perm if is_on else admin.wipe_write_perm)(name)
    state = "writable again" if is_on else "no longer writable"
    return Receipt(
        "done",
        f"{name} is {state} for producers, in the routes of {count} topics.",
        link=("brokers", name),
    )


WRITE = Change("broker.writing", Right.ADMIN, preview_writing, run_writing)
