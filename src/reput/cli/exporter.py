"""``reput exporter``: metrics of a cluster for Prometheus, in the foreground."""

from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.console import parse_address
from reput.cli.options import CONNECTION, Session, command

if TYPE_CHECKING:
    from reput.client.config import ClientConfig

_DEFAULT_LISTEN = "127.0.0.1:5557"


@command(*CONNECTION)
def exporter(
    session: Session,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address of /metrics; 0.0.0.0 lets other machines read it."
        ),
    ] = _DEFAULT_LISTEN,
) -> None:
    """Serve metrics of a cluster for Prometheus, until Ctrl-C.

    Any brokers, Java's from 4.5 on too. Names and labels are those of rocketmq-exporter.
    """
    from reput.client.admin import Admin
    from reput.clock import SystemClock
    from reput.console import serving
    from reput.console.cluster import WatchedCluster
    from reput.console.exporter import Exporter, collect
    from reput.console.exposition import NAMES_MAX
    from reput.console.survey import Survey

    host, port = parse_address(listen)

    async def serve(client: "ClientConfig") -> None:
        clock = SystemClock()
        with serving.listen(host, port) as listener:
            async with Admin(client=client) as admin:
                cluster = WatchedCluster.of(admin, clock)
                survey = Survey(cluster, clock, NAMES_MAX)
                url = f"{serving.url_of(listener, '')}metrics"
                await serving.serve(
                    Exporter(cluster, clock, survey.facts),
                    listener,
                    collect(cluster, survey),
                    lambda: print(f"exporter: {url}", flush=True),
                )

    session.run(serve)


COMMANDS = {"exporter": exporter}
