"""A proxy: makes its parts, starts and stops them."""

import asyncio
import logging
from typing import Self

from reput import descriptors
from reput.clock import Clock, SystemClock
from reput.format.signing import Signer
from reput.grpc.access import Gate
from reput.grpc.front import Front
from reput.grpc.http2.server import GrpcServer
from reput.grpc.proxy.accounts import RemoteAccounts
from reput.grpc.proxy.cluster import ASK_MS, Cluster
from reput.grpc.proxy.config import ProxySettings
from reput.grpc.proxy.remote import RemoteBackend
from reput.grpc.server import GRACE_S
from reput.remoting import tls_settings
from reput.remoting.client import Dialer, RemotingClient
from reput.remoting.server_state import ConnectionLimits, ServerState

STOP_S = 5.0
"""Time that brokers have at the stop to make the messages of clients visible, in seconds."""

_log = logging.getLogger(__name__)


class Proxy:
    """A proxy. ``async with Proxy(settings) as proxy``, or ``start`` and ``stop``.

    Args:
        settings: Its settings.
        clock: The clock.

    Raises:
        InvalidOption: A file of TLS cannot be used.
    """

    def __init__(self, settings: ProxySettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        config = settings.proxy
        self.serving = ServerState(
            ConnectionLimits.of(
                config, descriptors.connections_max() // 2
            ),  # the others: to brokers
            tls=settings.tls,
            proxies=config.proxies,
            seconds=self.clock.work_s,
            used_seconds=self.clock.used_s,
        )
        """Connections of clients, their cost, and refused requests."""
        tls = settings.tls
        self._client_tls = tls_settings.client_context(tls) if tls.is_used_for_requests else None
        self._is_started = False

    async def start(self) -> None:
        """Start listening; name servers and brokers may come later.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        config = self.settings.proxy
        credentials = self.settings.access.own_credentials
        signer = None if credentials is None else Signer(credentials)
        self._remoting = RemotingClient(
            connect_timeout_ms=ASK_MS, tls=self._client_tls, signer=signer
        )
        self.cluster = Cluster(config.name_servers, self._remoting, self.clock)
        dialer = Dialer(connect_timeout_ms=ASK_MS, tls=self._client_tls, signer=signer)
        self.backend = RemoteBackend(self.cluster, dialer, self.clock)
        self.accounts = None
        gate = None
        access = self.settings.access
        if access.authentication_enabled:
            self.accounts = RemoteAccounts(self.cluster, self.clock)
            gate = Gate(
                self.accounts,
                authorizes=access.authorization_enabled,
                unsigned=access.unsigned_methods,
                unruled=access.unruled_methods,
            )
        self.front = Front(self.backend, self.clock, gate)
        self._server = GrpcServer(
            self.front.service,
            host=config.bind_address,
            port=config.grpc_server_port,
            idle_ms=config.grpc_client_idle_time_mills,
            state=self.serving,
        )
        self._is_started = True
        await self._server.start()
        self.front.start()
        _log.info("the proxy listens on %s:%d", config.bind_address, self.port)

    @property
    def port(self) -> int:
        """The port it listens on, after ``start``."""
        return self._server.port

    async def stop(self) -> None:
        """Stop: end the calls of clients, and make the messages that they hold visible soon."""
        if not self._is_started:
            return
        self._is_started = False
        await self._server.stop(GRACE_S)
        try:
            async with asyncio.timeout(STOP_S):
                await self.front.stop()
        except TimeoutError:
            _log.warning("some messages of clients stay invisible for their time: a broker hangs")
        if self.accounts is not None:
            await self.accounts.close()
        await self.cluster.close()
        await self._remoting.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
