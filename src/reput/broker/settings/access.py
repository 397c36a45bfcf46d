"""The settings of access control 2.0, with the keys of RocketMQ's ``AuthConfig`` in broker.conf.

They are read at the start only, and cannot be changed over the network. Where Java continues
without protection, this refuses to start: authorization without authentication, providers that do
not exist here, admin requests on a whitelist.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from reput import config
from reput.errors import InvalidOption
from reput.format.codes import RequestCode
from reput.format.signing import Credentials
from reput.secret import NO_SECRET, Secret

_AUTHENTICATION = "org.apache.rocketmq.auth.authentication"
_AUTHORIZATION = "org.apache.rocketmq.auth.authorization"
_CLASSES = {
    "authenticationProvider": (
        f"{_AUTHENTICATION}.provider.DefaultAuthenticationProvider",
    ),
    "authenticationMetadataProvider": (
        f"{_AUTHENTICATION}.provider.LocalAuthenticationMetadataProvider",
    ),
    "authenticationStrategy": (
        f"{_AUTHENTICATION}.strategy.StatelessAuthenticationStrategy",
        f"{_AUTHENTICATION}.strategy.StatefulAuthenticationStrategy",
    ),
    "authorizationProvider": (
        f"{_AUTHORIZATION}.provider.DefaultAuthorizationProvider",
    ),
    "authorizationMetadataProvider": (
        f"{_AUTHORIZATION}.provider.LocalAuthorizationMetadataProvider",
    ),
    "authorizationStrategy": (
        f"{_AUTHORIZATION}.strategy.StatelessAuthorizationStrategy",
        f"{_AUTHORIZATION}.strategy.StatefulAuthorizationStrategy",
    ),
}  # fmt: skip
"""Key -> the names of the built-in classes. The stateful ones are served statelessly: they accept
later requests without looking at their signatures."""

_GRPC = "apache.rocketmq.v2."
_STREAMS = {"TelemetryCommand": "Telemetry"}

NEVER_WHITELISTED = frozenset(
    {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG, *range(3001, 3011)}
)
"""Codes that change or show settings, users or rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Which requests are checked, and the first users.

    Raises:
        InvalidOption: A value is not allowed, or two contradict each other.
    """

    keys: ClassVar[config.Keys] = config.Keys()

    authentication_enabled: bool = False
    """Serve only requests that are signed by a user."""
    authorization_enabled: bool = False
    """Serve only requests that the rules of their user allow."""
    authentication_provider: str = ""
    """Class of Java that checks signatures: only the built-in one."""
    authentication_metadata_provider: str = ""
    """Class of Java that stores users: only the local one, which is the default here."""
    authentication_strategy: str = ""
    """Class of Java; a stateful one is accepted, and every request is checked nevertheless."""
    authentication_whitelist: str = ""
    """Request codes, separated by commas, that need no signature; calls of 5.x clients by the names
    of their requests, such as ``apache.rocketmq.v2.QueryRouteRequest``."""
    authorization_provider: str = ""
    """Class of Java that evaluates rules: only the built-in one."""
    authorization_metadata_provider: str = ""
    """Class of Java that stores rules: only the local one, which is the default here."""
    authorization_strategy: str = ""
    """Class of Java, which is treated like ``authenticationStrategy``."""
    authorization_whitelist: str = ""
    """Requests that need no rule, in the form of ``authenticationWhitelist``."""
    init_authentication_user: Secret = NO_SECRET
    """A super user that is made at the start if it does not exist: ``{"username":…,"password":…}``.
    """
    inner_client_authentication_credentials: Secret = NO_SECRET
    """Another one, with which this broker signs its requests to name servers and brokers:
    ``{"accessKey":…,"secretKey":…}``."""
    migrate_auth_from_v1_enabled: bool = False
    """Make users and rules of the accounts of access control 1.0 at the start, unless they are
    users; white addresses are dropped."""

    def __post_init__(self) -> None:
        texts = config.texts(self)
        for key, names in _CLASSES.items():
            text = texts[key]
            if text and text not in names:
                raise InvalidOption(key, text, " or ".join(names))
        if self.authorization_enabled and not self.authentication_enabled:
            allowed = "false, or authenticationEnabled=true: no name would be verified"
            raise InvalidOption("authorizationEnabled", "true", allowed)
        _ = self.first_users, self.unsigned_codes, self.unruled_codes

    @property
    def unsigned_codes(self) -> frozenset[int]:
        """Codes that need no signature."""
        return _codes("authenticationWhitelist", self.authentication_whitelist)

    @property
    def unruled_codes(self) -> frozenset[int]:
        """Codes that need no rule."""
        return _codes("authorizationWhitelist", self.authorization_whitelist)

    @property
    def unsigned_methods(self) -> frozenset[str]:
        """Methods of 5.x clients that need no signature."""
        return _methods(self.authentication_whitelist)

    @property
    def unruled_methods(self) -> frozenset[str]:
        """Methods of 5.x clients that need no rule."""
        return _methods(self.authorization_whitelist)

    @property
    def own_credentials(self) -> Credentials | None:
        """Credentials of this broker's own requests; None: they are not signed."""
        pair = _pair(
            "innerClientAuthenticationCredentials",
            self.inner_client_authentication_credentials,
            ("accessKey", "secretKey"),
        )
        return None if pair is None else Credentials(*pair)

    @property
    def first_users(self) -> dict[str, Secret]:
        """Name and password of the super users that the start makes."""
        first = _pair(
            "initAuthenticationUser", self.init_authentication_user, ("username", "password")
        )
        users = {} if first is None else {first[0]: first[1]}
        own = self.own_credentials
        if own is not None:
            users.setdefault(own.access_key, own.secret_key)
        return users

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each setting that weakens the protection."""
        unchecked = {
            "authenticationWhitelist": (self.unsigned_codes, self.unsigned_methods),
            "authorizationWhitelist": (self.unruled_codes, self.unruled_methods),
        }
        return tuple(
            f"{key}={', '.join((*map(str, sorted(codes)), *sorted(methods)))}: "
            "these requests are served unchecked"
            for key, (codes, methods) in unchecked.items()
            if (codes or methods) and self.authentication_enabled
        )


def _codes(key: str, text: str) -> frozenset[int]:
    """Return the request codes of a whitelist, without the names of gRPC messages."""
    codes = set()
    for word in text.split(","):
        word = word.strip()
        if word.isascii() and word.isdigit() and len(word) <= 6:
            codes.add(int(word))
        elif word and not word.startswith("apache.rocketmq."):
            raise InvalidOption(key, text, "request codes, separated by commas")
    barred = codes & NEVER_WHITELISTED
    if barred:
        allowed = f"no {', '.join(map(str, sorted(barred)))}: their senders may do anything"
        raise InvalidOption(key, text, allowed)
    return frozenset(codes)


def _methods(text: str) -> frozenset[str]:
    """Return the methods of 5.x clients in a whitelist, where Java has their requests' names."""
    words = (word.strip() for word in text.split(","))
    names = (word.removeprefix(_GRPC) for word in words if word.startswith(_GRPC))
    return frozenset(_STREAMS.get(name, name.removesuffix("Request")) for name in names)


def _pair(key: str, text: Secret, names: tuple[str, str]) -> tuple[str, Secret] | None:
    """Return the name and the secret of a JSON object; None if there is none."""
    if not text:
        return None
    allowed = f'{{"{names[0]}":"…","{names[1]}":"…"}}'
    try:
        pair = msgspec.json.decode(text.reveal(), type=dict[str, str])
        name, password = (pair[member] for member in names)
    except (msgspec.MsgspecError, KeyError):
        raise InvalidOption(key, NO_SECRET, allowed) from None
    if not name.strip() or not password.strip():
        raise InvalidOption(key, NO_SECRET, f"{allowed}, both not empty")
    return name, Secret(password)
