"""Access of commands to a cluster: the event loop, readable errors, names of brokers and queues.

Importing it imports nothing heavy.
"""

import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from reput.cli import printing
from reput.cli.credentials import ACCESS_KEY_VARIABLE, CommandCredentials
from reput.errors import (
    AccessRefused,
    ConnectionLost,
    InvalidOption,
    RemotingError,
    ReputError,
    RequestTimedOut,
    Unreachable,
    similar_name,
)
from reput.format import codes

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.format.bodies import ClusterInfo, MessageQueue

T = TypeVar("T")


class CommandFailed(ReputError):
    """The cluster did not carry out a command; the text gives the reason and a remedy."""


# --- the event loop -----------------------------------------------------------------------------


def run(
    namesrv: str,
    timeout_s: float,
    given: CommandCredentials,
    work: "Callable[[ClientConfig], Coroutine[Any, Any, T]]",
    settings: Mapping[str, Any] | None = None,
) -> T:
    """Return the result of ``work`` in a new event loop; see ``Session.run``."""
    import asyncio

    from reput.client.config import ClientConfig

    client = ClientConfig(
        namesrv_addr=namesrv,
        request_timeout_ms=max(1, round(timeout_s * 1000)),
        access_key=given.access_key,
        secret_key=given.secret_key,
        security_token=given.security_token,
        **(settings or {}),
    )
    with _warnings_as_notes():
        try:
            return asyncio.run(work(client))
        except RemotingError as error:
            text = explained(error, client.namesrv_addr)
            if isinstance(error, ConnectionLost) and not client.use_tls:
                text += "; a server that requires TLS closes other connections: --tls uses it"
            raise CommandFailed(text) from error


def explained(error: RemotingError, namesrv: str) -> str:
    """Return the text of an error, with a remedy where one is likely."""
    from reput.client.config import name_servers
    from reput.client.core.retry import SendFailed
    from reput.client.core.route_cache import NoRoute

    text = str(error)
    reason = error.reason if isinstance(error, SendFailed) else error
    if isinstance(reason, NoRoute) and isinstance(reason.__cause__, RemotingError):
        reason = reason.__cause__  # no name server answers
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
    if isinstance(reason, AccessRefused):
        return f"{text}; --access-key and --secret-key-file ({ACCESS_KEY_VARIABLE}) name an account"
    if isinstance(reason, NoRoute) and "no name server knows" in text:
        return f"no topic {reason.topic!r}: name server {namesrv} has none of this name"
    return text


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print the client's warnings as lines on stderr."""
    logger = logging.getLogger("reput")
    handler = _Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]}"
        printing.print_note(text)


# --- brokers and queues -------------------------------------------------------------------------


def masters(info: "ClusterInfo", cluster: str | None, broker: str | None) -> list[str]:
    """Return the names of the selected brokers that have a master.

    Args:
        info: Clusters and brokers that the name servers have.
        cluster: The cluster; None: the only one.
        broker: Name or address of a single broker, instead of a cluster.

    Raises:
        InvalidOption: The cluster does not exist or is ambiguous, or both were given.
    """
    if broker is not None:
        if cluster is not None:
            raise InvalidOption("--broker", broker, "nothing, where --cluster is given as well")
        return [_name_of(info, broker)]
    from reput.format.codes import MASTER_ID

    table = info.cluster_addr_table
    allowed = ", ".join(sorted(table)) or "none: no broker is registered"
    if cluster is None and len(table) == 1:
        (cluster,) = table
    if cluster is None or cluster not in table:
        raise InvalidOption("--cluster", cluster, allowed)
    brokers = info.broker_addr_table
    return sorted(name for name in table[cluster] if MASTER_ID in brokers[name].broker_addrs)


def all_masters(info: "ClusterInfo") -> list[str]:
    """Return the names of all brokers with a master, cluster by cluster."""
    return [
        name for cluster in sorted(info.cluster_addr_table) for name in masters(info, cluster, None)
    ]


def _name_of(info: "ClusterInfo", broker: str) -> str:
    """Return the name of the broker with an address; the argument itself if there is none."""
    from reput.format.codes import MASTER_ID

    for name, data in info.broker_addr_table.items():
        if data.broker_addrs.get(MASTER_ID) == broker:
            return name
    return broker


async def check_group(admin: "Admin", group: str, *, hint: str = "") -> None:
    """Check that a group exists: it has offsets, members or settings on a broker.

    Args:
        admin: The admin client.
        group: The consumer group.
        hint: The option that allows a new group, as the end of a sentence.

    Raises:
        CommandFailed: No broker knows the group.
    """
    if (await admin.consume_stats(group)).queues or await admin.consumer_connection(group):
        return
    groups = await admin.groups()
    if group in groups:
        return
    similar = similar_name(group, groups) if len(groups) <= _SIMILAR_AMONG_MAX else None
    question = f"did you mean {similar!r}? " if similar else ""
    text = f"no broker knows group {group!r}; {question}`reput group list` shows the groups"
    raise CommandFailed(text + hint)


_SIMILAR_AMONG_MAX = 10_000
"""Number of names among which a similar one is searched, which takes 10 us each."""


def kind_in(info: "ClusterInfo", topic: str) -> str:
    """Return the kind of a topic; ``system`` also for topics named after clusters and brokers."""
    from reput.format import names

    is_named_so = topic in info.cluster_addr_table or topic in info.broker_addr_table
    is_system = is_named_so or topic.endswith(names.REPLY_TOPIC_SUFFIX)
    return "system" if is_system else names.kind_of(topic)


def queue_text(queue: "MessageQueue") -> str:
    """Return the text that names a queue in options: ``broker-a:0``."""
    return f"{queue.broker_name}:{queue.queue_id}"


def choose_queues(
    option: str, queues: "Sequence[MessageQueue]", wanted: Sequence[str] | None
) -> "list[MessageQueue]":
    """Return the queues with these names ``BROKER:ID``; all queues if there are no names.

    Raises:
        InvalidOption: There is no such queue.
    """
    by_text = {queue_text(queue): queue for queue in queues}
    for text in wanted or ():
        if text not in by_text:
            raise InvalidOption(option, text, f"one of {', '.join(by_text) or 'none'}")
    return [by_text[text] for text in dict.fromkeys(wanted or by_text)]


def version_text(number: int) -> str:
    """Return the text of a RocketMQ version number: ``4.9.7`` for 407."""
    name = codes.version_desc(number).removeprefix("V").replace("_SNAPSHOT", "-SNAPSHOT")
    return name.replace("_", ".")
