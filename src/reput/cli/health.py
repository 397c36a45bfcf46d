"""``reput health``: whether a server is healthy, for probes of containers and scripts."""

import http.client
import json
import os
from typing import Annotated

import typer

from reput.cli.exit_codes import EXIT_DAMAGE
from reput.errors import ReputError

DEFAULT_PORT = 5558
"""Port of the examples and of the container."""
TIMEOUT_S = 5
PORT_VARIABLE = "REPUT_METRICS_PORT"


class NoHealth(ReputError):
    """There is no answer to the question for a server's health."""


def health(
    address: Annotated[
        str,
        typer.Argument(
            metavar="[HOST:PORT]",
            help="Where /health is served: metricsPort. Without it port REPUT_METRICS_PORT, or "
            "5558, of this machine.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Ask a broker or name server for its health, and print its answer.

    Ends with 0 if it is healthy, with 1 if it is not, and with 2 if there is no answer in 5 s.
    """
    target = address or f"127.0.0.1:{os.environ.get(PORT_VARIABLE) or DEFAULT_PORT}"
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal():
        raise NoHealth(f"{target!r} is no address; allowed: HOST:PORT")
    try:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        text = answer.read().decode(errors="backslashreplace").rstrip()
        json.loads(text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoHealth(f"{target} has no /health: {error}; is metricsPort set?") from error
    print(text)
    if answer.status != http.HTTPStatus.OK:
        raise typer.Exit(EXIT_DAMAGE)


COMMANDS = {"health": health}
