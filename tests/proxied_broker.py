"""A local broker whose 5.x clients connect to a proxy before it."""

from collections.abc import Mapping
from unittest import mock

from reput.grpc.proxy import cluster, config
from reput.grpc.proxy.server import Proxy
from reput.testing import LocalBroker
from reput.testing.controls import Controls


class ProxiedBroker(LocalBroker):
    """A broker, and a proxy in the same thread with the same clock.

    The thread may stop for a second on a busy machine, which is no silence of the broker: the
    proxy waits longer for it than in a separate process.
    """

    proxy: Proxy | None = None
    proxy_settings: Mapping[str, object] = {}
    """Further settings of the proxy."""

    async def _open_front(self, controls: Controls) -> str:
        assert self._running_parts is not None, "it runs"
        settings = config.load(
            explicit={
                "namesrv_addr": self.namesrv_addr,
                "bind_address": "127.0.0.1",
                "grpc_server_port": 0,
                **self.proxy_settings,
            }
        )
        self._running_parts.enter_context(mock.patch.object(cluster, "ASK_MS", 20_000))
        self.proxy = await self._running_parts.enter_async_context(
            Proxy(settings, clock=controls.clock)
        )
        return f"127.0.0.1:{self.proxy.port}"
