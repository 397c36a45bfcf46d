"""``reput console``: the web console, in the foreground."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.options import CONNECTION, Session, command
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from reput.client.config import ClientConfig

_DEFAULT_LISTEN = "127.0.0.1:8080"


@command(*CONNECTION)
def console(
    session: Session,
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
) -> None:
    """Serve the web console of a cluster, until Ctrl-C."""
    from reput.client.admin import Admin
    from reput.clock import SystemClock
    from reput.console import access, serving
    from reput.console.app import Console
    from reput.console.audit import AuditLog
    from reput.console.cluster import WatchedCluster
    from reput.console.parts import ConsoleParts
    from reput.console.resends import Resends
    from reput.console.settings import load as load_settings
    from reput.console.sources.folder import StoreFolders
    from reput.console.users import load
    from reput.console.verifying import Verifications

    if allow not in (None, "operate"):
        raise InvalidOption("--allow", allow, "operate")
    host, port = _address(listen)
    root = (root_path or "").rstrip("/")
    if root and not root.startswith("/"):
        raise InvalidOption("--root-path", root, "a path that begins with /")
    places = load_settings(settings).stores if settings is not None else {}
    accounts = load(users) if users is not None else {}
    if not (insecure or accounts or access.is_loopback(host)):
        allowed = "an address of loopback; any with --users or --insecure"
        raise InvalidOption("--listen", listen, allowed)

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
                    may_operate=allow == "operate",
                    folders=StoreFolders(places, clock),
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
                    await parts.verifications.close()

    session.run(serve)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidOption("--listen", text, "HOST:PORT")
    return host.strip("[]"), int(port)


COMMANDS = {"console": console}
