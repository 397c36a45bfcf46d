"""A local broker whose 5.x clients connect to a proxy before it."""

from collections.abc import Mapping

from reput.grpc.proxy import config
from reput.grpc.proxy.server import Proxy
from reput.testing import LocalBroker
from reput.testing.controls import Controls


class ProxiedBroker(LocalBroker):
    """A broker, and a proxy in the same thread with the same clock."""

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
        self.proxy = await self._running_parts.enter_async_context(
            Proxy(settings, clock=controls.clock)
        )
        return f"127.0.0.1:{self.proxy.port}"
