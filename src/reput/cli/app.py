"""The commands of ``reput``, put together.

A command's module is imported with it, so at its top it imports nothing but typer.
"""

from typing import Annotated

import typer

from reput.cli import (
    bench,
    clients,
    cluster,
    dead_letters,
    groups,
    messages,
    offsets,
    pipeline,
    serve,
    statistics,
    store,
    topics,
    transactions,
)

_HELP = (
    "Apache RocketMQ in Python: serve, administer, send, consume, look into message stores, "
    "and work on them with Spark."
)


def build_app() -> typer.Typer:
    """Return the application with all of its commands."""
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=_HELP
    )
    app.callback(invoke_without_command=True)(_root)
    serve.register(app)
    for part in (
        topics,
        groups,
        cluster,
        messages,
        dead_letters,
        transactions,
        statistics,
        offsets,
        clients,
        bench,
    ):
        part.register(app)
    store.register(app)
    pipeline.register(app)
    return app


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
    if context.invoked_subcommand is None:
        print(context.get_help())
