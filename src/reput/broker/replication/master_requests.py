"""Requests of a slave to its master before it follows it: for its identity and its log.

These are requests for operators, which all versions of RocketMQ answer on the port for requests.
Brokers that require permissions may refuse them.
"""

from typing import NamedTuple

from reput import config
from reput.errors import RemotingError, ReputError
from reput.format import bodies, headers
from reput.format.bodies import KvTable
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import ViewMessageHeader
from reput.remoting.client import RemotingClient

TIMEOUT_MS = 3_000


class Unanswered(ReputError):
    """The master does not answer a request, refuses it, or its answer cannot be read."""


class RequestDenied(Unanswered):
    """The master refuses a request."""


class MasterIdentity(NamedTuple):
    """Identity of a master, from its own reply."""

    cluster: str
    broker_name: str
    role: str
    file_size: int
    """Size of the files of its log, in bytes."""


class MasterRange(NamedTuple):
    """Range of physical offsets of the master's log."""

    min_offset: int
    max_offset: int
    """Physical offset after the last readable byte."""
    has_newer_tables: bool = False
    """True if it may answer requests for tables that RocketMQ has from 5.0 on."""


class MasterRequests:
    """Sends requests to a master.

    Args:
        client: Opens the connection.
        address: Address of the master's port for requests.
    """

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address
        """Address of the master's port for requests."""

    async def identity(self) -> MasterIdentity:
        """Return the master's names, role and file size.

        Raises:
            Unanswered: The master did not return them.
        """
        what = "its settings"
        reply = await self._ask(Command(RequestCode.GET_BROKER_CONFIG), what)
        try:
            settings = config.parse_properties(reply.body.decode())
            return MasterIdentity(
                settings["brokerClusterName"],
                settings["brokerName"],
                settings["brokerRole"],
                int(settings["mappedFileSizeCommitLog"]),
            )
        except (ReputError, KeyError, ValueError) as error:
            raise self._unreadable(what, error) from error

    async def log_range(self) -> MasterRange:
        """Return the range of the master's log.

        Raises:
            Unanswered: The master did not return it.
        """
        what = "the offsets of its log"
        reply = await self._ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO), what)
        try:
            table = bodies.decode(KvTable, reply.body).table
            min_offset = max(int(table["commitLogMinOffset"]), 0)  # of RocketMQ without files: -1
            return MasterRange(
                min_offset,
                int(table["commitLogMaxOffset"]),
                # Older brokers lack it, and some of them do not even refuse unknown requests.
                has_newer_tables="timerReadBehind" in table,
            )
        except (ReputError, KeyError, ValueError) as error:
            raise self._unreadable(what, error) from error

    async def record_at(self, physical_offset: int) -> bytes | None:
        """Return the master's record at a physical offset; None if there is none.

        Raises:
            Unanswered: It does not answer. A refusal is the answer that it has none: there is no
                separate code for that.
        """
        fields = headers.encode(ViewMessageHeader(offset=physical_offset))
        request = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields=fields)
        reply = await self._invoke(request, f"the record at physical offset {physical_offset}")
        return bytes(reply.body) if reply.code == ResponseCode.SUCCESS else None

    async def table(self, code: RequestCode, what: str) -> Command:
        """Return a reply with a table of the master.

        Raises:
            Unanswered: It does not answer.
            RequestDenied: It refuses.
        """
        return await self._ask(Command(code), what)

    async def _ask(self, request: Command, what: str) -> Command:
        reply = await self._invoke(request, what)
        if reply.code != ResponseCode.SUCCESS:
            remark = reply.remark or ""
            text = f"{self.address} refuses {what}: code {reply.code} {remark}"
            raise RequestDenied(text.rstrip())
        return reply

    async def _invoke(self, request: Command, what: str) -> Command:
        try:
            return await self._client.invoke(self.address, request, TIMEOUT_MS)
        except RemotingError as error:
            raise Unanswered(f"{self.address} does not answer for {what}: {error}") from error

    def _unreadable(self, what: str, error: Exception) -> Unanswered:
        text = f"no {error}" if isinstance(error, KeyError) else str(error)
        return Unanswered(f"{self.address} answers for {what}, but: {text}")
