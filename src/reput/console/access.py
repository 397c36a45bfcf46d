"""Who may see and do what, and whether a request comes from a page of the console.

Roles include those before them. A user may be limited to topics and groups by patterns of the
shell: a name that matches none of them does not exist for this user.
"""

import enum
import fnmatch
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class Right(enum.IntEnum):
    """Permissions of a role; each role includes the roles before it."""

    VIEW = 1
    """Names, rates, consumer lags, settings."""
    READ = 2
    """Messages and their bodies."""
    OPERATE = 3
    """Send, resend, set consumer offsets."""
    ADMIN = 4
    """Create and delete topics; see the audit log."""


ROLES: Mapping[str, Right] = {
    "viewer": Right.VIEW,
    "reader": Right.READ,
    "operator": Right.OPERATE,
    "admin": Right.ADMIN,
}
"""Names of roles."""

ALL = ("*",)


@dataclass(frozen=True, slots=True)
class User:
    """A user of the console."""

    name: str
    right: Right
    topics: tuple[str, ...] = ALL
    """Patterns of topics that the user sees."""
    groups: tuple[str, ...] = ALL
    """Patterns of consumer groups that the user sees."""

    def may(self, right: Right) -> bool:
        """Return whether the role includes a right."""
        return self.right >= right

    @property
    def sees_everything(self) -> bool:
        """True if the user may see all topics and groups."""
        return self.topics == ALL and self.groups == ALL

    def sees_topic(self, topic: str) -> bool:
        """Return whether a topic exists for this user."""
        return _matches(topic, self.topics)

    def sees_group(self, group: str) -> bool:
        """Return whether a consumer group exists for this user."""
        return _matches(group, self.groups)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(pattern == "*" or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


LOCAL_USER = User("local", Right.ADMIN)
"""The user of a console without users."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that authenticates users, and sends their names in a header."""

    addresses: frozenset[str]
    """Addresses from which the header is trusted."""
    header: str = "x-forwarded-user"
    """Name of the header, in lower case."""


# --- where a request comes from -----------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Return whether an address is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(host_header: str) -> bool:
    """Return whether a ``Host`` is an address or localhost, not a name.

    Without users there is no cookie that ties a browser to the console: a foreign page whose name
    is made to resolve to this machine could read it. A browser sends that name.
    """
    host = host_header.rpartition(":")[0] if _has_port(host_header) else host_header
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _has_port(host_header: str) -> bool:
    return host_header.rpartition("]")[2].count(":") == 1


def foreign_origin(headers: Mapping[str, str], own_origin: str) -> str | None:
    """Return why a change does not come from a page of the console; None if it does.

    Args:
        headers: Headers of the request, by names in lower case.
        own_origin: Scheme and ``Host`` of the request, as ``http://127.0.0.1:8080``.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return f"Sec-Fetch-Site is {site[:40]!r}"
    origin = headers.get("origin")
    if origin is not None and _host_of(origin) != _host_of(own_origin):
        return f"Origin is {origin[:80]!r}"
    if site is None and origin is None:
        return "neither Sec-Fetch-Site nor Origin is there"
    return None


def _host_of(origin: str) -> str:
    """Return host and port; the scheme differs if a proxy speaks TLS."""
    return origin.partition("://")[2].lower()
