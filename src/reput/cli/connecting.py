"""How commands reach a cluster: the options they share, one event loop each, errors that help.

A command asks with ``ask``, which hands out an ``Admin``, or with ``run``, which hands out the
configuration that producers and consumers are made with. It imports nothing heavy itself.
"""

import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reput.errors import InvalidOption, RemotingError, ReputError, RequestTimedOut, Unreachable

if TYPE_CHECKING:
    import asyncio

    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.format.bodies import ClusterInfo, MessageQueue

T = TypeVar("T")

DEFAULT_NAMESRV = "127.0.0.1:9876"
DEFAULT_TIMEOUT_S = 3.0

NamesrvOption = Annotated[
    str,
    typer.Option(
        "--namesrv",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="Name servers, several separated by ';'.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.001, metavar="SECONDS", help="How long one request may take at most."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, with ms for times.")]
UtcOption = Annotated[bool, typer.Option("--utc", help="Show times in UTC, and read them so.")]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do it; without, only show what would be done.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The brokers of this cluster; needed if there are several."),
]
BrokerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="One broker only: its name, or host:port.")
]


class CommandFailed(ReputError):
    """A cluster did not do what a command asked for; the text says why and what may help."""


def command_group(
    app: typer.Typer, name: str, text: str, commands: Mapping[str, Callable[..., None]]
) -> typer.Typer:
    """Add a group of commands, which prints its help when it is called without one."""
    group = typer.Typer(help=text)

    @group.callback(invoke_without_command=True)
    def root(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    for command_name, command in commands.items():
        group.command(command_name)(command)
    app.add_typer(group, name=name)
    return group


# --- one event loop a command -------------------------------------------------------------------


def ask(namesrv: str, timeout_s: float, work: "Callable[[Admin], Awaitable[T]]") -> T:
    """Return what ``work`` finds out through an admin client.

    Raises:
        CommandFailed: The cluster cannot be reached, or refuses.
        ReputError: Anything else that is wrong.
    """
    from reput.client.admin import Admin

    async def with_admin(client: "ClientConfig") -> T:
        async with Admin(client=client) as admin:
            return await work(admin)

    return run(namesrv, timeout_s, with_admin)


def run(
    namesrv: str,
    timeout_s: float,
    work: "Callable[[ClientConfig], Coroutine[Any, Any, T]]",
    *,
    loop_factory: "Callable[[], asyncio.AbstractEventLoop] | None" = None,
) -> T:
    """Run ``work`` in an event loop of its own, and return what it returns. Raises as ``ask``."""
    import asyncio

    from reput.client.config import ClientConfig

    client = ClientConfig(namesrv_addr=namesrv, request_timeout_ms=max(1, round(timeout_s * 1000)))
    with _warnings_as_notes():
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                return runner.run(work(client))
        except RemotingError as error:
            raise CommandFailed(explained(error, client.namesrv_addr)) from error


def explained(error: RemotingError, namesrv: str) -> str:
    """Return what happened, and what may help."""
    from reput.client.config import name_servers
    from reput.client.core.retry import SendFailed
    from reput.client.core.route_cache import NoRoute

    text = str(error)
    reason = error.reason if isinstance(error, SendFailed) else error
    address = getattr(reason, "address", "")
    is_name_server = address in name_servers(namesrv)
    if isinstance(reason, Unreachable) and is_name_server:
        return (
            f"cannot reach name server {address}: {reason.reason}; `reput up` starts one with a "
            "broker, -n HOST:PORT or NAMESRV_ADDR names another"
        )
    if isinstance(reason, Unreachable):
        return f"{text}; is this broker up, and can its address (brokerIP1) be reached from here?"
    if isinstance(reason, RequestTimedOut):
        return f"{text}; --timeout waits longer"
    if isinstance(reason, NoRoute) and "no name server knows" in text:
        return f"no topic {reason.topic!r}: name server {namesrv} knows of none"
    return text


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Show what the client warns of as lines beside the output."""
    logger = logging.getLogger("reput")
    handler = _Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from reput.cli import printing

        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]}"
        printing.print_note(text)


# --- what several commands say ------------------------------------------------------------------


def print_preview_note() -> None:
    """Say that nothing has been done, because ``--yes`` was not given."""
    from reput.cli import printing

    sys.stdout.flush()
    printing.print_note("this is what would be done; nothing has been changed, --yes does it")


def masters(known: "ClusterInfo", cluster: str | None, broker: str | None) -> list[str]:
    """Return the names of the brokers that are meant, those with a master.

    Args:
        known: What name servers know.
        cluster: Whose brokers; the only cluster's, if it is not given.
        broker: One broker, by name or address, instead.

    Raises:
        InvalidOption: There is no such cluster, or several, or both were given.
    """
    if broker is not None:
        if cluster is not None:
            raise InvalidOption("--broker", broker, "nothing, where --cluster is given as well")
        return [_name_of(known, broker)]
    table = known.cluster_addr_table
    allowed = ", ".join(sorted(table)) or "none: no broker is registered"
    if cluster is None and len(table) == 1:
        (cluster,) = table
    if cluster is None or cluster not in table:
        raise InvalidOption("--cluster", cluster, allowed)
    brokers = known.broker_addr_table
    return sorted(name for name in table[cluster] if 0 in brokers[name].broker_addrs)


def _name_of(known: "ClusterInfo", broker: str) -> str:
    """Return the name of the broker that has an address, where name servers know it."""
    for name, data in known.broker_addr_table.items():
        if data.broker_addrs.get(0) == broker:
            return name
    return broker


def parse_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return names and values of ``NAME=VALUE``.

    Raises:
        InvalidOption: One has no ``=`` or no name.
    """
    found = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidOption(option, pair, "NAME=VALUE")
        found[name] = value
    return found


def queue_text(queue: "MessageQueue") -> str:
    """Return a queue of a topic as options name it: ``broker-a:0``."""
    return f"{queue.broker_name}:{queue.queue_id}"


def choose_queues(
    option: str, queues: "Sequence[MessageQueue]", wanted: Sequence[str] | None
) -> "list[MessageQueue]":
    """Return the queues that are named ``BROKER:ID``; all if none is.

    Raises:
        InvalidOption: There is no such queue.
    """
    by_text = {queue_text(one): one for one in queues}
    for text in wanted or ():
        if text not in by_text:
            raise InvalidOption(option, text, f"one of {', '.join(by_text) or 'none'}")
    return [by_text[text] for text in dict.fromkeys(wanted or by_text)]


def version_text(number: int) -> str:
    """Return the version of RocketMQ that a peer says it is: ``4.9.7`` for 407.

    Source: rocketmq 5.5.0 ``MQVersion``: two numbers a release, the first for its snapshot.
    """
    if not _VERSION_4_0_0_SNAPSHOT <= number < _HIGHER_VERSION:
        return str(number)
    release, is_final = divmod(number - _VERSION_4_0_0_SNAPSHOT, 2)
    text = ".".join(str(400 + release))
    return text if is_final else f"{text}-SNAPSHOT"


_VERSION_4_0_0_SNAPSHOT = 212
_HIGHER_VERSION = 612
