"""The ``reput`` command: reads stores, prints tables or JSON.

Nothing heavy is imported before a command needs it: importing this package is free, ``--help`` costs
typer, and only a command that reads a store costs numpy.

Exit codes: 0 all right, 1 damage was found, 2 the question or the store could not be read. Errors are
one line on stderr; ``REPUT_DEBUG=1`` shows the traceback behind it.
"""

import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

EXIT_DAMAGE = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_COMMANDS = ("store", "demo")
"""Modules of this package that add a command. Each has ``register(app)`` and, at its top, imports
nothing but typer; one that is not there is left out."""


def main() -> None:
    """Run the command line of this process, and end it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Bodies hold anything; a terminal or pipe without Unicode shall not stop the output.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code."""
    from reput.errors import ReputError

    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ReputError as error:
        problem: Exception = error
        text = str(error)
    except OSError as error:
        problem = error
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except Exception as error:  # noqa: BLE001 - the outermost edge: a line, not a traceback
        problem = error
        text = _usage_problem(error) or f"this is a bug in reput: {type(error).__name__}: {error}"
    if os.environ.get("REPUT_DEBUG"):
        raise problem
    print(f"reput: {_one_line(text)}", file=sys.stderr)
    return EXIT_ERROR


def _invoke(arguments: Sequence[str]) -> int:
    import typer.main

    command = typer.main.get_command(build_app())
    result = command.main(list(arguments), prog_name="reput", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _usage_problem(error: Exception) -> str | None:
    """Return what a wrong command line is told; None for any other error.

    Known by its method: which class it is depends on the version of typer.
    """
    if not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    hint = f" ({context.command_path} --help tells more)" if context else ""
    return f"{error.format_message().rstrip('.')}{hint}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def build_app() -> "typer.Typer":
    """Return the application with all of its commands."""
    import typer

    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Apache RocketMQ in Python: look into message stores.",
    )

    def version(is_asked: bool) -> None:
        if is_asked:
            from reput import __version__

            print(f"reput {__version__}")
            raise typer.Exit

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        show_version: bool = typer.Option(
            False, "--version", callback=version, is_eager=True, help="Show the version and exit."
        ),
    ) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    for name in _COMMANDS:
        module = f"{__name__}.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module).register(app)
    return app
