"""``reput up``, ``reput namesrv`` and ``reput broker``: the servers, in the foreground.

Here is what may be said on the command line; what then happens is in ``serving``.
"""

from typing import Annotated

import typer

ConfigOption = Annotated[
    str | None,
    typer.Option("-c", "--config", metavar="FILE", help="Settings, as RocketMQ has them."),
]
LogLevelOption = Annotated[
    str, typer.Option(help="Least that is logged: debug, info, warning, error.")
]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log a JSON object a line.")]
PrintOption = Annotated[bool, typer.Option("-p", help="Print all settings, and exit.")]
PrintImportantOption = Annotated[
    bool, typer.Option("-m", help="Print the important settings, and exit.")
]
MetricsPortOption = Annotated[
    int | None, typer.Option(help="Serve /metrics and /health over HTTP.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(up)
    app.command()(namesrv)
    app.command()(broker)


def up(
    store: Annotated[
        str | None, typer.Option(metavar="DIR", help="The store folder; ./reput-data.")
    ] = None,
    port: Annotated[int, typer.Option(help="Of the name server; 0: any.")] = 9876,
    broker_port: Annotated[int, typer.Option(help="Of the broker; 0: any.")] = 10911,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets others in.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str | None, typer.Option(metavar="ADDR", help="Address that clients are told.")
    ] = None,
    metrics_port: MetricsPortOption = None,
    config: Annotated[
        str | None,
        typer.Option("-c", "--config", metavar="FILE", help="A broker.conf for the rest."),
    ] = None,
    log_level: LogLevelOption = "warning",
    log_json: LogJsonOption = False,
) -> None:
    """Start a name server and a broker in one process.

    For development and tests. Messages stay in the store folder. Ctrl-C stops cleanly, a second one
    at once.
    """
    from reput.cli import log_lines, serving

    log_lines.begin(log_level, as_json=log_json)
    raise typer.Exit(
        serving.up(
            store=store,
            port=port,
            broker_port=broker_port,
            host=host,
            advertise=advertise,
            metrics_port=metrics_port,
            config=config,
        )
    )


def namesrv(
    config: ConfigOption = None,
    port: Annotated[
        int | None, typer.Option(help="The port; listenPort, 9876.", show_default=False)
    ] = None,
    print_all: PrintOption = False,
    print_important: PrintImportantOption = False,
    log_level: LogLevelOption = "info",
    log_json: LogJsonOption = False,
) -> None:
    """Start a name server.

    Takes RocketMQ's namesrv.conf as it is.
    """
    from reput.cli import log_lines, serving

    log_lines.begin(log_level, as_json=log_json)
    is_print = print_all or print_important
    raise typer.Exit(serving.namesrv(config, port=port, is_print=is_print))


def broker(
    config: ConfigOption = None,
    namesrv_addr: Annotated[
        str | None,
        typer.Option("-n", "--namesrv", metavar="ADDR", help="Name servers, host:port;host:port."),
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="DIR", help="The store folder.")] = None,
    port: Annotated[
        int | None, typer.Option(help="The port; listenPort, 10911.", show_default=False)
    ] = None,
    metrics_port: MetricsPortOption = None,
    print_all: PrintOption = False,
    print_important: PrintImportantOption = False,
    log_level: LogLevelOption = "info",
    log_json: LogJsonOption = False,
) -> None:
    """Start a broker.

    Takes RocketMQ's broker.conf as it is, and goes on with the store folder of a Java broker.
    """
    from reput.cli import log_lines, serving

    log_lines.begin(log_level, as_json=log_json)
    raise typer.Exit(
        serving.broker(
            config,
            namesrv_addr=namesrv_addr,
            store=store,
            port=port,
            metrics_port=metrics_port,
            print_all=print_all,
            print_important=print_important,
        )
    )
