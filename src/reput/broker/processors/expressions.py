"""Requests with an SQL92 expression, which is compiled in steps before they are served."""

from collections.abc import Callable, Generator

from reput.broker.parts import Parts
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps

Serve = Callable[[Parts, Channel, Command], Command | LongReply | None]


def compiling(serve: Serve, type_field: str, text_field: str) -> Serve:
    """Return a processor that compiles the expression of a request first, if that takes time.

    Args:
        serve: The processor.
        type_field: Name of the header field with the type of the expression.
        text_field: Name of the header field with the expression.
    """

    def serve_compiled(
        parts: Parts, channel: Channel, request: Command
    ) -> Command | LongReply | None:
        fields = request.ext_fields
        if fields is not None and text_field in fields:
            steps = parts.filters.compile_in_steps(fields.get(type_field), fields[text_field])
            if steps is not None:
                return _serve_after(steps, serve, parts, channel, request)
        return serve(parts, channel, request)

    return serve_compiled


def _serve_after(
    steps: Steps[None], serve: Serve, parts: Parts, channel: Channel, request: Command
) -> Steps[Command | None]:
    yield from steps
    reply = serve(parts, channel, request)
    return (yield from reply) if isinstance(reply, Generator) else reply
