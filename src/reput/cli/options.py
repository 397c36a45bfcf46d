"""Options and arguments that several commands share, each declared once.

``command`` adds ``--yes``, ``--namesrv``, ``--timeout``, credentials, ``--json``, ``--utc`` and the
options of Spark to a function. The function gets a ``Session`` with their values as its first
argument, and returns a ``View``.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reput.cli import printing
from reput.cli.credentials import (
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_FILE_VARIABLE,
    CommandCredentials,
    find_credentials,
)
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

OfClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.")
]
BrokerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this broker: its name, or host:port.")
]
QueuesOption = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="BROKER:ID", help="Only this queue; repeatable."),
]
ProducerGroupOption = Annotated[str, typer.Option(metavar="GROUP", help="The producer group.")]
TagsOption = Annotated[
    str, typer.Option(metavar="TAGS", help="Only messages with these tags: 'A || B'.")
]
BodyOption = Annotated[Body, typer.Option(help="Format of bodies.")]
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
    typer.Option("--from", metavar="WHERE", help="Start: earliest, latest, or a time."),
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Maximum number of messages.")]
CountOption = Annotated[int | None, typer.Option(min=1, help="End after this many messages.")]
IdleOption = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="End when no message has come for this long."),
]
LiveOption = Annotated[
    bool, typer.Option("--live", help="Read the store even if a broker is running on it.")
]

# --- options of most commands -------------------------------------------------------------------

Options = Mapping[str, tuple[Any, object]]
"""Annotations and defaults of options by name."""


def option(kind: Any, *names: str, default: object = None, **settings: Any) -> tuple[Any, object]:
    """Return the annotation and default of an option, from arguments of ``typer.Option``."""
    return Annotated[kind, typer.Option(*names, **settings)], default


KEY_PASSWORD = "REPUT_TLS_KEY_PASSWORD"
"""Variable of the environment: an argument would be visible to other users."""
TLS = ("tls", "tls_ca", "tls_cert", "tls_key")
"""Shared options of encryption."""

_SHARED: Options = {
    "cluster": option(
        str | None, metavar="NAME", help="The brokers of this cluster; required if there are more."
    ),
    "broker": (BrokerOption, None),
    "yes": option(
        bool,
        *("--yes", "-y"),
        default=False,
        help="Make the change; without it, only show it.",
    ),
    "namesrv": option(
        str,
        *("--namesrv", "-n"),
        default=DEFAULT_NAMESRV,
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="Name servers, several separated by ';'.",
    ),
    "tls": option(bool, "--tls", default=False, help="Use TLS; --tls-ca verifies the servers."),
    "tls_ca": option(
        str | None, metavar="FILE", help="Authorities of the servers' certificates (PEM)."
    ),
    "tls_cert": option(str | None, metavar="FILE", help="Certificate of this client (PEM)."),
    "tls_key": option(
        str | None,
        metavar="FILE",
        help=f"Its private key; {KEY_PASSWORD} has the password of an encrypted one.",
    ),
    "timeout": option(
        float,
        default=DEFAULT_TIMEOUT_S,
        min=0.001,
        metavar="SECONDS",
        help="Timeout of one request.",
    ),
    "access_key": option(
        str | None,
        envvar=ACCESS_KEY_VARIABLE,
        metavar="NAME",
        help="Account or user that signs the requests.",
    ),
    "secret_key_file": option(
        str | None,
        envvar=SECRET_KEY_FILE_VARIABLE,
        metavar="FILE",
        help="File with its secret key.",
    ),
    "master": option(
        str,
        default=DEFAULT_MASTER,
        metavar="MASTER",
        help="Spark master, such as spark://HOST:7077.",
    ),
    "conf": option(list[str] | None, metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
    "json": option(bool, "--json", default=False, help="Print JSON; times are in ms."),
    "utc": option(bool, "--utc", default=False, help="Show and read times in UTC."),
}
CREDENTIALS = ("access_key", "secret_key_file")
"""Shared options that sign requests."""
CONNECTION = ("namesrv", *TLS, "timeout", *CREDENTIALS)
"""Shared options of commands that access a cluster and have no JSON."""
CLUSTER = (*CONNECTION, "json")
"""Shared options of commands that access a cluster."""
MASTERS = ("cluster", "broker", *CLUSTER)
"""Shared options of commands that access each master of a cluster, or one broker."""
SPARK = ("master", "conf", "json", "utc")
"""Shared options of commands that run a Spark job."""


class Session:
    """Values of the shared options of one run of a command, and the actions that need them."""

    def __init__(
        self,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        yes: bool = True,
        namesrv: str = DEFAULT_NAMESRV,
        tls: bool = False,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        access_key: str | None = None,
        secret_key_file: str | None = None,
        master: str = DEFAULT_MASTER,
        conf: list[str] | None = None,
        json: bool = False,
        utc: bool = False,
    ) -> None:
        """Create a session; options that a command does not have keep their defaults."""
        self._cluster = cluster
        self._broker = broker
        self.is_done = yes
        self.namesrv = namesrv
        self.timeout_s = timeout
        self.tls_settings: Mapping[str, Any] = {
            "use_tls": tls or bool(tls_ca or tls_cert or tls_key),
            "tls_client_trust_cert_path": tls_ca or "",
            "tls_client_cert_path": tls_cert or "",
            "tls_client_key_path": tls_key or "",
            "tls_client_key_password": os.environ.get(KEY_PASSWORD, "") if tls_key else "",
        }
        """Settings of clients that decide whether they use TLS."""
        self._access_key = access_key
        self._secret_key_file = secret_key_file
        self.master = master
        self.spark_settings = parse_pairs("--conf", conf)
        self.as_json = json
        self.clock = Clock(utc)

    def ask(self, work: "Callable[[Admin], Awaitable[T]]") -> T:
        """Return the result of ``work`` with an admin client.

        Raises:
            CommandFailed: The cluster cannot be reached, or refuses.
            ReputError: Any other failure.
        """
        from reput.client.admin import Admin

        async def with_admin(client: "ClientConfig") -> T:
            async with Admin(client=client) as admin:
                return await work(admin)

        return self.run(with_admin)

    async def masters(self, admin: "Admin") -> list[str]:
        """Return the names of the selected masters; see ``connecting.masters``."""
        from reput.cli import connecting

        return connecting.masters(await admin.clusters(), self._cluster, self._broker)

    def ask_masters(self, work: "Callable[[Admin, str], Awaitable[list[T]]]") -> list[T]:
        """Return the concatenated results of ``work`` for each selected master.

        Args:
            work: A coroutine function of an admin client and a broker's name.
        """

        async def with_each(admin: "Admin") -> list[T]:
            names = await self.masters(admin)
            return [result for name in names for result in await work(admin, name)]

        return self.ask(with_each)

    def run(self, work: "Callable[[ClientConfig], Coroutine[Any, Any, T]]") -> T:
        """Return the result of ``work`` in a new event loop. Raises as ``ask``.

        Args:
            work: A coroutine function of the configuration of clients.
        """
        from reput.cli import connecting

        return connecting.run(
            self.namesrv, self.timeout_s, self.credentials(), work, self.tls_settings
        )

    def credentials(self) -> CommandCredentials:
        """Return the credentials that were given. Raises ``InvalidOption``."""
        return find_credentials(self._access_key, self._secret_key_file, os.environ)

    def connection_options(self) -> dict[str, str]:
        """Return the options of ``format("rocketmq")`` with which it connects."""
        given, tls = self.credentials(), self.tls_settings
        options = {
            "accessKey": given.access_key,
            "secretKey": given.secret_key.reveal(),
            "securityToken": given.security_token.reveal(),
            "tls.enable": "true" if tls["use_tls"] else "",
            "tls.client.trustCertPath": tls["tls_client_trust_cert_path"],
            "tls.client.certPath": tls["tls_client_cert_path"],
            "tls.client.keyPath": tls["tls_client_key_path"],
            "tls.client.keyPassword": tls["tls_client_key_password"],
        }
        return {name: value for name, value in options.items() if value}

    def time_ms(self, option: str, text: str | None) -> int | None:
        """Return a time in ms since the epoch; None for None. Raises ``InvalidOption``."""
        return None if text is None else printing.parse_time(option, text, self.clock)

    def print(self, view: View) -> None:
        """Print the result of the command.

        Raises:
            ReputError: The failure of the view.
            typer.Exit: Its exit code is not 0.
        """
        printing.print_view(view, self.clock, as_json=self.as_json)
        if not self.is_done:
            sys.stdout.flush()
            printing.print_note("nothing has been changed; --yes makes the change")
        if view.failure is not None:
            raise view.failure
        if view.exit_code:
            raise typer.Exit(view.exit_code)


def command(
    *shared: str, **grouped: Options
) -> Callable[[Callable[..., View | None]], Callable[..., None]]:
    """Return a decorator that adds options to a function.

    Args:
        *shared: Names of options in ``_SHARED``, which the session of the function gets.
        **grouped: Options that replace a parameter of the function: it gets a dict of the values.
    """

    def decorated(function: Callable[..., View | None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**values: Any) -> None:
            session = Session(**{name: values.pop(name) for name in shared})
            for group, options in grouped.items():
                values[group] = {name: values.pop(name) for name in options}
            view = function(session, **values)
            if view is not None:
                session.print(view)

        _, *own = inspect.signature(function).parameters.values()
        parameters = []
        for parameter in own:
            if parameter.name in grouped:
                parameters += _parameters(grouped[parameter.name])
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        parameters += _parameters({name: _SHARED[name] for name in _SHARED if name in shared})
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorated


def _parameters(options: Options) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
        )
        for name, (annotation, default) in options.items()
    ]


# --- values -------------------------------------------------------------------------------------


def parse_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return the values by name of texts ``NAME=VALUE``.

    Raises:
        InvalidOption: A text has no ``=`` or no name.
    """
    values = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidOption(option, pair, "NAME=VALUE")
        values[name] = value
    return values
