"""``reput message trace``: the traces of a message's producer and consumers."""

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
        str, typer.Argument(metavar="ID", help="The unique key, which its producer got as the id.")
    ],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="The topic that clients trace to.")
    ] = TRACE_TOPIC,
) -> View:
    """Show which clients sent and consumed a message, if they write traces.

    Java clients write them with enableMsgTrace, Python clients with
    ClientConfig(enable_trace=True), about a second later.
    """
    traces = session.ask(lambda admin: admin.message_trace(message_id, topic=topic))
    if not traces:
        raise NotInStore(f"no trace of message {message_id} in topic {topic}")
    return View(
        {"traces": [_document(entry) for entry in traces]},
        Table(
            "@time=time_ms what group client=client_address #ms result",
            traces,
            computed={
                "what": lambda entry: _KINDS[type(entry.trace).__name__],
                "group": lambda entry: getattr(entry.trace, "group", None),
                "ms": lambda entry: getattr(entry.trace, "cost_ms", None),
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


def _result(entry: "FoundTrace") -> str | None:
    state = getattr(entry.trace, "state", None)
    if state is not None:
        return str(state).lower()
    is_success = getattr(entry.trace, "is_success", None)
    if is_success is None:
        return None
    return "success" if is_success else "failed"


def _document(entry: "FoundTrace") -> Document:
    trace = dataclasses.asdict(entry.trace)
    for name in ("kind", "outcome"):
        if name in trace:
            trace[name] = trace[name].name.lower()
    return {
        "what": _KINDS[type(entry.trace).__name__],
        **trace,
        "time_ms": entry.time_ms,
        "client_address": entry.client_address,
    }
