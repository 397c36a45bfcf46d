"""Options and arguments that several commands share, each declared once.

``command`` adds ``--yes``, ``--namesrv``, ``--timeout``, ``--json``, ``--utc`` and the options of
Spark to a function. The function gets a ``Session`` first, which knows what was given, and returns
a ``View``.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reput.cli import printing
from reput.cli.message_view import Body
from reput.cli.printing import Clock, View
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from reput.client.admin import Admin
    from reput.client.config import ClientConfig

T = TypeVar("T")

DEFAULT_NAMESRV = "127.0.0.1:9876"
DEFAULT_TIMEOUT_S = 3.0
DEFAULT_MASTER = "local[*]"

# --- arguments ----------------------------------------------------------------------------------

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]

# --- options of some commands -------------------------------------------------------------------

ClusterOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The brokers of this cluster; needed if there are several."),
]
OfClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only of this cluster.")
]
BrokerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="One broker only: its name, or host:port.")
]
QueuesOption = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="BROKER:ID", help="Only this queue; repeatable."),
]
ProducerGroupOption = Annotated[str, typer.Option(metavar="GROUP", help="The producer group.")]
TagsOption = Annotated[
    str, typer.Option(metavar="TAGS", help="Only messages with these tags: 'A || B'.")
]
BodyOption = Annotated[Body, typer.Option(help="How to show bodies.")]
BeginOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Only messages stored at this time or later."),
]
EndOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="Only messages stored before this time."),
]
StartOption = Annotated[
    str,
    typer.Option("--from", metavar="WHERE", help="Where to begin: earliest, latest, or a time."),
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="No more messages than this.")]
CountOption = Annotated[int | None, typer.Option(min=1, help="End after this many messages.")]
IdleOption = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="End when no message came for this long."),
]
LiveOption = Annotated[
    bool, typer.Option("--live", help="Read although a broker is running on the store.")
]

# --- options of most commands -------------------------------------------------------------------

_SHARED: Mapping[str, tuple[Any, object]] = {
    "yes": (
        Annotated[
            bool, typer.Option("--yes", "-y", help="Do it; without, only show what would be done.")
        ],
        False,
    ),
    "namesrv": (
        Annotated[
            str,
            typer.Option(
                "--namesrv",
                "-n",
                envvar="NAMESRV_ADDR",
                metavar="HOST:PORT",
                help="Name servers, several separated by ';'.",
            ),
        ],
        DEFAULT_NAMESRV,
    ),
    "timeout": (
        Annotated[
            float,
            typer.Option(
                "--timeout",
                min=0.001,
                metavar="SECONDS",
                help="How long one request may take at most.",
            ),
        ],
        DEFAULT_TIMEOUT_S,
    ),
    "master": (
        Annotated[
            str,
            typer.Option(
                "--master", metavar="MASTER", help="Where Spark runs, as spark://HOST:7077."
            ),
        ],
        DEFAULT_MASTER,
    ),
    "conf": (
        Annotated[
            list[str] | None,
            typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
        ],
        None,
    ),
    "json": (Annotated[bool, typer.Option("--json", help="Print JSON, with ms for times.")], False),
    "utc": (
        Annotated[bool, typer.Option("--utc", help="Show times in UTC, and read them so.")],
        False,
    ),
}
CLUSTER = ("namesrv", "timeout", "json")
"""Shared options of a command that talks to a cluster."""
SPARK = ("master", "conf", "json", "utc")
"""Shared options of a command that runs a job in Spark."""


class Session:
    """Shared options of one run of a command, and what they decide."""

    def __init__(
        self,
        *,
        yes: bool = True,
        namesrv: str = DEFAULT_NAMESRV,
        timeout: float = DEFAULT_TIMEOUT_S,
        master: str = DEFAULT_MASTER,
        conf: list[str] | None = None,
        json: bool = False,
        utc: bool = False,
    ) -> None:
        """Take the values of the options; those that a command does not have stay as they are."""
        self.is_done = yes
        self.namesrv = namesrv
        self.timeout_s = timeout
        self.master = master
        self.spark_settings = parse_pairs("--conf", conf)
        self.as_json = json
        self.clock = Clock(utc)

    def ask(self, work: "Callable[[Admin], Awaitable[T]]") -> T:
        """Return what ``work`` finds out through an admin client.

        Raises:
            CommandFailed: The cluster cannot be reached, or refuses.
            ReputError: Anything else that is wrong.
        """
        from reput.client.admin import Admin

        async def with_admin(client: "ClientConfig") -> T:
            async with Admin(client=client) as admin:
                return await work(admin)

        return self.run(with_admin)

    def run(
        self, work: "Callable[[ClientConfig], Coroutine[Any, Any, T]]", *, is_fast: bool = False
    ) -> T:
        """Return what ``work`` returns in an event loop of its own. Raises as ``ask``.

        Args:
            work: A coroutine function of the configuration of clients.
            is_fast: Whether it runs in uvloop where that is installed.
        """
        from reput.cli import connecting

        return connecting.run(self.namesrv, self.timeout_s, work, is_fast=is_fast)

    def time_ms(self, option: str, text: str | None) -> int | None:
        """Return the ms of a time, None if it is not given. Raises ``InvalidOption``."""
        return None if text is None else printing.parse_time(option, text, self.clock)

    def print(self, view: View) -> None:
        """Print the result of the command.

        Raises:
            ReputError: The view says that the command failed.
            typer.Exit: Its exit code is not 0.
        """
        printing.print_view(view, self.clock, as_json=self.as_json)
        if not self.is_done:
            sys.stdout.flush()
            printing.print_note(
                "this is what would be done; nothing has been changed, --yes does it"
            )
        if view.failure is not None:
            raise view.failure
        if view.exit_code:
            raise typer.Exit(view.exit_code)


def command(
    *shared: str,
) -> Callable[[Callable[..., View | None]], Callable[..., None]]:
    """Return a decorator that adds shared options to a function, after its own.

    Args:
        *shared: Names of the options, of ``_SHARED``.
    """

    def decorated(function: Callable[..., View | None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**values: Any) -> None:
            session = Session(**{name: values.pop(name) for name in shared})
            view = function(session, **values)
            if view is not None:
                session.print(view)

        _, *own = inspect.signature(function).parameters.values()
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
            for name, (annotation, default) in _SHARED.items()
            if name in shared
        ]
        signature = inspect.Signature([*own, *added])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        return run

    return decorated


# --- values -------------------------------------------------------------------------------------


def parse_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return names and values of ``NAME=VALUE``.

    Raises:
        InvalidOption: One has no ``=`` or no name.
    """
    values = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidOption(option, pair, "NAME=VALUE")
        values[name] = value
    return values
