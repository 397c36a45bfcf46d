"""How commands reach a cluster: an event loop each, errors that help, and names of brokers.

It imports nothing heavy itself.
"""

import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from reput.cli import printing
from reput.errors import InvalidOption, RemotingError, ReputError, RequestTimedOut, Unreachable

if TYPE_CHECKING:
    import asyncio

    from reput.client.config import ClientConfig
    from reput.format.bodies import ClusterInfo, MessageQueue

T = TypeVar("T")


class CommandFailed(ReputError):
    """A cluster did not do what a command asked for; the text says why and what may help."""


# --- one event loop a command -------------------------------------------------------------------


def run(
    namesrv: str,
    timeout_s: float,
    work: "Callable[[ClientConfig], Coroutine[Any, Any, T]]",
    *,
    is_fast: bool = False,
) -> T:
    """Return what ``work`` returns in an event loop of its own; see ``Session.run``."""
    import asyncio

    from reput.client.config import ClientConfig

    client = ClientConfig(namesrv_addr=namesrv, request_timeout_ms=max(1, round(timeout_s * 1000)))
    with _warnings_as_notes():
        try:
            with asyncio.Runner(loop_factory=fast_loop_factory() if is_fast else None) as runner:
                return runner.run(work(client))
        except RemotingError as error:
            raise CommandFailed(explained(error, client.namesrv_addr)) from error


def fast_loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """Return what makes loops of uvloop; None if it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


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
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]}"
        printing.print_note(text)


# --- brokers and queues -------------------------------------------------------------------------


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
    from reput.format.codes import MASTER_ID

    table = known.cluster_addr_table
    allowed = ", ".join(sorted(table)) or "none: no broker is registered"
    if cluster is None and len(table) == 1:
        (cluster,) = table
    if cluster is None or cluster not in table:
        raise InvalidOption("--cluster", cluster, allowed)
    brokers = known.broker_addr_table
    return sorted(name for name in table[cluster] if MASTER_ID in brokers[name].broker_addrs)


def all_masters(known: "ClusterInfo") -> list[str]:
    """Return the names of all brokers with a master, cluster by cluster."""
    return [name for one in sorted(known.cluster_addr_table) for name in masters(known, one, None)]


def _name_of(known: "ClusterInfo", broker: str) -> str:
    """Return the name of the broker that has an address, where name servers know it."""
    from reput.format.codes import MASTER_ID

    for name, data in known.broker_addr_table.items():
        if data.broker_addrs.get(MASTER_ID) == broker:
            return name
    return broker


def kind_in(known: "ClusterInfo", topic: str) -> str:
    """Return the kind of a topic as ``kind_of`` does; ``system`` for topics of brokers too."""
    from reput.format import names

    is_own = topic in known.cluster_addr_table or topic in known.broker_addr_table
    return "system" if is_own or topic.endswith(names.REPLY_TOPIC_SUFFIX) else names.kind_of(topic)


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
