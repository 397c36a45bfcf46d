"""``reput console``: the web console, in the foreground."""

import enum
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.options import CONNECTION, Session, command
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from reput.client.config import ClientConfig

_DEFAULT_LISTEN = "127.0.0.1:8080"
_USER_HEADER = "X-Forwarded-User"


@command(*CONNECTION)
def console(
    session: Session,
    context: typer.Context,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = _DEFAULT_LISTEN,
    allow: Annotated[
        str | None,
        typer.Option(
            metavar="operate", help="Let users make changes; without it there are none to make."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen on another address than loopback without users, to anybody."
        ),
    ] = False,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Users with passwords and roles; `console user add` writes it."
        ),
    ] = None,
    audit: Annotated[
        Path, typer.Option(metavar="FILE", help="The audit log of changes and refused requests.")
    ] = Path("reput-console-audit.jsonl"),
    settings: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Stores to show, by name, in TOML."),
    ] = None,
    root_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Path under which a proxy serves it, as /mq."),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES", help="Proxies that log users in: their IP addresses, with commas."
        ),
    ] = None,
    user_header: Annotated[
        str, typer.Option(metavar="NAME", help="The header in which --proxy names the user.")
    ] = _USER_HEADER,
    https: Annotated[
        bool,
        typer.Option("--https", help="A proxy serves it over TLS: cookies need TLS as well."),
    ] = False,
) -> None:
    """Serve the web console of a cluster, until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    from reput.client.admin import Admin
    from reput.clock import SystemClock
    from reput.console import access, serving
    from reput.console.app import Console
    from reput.console.audit import AuditLog
    from reput.console.cluster import WatchedCluster
    from reput.console.parts import ConsoleParts
    from reput.console.resends import Resends
    from reput.console.settings import ConsoleSettings, load as load_settings
    from reput.console.sources.folder import StoreFolders
    from reput.console.users import load
    from reput.console.verifying import Verifications

    if allow not in (None, "operate"):
        raise InvalidOption("--allow", allow, "operate")
    host, port = parse_address(listen)
    root = (root_path or "").rstrip("/")
    if root and not root.startswith("/"):
        raise InvalidOption("--root-path", root, "a path that begins with /")
    shown = load_settings(settings) if settings is not None else ConsoleSettings()
    accounts = load(users) if users is not None else {}
    if not (insecure or accounts or access.is_loopback(host)):
        allowed = "an address of loopback; any with --users or --insecure"
        raise InvalidOption("--listen", listen, allowed)
    trusted = access.Proxy(_addresses(proxy), user_header.lower()) if proxy else None
    if trusted is not None and not accounts:
        raise InvalidOption("--proxy", proxy, "a proxy of the users in --users")

    async def serve(client: "ClientConfig") -> None:
        clock = SystemClock()
        with serving.listen(host, port) as listener:
            async with Admin(client=client) as admin:
                cluster = WatchedCluster.of(admin, clock)
                parts = ConsoleParts(
                    clock,
                    client.namesrv_addr,
                    cluster,
                    AuditLog(audit),
                    accounts,
                    proxy=trusted,
                    is_https=https,
                    may_operate=allow == "operate",
                    folders=StoreFolders(shown.stores, clock),
                    controllers=shown.controllers,
                    resends=Resends(audit.with_name(f"{audit.stem}-resends.jsonl")),
                    verifications=Verifications(clock),
                )
                url = serving.url_of(listener, root)
                try:
                    await serving.serve(
                        Console(parts, root_path=root),
                        listener,
                        cluster.collector.run(),
                        lambda: print(f"console: {url}", flush=True),
                    )
                finally:
                    await parts.resend_jobs.close()
                    await parts.verifications.close()

    session.run(serve)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of an address. Raises ``InvalidOption``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidOption("--listen", text, "HOST:PORT")
    return host.strip("[]"), int(port)


def _addresses(text: str) -> frozenset[str]:
    """Return IP addresses as connections have them. Raises ``InvalidOption``."""
    try:
        return frozenset(str(ipaddress.ip_address(part.strip())) for part in text.split(","))
    except ValueError as error:
        raise InvalidOption("--proxy", text, "IP addresses, separated by commas") from error


# --- users ----------------------------------------------------------------------------------------


class Role(enum.StrEnum):
    """Roles of users; each includes those before it."""

    VIEWER = "viewer"
    READER = "reader"
    OPERATOR = "operator"
    ADMIN = "admin"


@command()
def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user.")],
    file: Annotated[Path, typer.Option("--users", metavar="FILE", help="The users file.")],
    role: Annotated[Role, typer.Option(metavar="ROLE", help="What the user may do.")] = Role.VIEWER,
    topics: Annotated[
        str, typer.Option(metavar="PATTERNS", help="Topics that the user sees: Orders*,Bills.")
    ] = "*",
    groups: Annotated[
        str, typer.Option(metavar="PATTERNS", help="Consumer groups that the user sees.")
    ] = "*",
    proxied: Annotated[
        bool,
        typer.Option("--proxied", help="A proxy logs the user in: without a password here."),
    ] = False,
) -> None:
    """Add a user of the console to a users file, or replace one.

    The password is in REPUT_USER_PASSWORD, or is typed on the terminal. A viewer sees names, rates
    and lags; a reader also messages; an operator resends them and sets offsets; an admin creates
    and deletes topics, and sees the audit log.
    """
    from reput.cli.access import PASSWORD_VARIABLE, new_password
    from reput.console import users

    accounts = users.load(file) if file.exists() else {}
    password = None if proxied else new_password(PASSWORD_VARIABLE).reveal()
    accounts[name] = users.make(
        name,
        role.value,
        password,
        topics=tuple(topics.split(",")),
        groups=tuple(groups.split(",")),
    )
    users.save(file, accounts)
    print(f"{name} is {role.value} in {file}; a console reads it at its start")


COMMANDS = {"console": (console, {"user": ("Users of the console, in a file.", {"add": add})})}
