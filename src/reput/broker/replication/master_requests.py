"""What a slave asks its master before it follows it: who it is, and which log it has.

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


class MasterIdentity(NamedTuple):
    """A broker as it describes itself."""

    cluster: str
    broker_name: str
    role: str
    file_size: int
    """Size of the files of its log, in bytes."""


class MasterRange(NamedTuple):
    """The physical offsets of a log."""

    min_offset: int
    max_offset: int
    """Physical offset after the last readable byte."""


class MasterRequests:
    """Asks a master.

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
            Unanswered: It does not say.
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
        """Return where its log begins and ends.

        Raises:
            Unanswered: It does not say.
        """
        what = "the offsets of its log"
        reply = await self._ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO), what)
        try:
            table = bodies.decode(KvTable, reply.body).table
            # Java's says -1 while its log has no file.
            begin = max(int(table["commitLogMinOffset"]), 0)
            return MasterRange(begin, int(table["commitLogMaxOffset"]))
        except (ReputError, KeyError, ValueError) as error:
            raise self._unreadable(what, error) from error

    async def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record that the master has at a physical offset; None if it has none.

        Raises:
            Unanswered: It does not answer. A refusal is the answer that it has none: there is no
                separate code for that.
        """
        fields = headers.encode(ViewMessageHeader(offset=physical_offset))
        request = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields=fields)
        reply = await self._invoke(request, f"the record at physical offset {physical_offset}")
        return bytes(reply.body) if reply.code == ResponseCode.SUCCESS else None

    async def table(self, code: RequestCode, what: str) -> bytes:
        """Return the body of a reply with a table of the master.

        Raises:
            Unanswered: It does not answer, or refuses.
        """
        return bytes((await self._ask(Command(code), what)).body)

    async def _ask(self, request: Command, what: str) -> Command:
        reply = await self._invoke(request, what)
        if reply.code != ResponseCode.SUCCESS:
            remark = reply.remark or ""
            raise Unanswered(f"{self.address} refuses {what}: code {reply.code} {remark}".rstrip())
        return reply

    async def _invoke(self, request: Command, what: str) -> Command:
        try:
            return await self._client.invoke(self.address, request, TIMEOUT_MS)
        except RemotingError as error:
            raise Unanswered(f"{self.address} does not answer for {what}: {error}") from error

    def _unreadable(self, what: str, error: Exception) -> Unanswered:
        text = f"no {error}" if isinstance(error, KeyError) else str(error)
        return Unanswered(f"{self.address} answers for {what}, but: {text}")
