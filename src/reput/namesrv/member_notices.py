"""Notices to the brokers of a name that another one has the smallest id (905).

Brokers with an acting master want them. ``notifyMinBrokerIdChanged`` switches them on. A notice
gets no answer, and is not sent again: brokers also ask for their members (901) each second.
Source: rocketmq 5.5.0 ``RouteInfoManager.notifyMinBrokerIdChanged``.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable

from reput.errors import ReputError
from reput.format import headers
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.namesrv import limits
from reput.namesrv.route_table import MembersChange
from reput.remoting.client import RemotingClient

SEND_MS = 300
"""Time for sending a notice, as in Java."""

_log = logging.getLogger(__name__)


class MemberNotices:
    """Sends notices.

    Args:
        tls: Makes TLS connections to brokers; None: plain ones.
        is_notifying: Returns whether brokers are notified.
    """

    def __init__(self, tls: ssl.SSLContext | None, is_notifying: Callable[[], bool]) -> None:
        self._tls = tls
        self._is_notifying = is_notifying
        self._client: RemotingClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, change: MembersChange) -> None:
        """Notify the brokers of a name, as Java does: of a smaller id all but the new one."""
        if not self._is_notifying() or not change.addresses:
            return
        if change.offline_address is not None and not change.enable_acting_master:
            return
        smallest = min(change.addresses)
        header = headers.MinBrokerIdChangeHeader(
            min_broker_id=smallest,
            min_broker_addr=change.addresses[smallest],
            offline_broker_addr=change.offline_address,
            ha_broker_addr=change.ha_address,
        )
        is_to_all = change.offline_address is not None or len(change.addresses) == 1
        for broker_id, address in change.addresses.items():
            if not is_to_all and broker_id == smallest:
                continue
            if len(self._tasks) >= limits.NAMESRV_NOTICES.maximum:
                _log.warning("%.300r is not notified: too many notices wait", address)
                continue
            fields = headers.encode(header)
            request = Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext_fields=fields)
            task = asyncio.get_running_loop().create_task(self._send(address, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Send no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _send(self, address: str, request: Command) -> None:
        if self._client is None:
            self._client = RemotingClient(tls=self._tls)
        try:
            async with asyncio.timeout(SEND_MS / 1000):
                await self._client.send_oneway(address, request, SEND_MS)
        except (ReputError, TimeoutError) as error:
            text = "%.300r was not notified that another broker has the smallest id: %s"
            _log.warning(text, address, str(error) or "no connection in time")
