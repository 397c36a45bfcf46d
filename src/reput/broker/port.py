"""A port of the broker: requests go to the fast path, which leaves the others to processors."""

from reput.broker.fastpath.frontend import Frontend
from reput.broker.parts import Parts
from reput.broker.processors.table import PROCESSORS
from reput.errors import RequestRefused
from reput.format import command as commands
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import LongReply, served_after

_NOT_ON_FAST_PORT = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Port:
    """Serves a port: all requests, or on the fast port all but pulls."""

    def __init__(self, parts: Parts, frontend: Frontend | None, *, is_fast: bool) -> None:
        self._parts = parts
        self._slave_port = parts.replication.slave_port
        self._frontend = frontend
        self._is_fast = is_fast

    def on_open(self, channel: Channel) -> None:
        """Prepare a connection; it is identified by its requests."""
        channel.finds_repeats = self._parts.access is not None

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Serve the requests in a buffer; return the position of the first incomplete one."""
        try:
            if self._frontend is None:
                return channel.take_frames(view, 0, end)
            return self._frontend.on_bytes(channel, view, end, takes_pulls=not self._is_fast)
        finally:
            parts = self._parts
            self._slave_port.pump()
            if parts.pending_replies.has_put:
                parts.pending_replies.has_put = False
                if parts.holds_requests:
                    parts.store.notify()  # before the store's next step

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        """Serve a request, if its sender may send it."""
        access = self._parts.access
        if access is None:
            return self._serve(channel, request)
        checking = access.admit(request, channel.address)
        if checking is None:
            return self._serve(channel, request)
        return served_after(checking, lambda: self._serve(channel, request))

    def _serve(self, channel: Channel, request: Command) -> Command | LongReply | None:
        processor = PROCESSORS.get(request.code)
        if self._is_fast and request.code in _NOT_ON_FAST_PORT:
            text = f" request type {request.code} not supported"
            return commands.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        if processor is None:
            raise RequestRefused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
        return processor(self._parts, channel, request)

    def on_closed(self, channel: Channel) -> None:
        """Remove all state of a connection."""
        self._parts.held_pulls.forget(channel)
        self._parts.pops.held.forget(channel)
        self._parts.lite.held.forget(channel)
        self._parts.members.forget(channel)
