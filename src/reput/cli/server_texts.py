"""The error of a server that cannot start, and the form of addresses, for the server commands."""

from reput.errors import ReputError


class CannotServe(ReputError):
    """A server could not start; the text gives the reason and a remedy."""


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(host: str) -> str:
    """Return an address that connects to a server of this machine, by where it listens."""
    return "127.0.0.1" if host in ("0.0.0.0", "") else "::1" if host == "::" else host
