"""The address of an etcd, as ``reputQuorum`` has it.

etcd:http://10.0.0.1:2379,http://10.0.0.2:2379/reput
members of one etcd                      prefix of the keys
"""

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from reput.errors import InvalidOption

SCHEME = "etcd:"
DEFAULT_PREFIX = "/reput"
_DEFAULT_PORT = 2379
_ALLOWED = (
    "empty for the file in controllerStorePath, or "
    "etcd:http://HOST:2379[,http://HOST:2379][/PREFIX] with all members of one etcd, and https "
    "instead of http for TLS"
)


class Endpoint(NamedTuple):
    """A member of an etcd."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        """Return the URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


class EtcdAddress(NamedTuple):
    """The members of an etcd, and the prefix of the keys there, without a slash at its end."""

    endpoints: tuple[Endpoint, ...]
    prefix: str = DEFAULT_PREFIX

    @property
    def is_tls(self) -> bool:
        """True if the members are asked over TLS."""
        return self.endpoints[0].is_tls


def parse(text: str) -> EtcdAddress:
    """Return the address in a value of ``reputQuorum``. Raises ``InvalidOption``."""
    if not text.startswith(SCHEME):
        raise InvalidOption("reputQuorum", text, _ALLOWED)
    endpoints, path = [], ""
    for number, part in enumerate(text.removeprefix(SCHEME).split(",")):
        if path:
            allowed = f"{_ALLOWED}: the prefix is after the last member, not after member {number}"
            raise InvalidOption("reputQuorum", text, allowed)
        try:
            url = urlsplit(part.strip())
            endpoints.append(_endpoint(url))
        except ValueError as error:
            raise InvalidOption("reputQuorum", text, _ALLOWED) from error
        path = url.path.rstrip("/")
    if len({endpoint.is_tls for endpoint in endpoints}) > 1:
        raise InvalidOption("reputQuorum", text, f"{_ALLOWED}: the same scheme for all")
    return EtcdAddress(tuple(endpoints), path or DEFAULT_PREFIX)


def _endpoint(url: SplitResult) -> Endpoint:
    """Return a member. Raises ``ValueError``."""
    has_more = url.username or url.password or url.query or url.fragment
    if url.scheme not in ("http", "https") or not url.hostname or has_more:
        raise ValueError(url)
    return Endpoint(url.hostname, url.port or _DEFAULT_PORT, url.scheme == "https")
