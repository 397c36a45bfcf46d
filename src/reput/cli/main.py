"""Entry point of the ``reput`` command: runs a command line, prints errors as one line each."""

import gc
import io
import os
import sys
from collections.abc import Sequence

from reput.cli.exit_codes import EXIT_ERROR, EXIT_INTERRUPTED

_SERVERS = ("up", "namesrv", "broker", "controller", "proxy")
_WHOLE_EXTRAS = {
    "reput console": "console",
    "reput export": "arrow",
    "reput exporter": "console",
    "reput pipeline": "spark",
}
"""Commands with a separate extra, whichever package was missed first."""


def main() -> None:
    """Run the command line of this process, and exit."""
    # What a start imports stays: looking for cycles in it takes a tenth of the start of a server.
    gc.set_threshold(10_000, 10, 10)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Bodies contain any character: print it escaped where the encoding lacks it.
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
    except ModuleNotFoundError as error:
        problem = error
        text = _missing_extra(arguments, error) or _bug(error)
    except Exception as error:  # noqa: BLE001 - the outermost edge: a line, not a traceback
        problem = error
        text = _usage_problem(error) or _bug(error)
    if os.environ.get("REPUT_DEBUG"):
        raise problem
    print(f"reput: {' '.join(text.split())}", file=sys.stderr)
    return EXIT_ERROR


def _invoke(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in _SERVERS:
        from reput.cli import serve

        return serve.run(arguments)
    if list(arguments) == ["--version"]:  # without the import of typer
        from reput import kernel_choice

        print(kernel_choice.version_text())
        return 0
    import typer.main

    from reput.cli.app import build_app

    only = arguments[0] if arguments else ""
    command = typer.main.get_command(build_app(only=only))
    result = command.main(list(arguments), prog_name="reput", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _missing_extra(arguments: Sequence[str], error: ModuleNotFoundError) -> str | None:
    """Return the message about a missing optional package; None if the package is required."""
    from reput.extras import extra_missing

    command = " ".join(["reput", *arguments[:1]])
    missing = extra_missing(command, error, extra=_WHOLE_EXTRAS.get(command))
    return None if missing is None else str(missing)


def _bug(error: Exception) -> str:
    return f"a bug in reput: {type(error).__name__}: {error}"


def _usage_problem(error: Exception) -> str | None:
    """Return the message for a wrong command line; None for any other error.

    Such an error is recognised by its method: its class depends on the version of typer.
    """
    if not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    hint = f" ({context.command_path} --help shows the usage)" if context else ""
    return f"{error.format_message().rstrip('.')}{hint}"
