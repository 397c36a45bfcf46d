"""The commands of ``reput``, put together.

Building a group of commands imports its module. So that a command starts fast, ``build_app`` builds
the one group that a command line names, and lists the others.
"""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from reput.cli import serve

_HELP = (
    "Apache RocketMQ in Python: serve, administer, send, consume, look into message stores, "
    "and work on them with Spark."
)


class _Group(NamedTuple):
    module: str
    """Name of the module in this package whose ``COMMANDS`` are the group's commands."""
    help: str


_GROUPS = {
    "topic": _Group("topics", "Topics: list, show, create, update, delete them, and send to them."),
    "group": _Group(
        "groups",
        "Consumer groups: list, show their lag, create, update, delete them, see their members.",
    ),
    "cluster": _Group("cluster", "Clusters: their brokers, how those are, and their settings."),
    "message": _Group(
        "messages", "Messages: get them by id or key, follow a topic, print what is in it."
    ),
    "dlq": _Group(
        "dead_letters",
        "Dead letters: messages that a consumer group has given up on. See them, send them again.",
    ),
    "transaction": _Group(
        "transactions",
        "Transactions: half messages whose producers never said what became of them.",
    ),
    "delay": _Group("delays", "Delayed messages: how many wait, and how long."),
    "offset": _Group(
        "offsets", "Consumer offsets: show them, move them, copy them to another group."
    ),
    "producer": _Group("producers", "Producers: who is connected, and sending messages."),
    "consumer": _Group(
        "consumers", "Consumers: who is connected, what they are doing, and consuming messages."
    ),
    "bench": _Group("bench", "Measure how fast brokers take and give messages."),
    "store": _Group("store", "Look into a store folder. Nothing in it is ever changed."),
    "pipeline": _Group(
        "pipeline", "Rebuild, audit, salvage, compare and archive stores with Spark."
    ),
}


def build_app(only: str | None = None) -> typer.Typer:
    """Return the application.

    Args:
        only: The group that gets its commands; without it, all groups do.
    """
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=_HELP
    )
    app.callback(invoke_without_command=True)(_root)
    serve.register(app)
    for name, group in _GROUPS.items():
        commands = {}
        if only in (None, name):
            commands = importlib.import_module(f"reput.cli.{group.module}").COMMANDS
        _add_group(app, name, group.help, commands)
    return app


def _add_group(app: typer.Typer, name: str, text: str, commands: Mapping[str, Any]) -> None:
    """Add a group of commands, which prints its help when it is called without one.

    Args:
        app: The application or the group that it is added to.
        name: The name of the group.
        text: The help of the group.
        commands: Functions by name; a pair of help and commands is a group in this one.
    """
    group = typer.Typer(help=text)
    group.callback(invoke_without_command=True)(_show_help)
    for command_name, command in commands.items():
        if isinstance(command, tuple):
            _add_group(group, command_name, *command)
        else:
            group.command(command_name)(command)
    app.add_typer(group, name=name)


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from reput import __version__

        print(f"reput {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    _show_help(context)
