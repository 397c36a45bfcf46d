"""``reput message trace``: who sent a message, and who consumed it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.options import CLUSTER, Session, command
from reput.cli.printing import Document, Table, View
from reput.errors import NotInStore
from reput.format.names import TRACE_TOPIC

if TYPE_CHECKING:
    from reput.client.admin.traces import FoundTrace


@command(*CLUSTER, "utc")
def trace(
    session: Session,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id that the message's producer was told.")
    ],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Where clients write their traces.")
    ] = TRACE_TOPIC,
) -> View:
    """Show who sent a message and who consumed it, if their clients write traces.

    Java clients do with enableMsgTrace, Python ones with ClientConfig(enable_trace=True); a trace
    is there about a second later.
    """
    found = session.ask(lambda admin: admin.message_trace(message_id, topic=topic))
    if not found:
        raise NotInStore(f"no trace of message {message_id} in topic {topic}")
    return View(
        {"traces": [_document(one) for one in found]},
        Table(
            "@time=time_ms what group client=client_address #ms result",
            found,
            computed={
                "what": lambda one: _KINDS[type(one.trace).__name__],
                "group": lambda one: getattr(one.trace, "group", None),
                "ms": lambda one: getattr(one.trace, "cost_ms", None),
                "result": _result,
            },
        ),
    )


_KINDS = {
    "Sent": "sent",
    "Begun": "consuming",
    "Consumed": "consumed",
    "TransactionEnded": "transaction",
    "Recalled": "recalled",
}


def _result(one: "FoundTrace") -> str | None:
    state = getattr(one.trace, "state", None)
    if state is not None:
        return str(state).lower()
    is_success = getattr(one.trace, "is_success", None)
    if is_success is None:
        return None
    return "success" if is_success else "failed"


def _document(one: "FoundTrace") -> Document:
    trace = dataclasses.asdict(one.trace)
    for name in ("kind", "outcome"):
        if name in trace:
            trace[name] = trace[name].name.lower()
    return {
        "what": _KINDS[type(one.trace).__name__],
        **trace,
        "time_ms": one.time_ms,
        "client_address": one.client_address,
    }
