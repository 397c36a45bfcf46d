"""Requests with an SQL92 expression, which is compiled in steps before they are served."""

from collections.abc import Callable

from reput.broker.parts import Parts
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import LongReply, served_after

Processor = Callable[[Parts, Channel, Command], Command | LongReply | None]


def compiling(serve: Processor, type_field: str, text_field: str) -> Processor:
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
                return served_after(steps, lambda: serve(parts, channel, request))
        return serve(parts, channel, request)

    return serve_compiled
