"""The settings of a proxy: proxy.conf, or the rmq-proxy.json of RocketMQ's.

They are loaded by ``reput.config``. Field names are the keys of RocketMQ's ``ProxyConfig`` in
snake_case; those of TLS and of access control are in their own classes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config
from reput.broker.settings.access import AccessSettings
from reput.client.config import name_servers
from reput.config import Range
from reput.errors import InvalidOption
from reput.format.ip_address import Network
from reput.remoting import limits, networks, tls_settings
from reput.remoting.tls_settings import TlsSettings

DEFAULT_PORT = 8081

Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, 65535)]

_TLS_KEYS = {
    "tlsTestModeEnable": "tls.test.mode.enable",
    "tlsKeyPath": "tls.server.keyPath",
    "tlsKeyPassword": "tls.server.keyPassword",
    "tlsCertPath": "tls.server.certPath",
}
"""Key of RocketMQ's proxy -> that of its brokers, which is used here."""

ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = {
    "proxyMode": "a proxy serves the brokers of its name servers; a broker serves 5.x "
    "clients itself with grpcServerPort",
    "remotingListenPort": "remoting clients connect to the brokers themselves",
    "rocketMQClusterName": "all clusters of the name servers are served",
    "proxyClusterName": "clients are registered at the brokers, not at other proxies",
    "useEndpointPortFromRequest": "routes always have the endpoint that the client uses",
    "enableAclRpcHookForClusterMode": "the keys of tools.yml are in "
    "innerClientAuthenticationCredentials",
    "enableTopicMessageTypeCheck": "the type of a message is always checked",
}
"""Keys of RocketMQ that have no effect here, each with the reason."""

_PROVIDERS = {
    f"{word}MetadataProvider": f"org.apache.rocketmq.proxy.auth.Proxy{kind}MetadataProvider"
    for word, kind in (("authentication", "Authentication"), ("authorization", "Authorization"))
}
"""Key -> the class of RocketMQ's proxy that reads from brokers, as this one always does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProxyConfig:
    """Addresses and limits of a proxy.

    Raises:
        InvalidOption: A value is outside its range.
    """

    keys: ClassVar[config.Keys] = config.Keys(without_effect=ACCEPTED_WITHOUT_EFFECT)

    # --- brokers ---------------------------------------------------------

    namesrv_addr: str = ""
    """Name servers of the brokers: ``host:port;host:port``."""

    # --- listening -------------------------------------------------------

    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    grpc_server_port: Port = DEFAULT_PORT
    """Port to listen on; 0 takes any free port."""
    grpc_client_idle_time_mills: Annotated[int, Range(1_000)] = 120_000
    """Milliseconds after which a connection without a call is closed."""
    reput_proxy_protocol_from: str = ""
    """Networks of load balancers, separated by commas: connections from there begin with a PROXY
    header (version 1 or 2), and its source is the client's address. If empty, no header is read."""
    metrics_port: Port = 0
    """HTTP port of /metrics and /health; 0: none."""
    reput_metrics_address: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 gives other machines access."""

    # --- resources of connections ----------------------------------------

    reput_connections_max: Count = limits.CONNECTIONS.maximum
    """Maximum number of connections of clients; further ones are closed at once."""
    reput_connections_per_address_max: Count = limits.CONNECTIONS_PER_ADDRESS.maximum
    """Maximum number of connections from one address."""
    reput_unfinished_bytes_max: Count = limits.UNFINISHED_BYTES.maximum
    """Maximum bytes of incomplete frames and handshakes; above it one of the largest is closed."""
    reput_unfinished_bytes_per_address_max: Count = limits.UNFINISHED_BYTES_PER_ADDRESS.maximum
    """Maximum bytes of incomplete frames and handshakes on the connections from one address."""
    reput_unread_bytes_max: Count = limits.UNREAD_BYTES.maximum
    """Maximum bytes of unread and half-made replies; above it one of the largest is closed."""
    reput_unread_bytes_per_address_max: Count = limits.UNREAD_BYTES_PER_ADDRESS.maximum
    """Maximum bytes of unread and half-made replies on the connections from one address."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if not self.reput_metrics_address:
            allowed = "an address: 127.0.0.1, or 0.0.0.0 to let other machines in"
            raise InvalidOption("reputMetricsAddress", "", allowed)
        _ = self.proxies, self.name_servers

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers. Raises ``InvalidOption``: there are none."""
        return name_servers(self.namesrv_addr)

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Networks of the load balancers."""
        return networks.parse(self.reput_proxy_protocol_from, "reputProxyProtocolFrom")


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """All settings of a proxy."""

    proxy: ProxyConfig
    tls: TlsSettings = field(default_factory=TlsSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    warnings: tuple[str, ...] = ()
    """A sentence for each unknown key, and for each one without effect."""

    def pairs(self) -> dict[str, str]:
        """Return the settings that are set, by key; secrets are hidden by the caller."""
        texts = {**config.texts(self.proxy), **config.texts(self.access)}
        pairs = {key: text for key, text in texts.items() if text is not None}
        return {**pairs, **self.tls.pairs(set_only=True)}


def load(
    path: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
    fallback: str | None = None,
) -> ProxySettings:
    """Return the settings of a proxy.

    Args:
        path: Path of proxy.conf, or of an rmq-proxy.json.
        environment: ``os.environ``.
        explicit: snake_case field -> value, with the highest precedence.
        fallback: The name servers if no setting has them.

    Raises:
        InvalidOption: The file cannot be read, or a value is not allowed.
    """
    values = {} if fallback is None else {"namesrvAddr": fallback}
    values |= _values(path)
    settings = config.Settings(values, environment=environment, explicit=explicit)
    proxy = settings.make(ProxyConfig)
    access = settings.make(AccessSettings)
    tls = tls_settings.load(settings)
    if access.authentication_enabled and access.own_credentials is None:
        raise InvalidOption(
            "innerClientAuthenticationCredentials",
            "",
            'the super user with whom this proxy reads users: {"accessKey":…,"secretKey":…}',
        )
    warnings = [str(unknown) for unknown in settings.unknown()]
    warnings += [f"{key} has no effect: {why}" for key, why in settings.without_effect.items()]
    if access.own_credentials is not None and not access.authentication_enabled:
        warnings.append(
            "authenticationEnabled=false: every client may do what the user of "
            "innerClientAuthenticationCredentials may"
        )
    return ProxySettings(proxy, tls, access, (*warnings, *access.warnings))


def _values(path: str | None) -> dict[str, str]:
    """Return the settings of a file, with the keys of TLS that are used here."""
    if path is None:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("--config", path, f"a readable file: {error}") from error
    values = _json(path, text) if text.lstrip().startswith("{") else config.parse_properties(text)
    return {
        _TLS_KEYS.get(key, key): value
        for key, value in values.items()
        if _PROVIDERS.get(key) != value
    }


def _json(path: str, text: str) -> dict[str, str]:
    try:
        members = json.loads(text)
    except ValueError as error:
        raise InvalidOption("--config", path, f"a file of settings, or JSON: {error}") from error
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in members.items()
        if value is not None
    }
