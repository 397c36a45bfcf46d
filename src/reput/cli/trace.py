"""``reput message trace``: who sent a message, and who consumed it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.connecting import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    JsonOption,
    NamesrvOption,
    TimeoutOption,
    UtcOption,
    ask,
)
from reput.errors import NotInStore

if TYPE_CHECKING:
    from reput.client.admin.traces import FoundTrace


def trace(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id that the message's producer was told.")
    ],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Where clients write their traces.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    namesrv: NamesrvOption = DEFAULT_NAMESRV,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Show who sent a message and who consumed it, if their clients write traces.

    Java clients do with enableMsgTrace, Python ones with ClientConfig(enable_trace=True); a trace
    is there about a second later.
    """
    from reput.cli import printing

    found = ask(namesrv, timeout, lambda admin: admin.message_trace(message_id, topic=topic))
    if not found:
        raise NotInStore(f"no trace of message {message_id} in topic {topic}")
    if json:
        printing.print_json({"traces": [_document(one) for one in found]})
        return
    clock = printing.Clock(utc)
    printing.print_table(
        ("@time", "what", "group", "client", "#ms", "result"),
        [
            (
                clock.text(one.time_ms),
                _KINDS[type(one.trace).__name__],
                getattr(one.trace, "group", None),
                one.client_address,
                getattr(one.trace, "cost_ms", None),
                _result(one),
            )
            for one in found
        ],
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


def _document(one: "FoundTrace") -> dict[str, Any]:
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
