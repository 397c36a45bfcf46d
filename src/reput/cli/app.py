"""The typer application of ``reput``.

A group of commands costs the import of its module. ``build_app`` builds only the group that a
command line names, and lists the others.
"""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from reput.cli import serve

_HELP = (
    "Apache RocketMQ in Python: run servers, administer clusters, send and consume messages, "
    "inspect message stores, and process them with Spark."
)


class _LightGroup(TyperGroup):
    """A group that is parsed without pydantic."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``."""
        # typer imports pydantic to convert an absent --help, unless its value is a bool already.
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


class _Group(NamedTuple):
    module: str
    """Name of the module in this package whose ``COMMANDS`` are the group's commands."""
    help: str


_GROUPS = {
    "topic": _Group("topics", "Topics: list, show, create, update and delete them, send to them."),
    "group": _Group(
        "groups",
        "Consumer groups: list, show lag and members, create, update and delete them.",
    ),
    "cluster": _Group("cluster", "Clusters: brokers, their state and their settings."),
    "message": _Group(
        "messages", "Messages: get them by id or key, follow a topic, dump its contents."
    ),
    "dlq": _Group("dead_letters", "Dead letters of consumer groups: show, export and resend them."),
    "transaction": _Group(
        "transactions",
        "Transactions: half messages whose producers never decided them.",
    ),
    "delay": _Group("delays", "Delayed messages: how many are pending on each delay level."),
    "offset": _Group(
        "offsets", "Consumer offsets: show them, reset them, copy them to another group."
    ),
    "producer": _Group("producers", "Producers: list connected ones, send messages."),
    "consumer": _Group(
        "consumers", "Consumers: list connected ones, show their state, consume messages."
    ),
    "access": _Group(
        "access",
        "Access control 2.0: users, and rules of what they may do.",
    ),
    "bench": _Group("bench", "Measure send and pull rates of brokers."),
    "store": _Group("store", "Inspect a store folder. Read-only."),
    "pipeline": _Group(
        "pipeline",
        "Rebuild, audit, salvage, compare and archive stores with Spark (extra `spark`).",
    ),
}

_COMMANDS = {
    "completion": _Group(
        "completion", "Print a script with which a shell completes commands and options."
    ),
    "health": _Group("health", "Ask a broker or name server for its health, and print its answer."),
    "console": _Group("console", "Serve the web console of a cluster, until Ctrl-C."),
    "exporter": _Group("exporter", "Serve metrics of a cluster for Prometheus, until Ctrl-C."),
    "export": _Group("exporting", "Write messages to a file: Parquet, Arrow, JSON lines or CSV."),
}
"""Commands outside of groups, with the first lines of their helps."""


def build_app(only: str | None = None) -> typer.Typer:
    """Return the application.

    Args:
        only: The group whose commands are built, or the command; "" for none of them. None: build
            all commands.
    """
    app = typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, help=_HELP, add_completion=False
    )
    app.callback(cls=_LightGroup, invoke_without_command=True)(_root)
    serve.register(app)
    for name, command in _COMMANDS.items():
        if only in (None, name):
            _add_command(
                app, name, importlib.import_module(f"reput.cli.{command.module}").COMMANDS[name]
            )
        else:
            app.command(name, help=command.help)(_not_built)
    for name, group in _GROUPS.items():
        commands = {}
        if only in (None, name):
            commands = importlib.import_module(f"reput.cli.{group.module}").COMMANDS
        _add_group(app, name, group.help, commands)
    return app


def _add_group(app: typer.Typer, name: str, text: str, commands: Mapping[str, Any]) -> None:
    """Add a group of commands, which prints its help when it is called without a command.

    Args:
        app: The application or the group to add it to.
        name: Name of the group.
        text: Help of the group.
        commands: Functions by name; a pair of help and commands is a nested group.
    """
    group = typer.Typer(help=text)
    group.callback(cls=_LightGroup, invoke_without_command=True)(_show_help)
    for command_name, command in commands.items():
        if isinstance(command, tuple):
            _add_group(group, command_name, *command)
        else:
            group.command(command_name)(command)
    app.add_typer(group, name=name)


def _add_command(app: typer.Typer, name: str, command: Any) -> None:
    """Add a command; a pair of function and commands is a command that has others below it."""
    if not isinstance(command, tuple):
        app.command(name)(command)
        return
    function, children = command
    group = typer.Typer(help=function.__doc__)
    group.callback(cls=_LightGroup, invoke_without_command=True)(function)
    for child_name, child in children.items():
        _add_group(group, child_name, *child)
    app.add_typer(group, name=name)


def _not_built() -> None:
    """Stand for a command in the list of commands."""


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from reput import kernel_choice

        print(kernel_choice.version_text())
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
