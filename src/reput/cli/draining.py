"""``reput cluster drain``: takes a broker out of a cluster after its messages have been consumed.

It removes the broker from the routes of producers, and again if the broker restores itself by
registering a topic. Then it waits until nothing remains: no consumer lag, no message that waits for
its delivery time, for the decision of its transaction, or for the acknowledgement of a pop; and
until the log has not grown for longer than clients keep a route.
"""

import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import delays
from reput.cli.connecting import CommandFailed
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import CLUSTER, Session, command
from reput.cli.printing import Document, Fields, Table, View, print_note
from reput.cli.processes import pid_of_port
from reput.errors import InvalidOption, RemotingError
from reput.format.codes import MASTER_ID, PERM_WRITE

if TYPE_CHECKING:
    from reput.client.admin import Admin

QUIET_S = 35.0
"""Time without a new message, in seconds: clients fetch routes every 30 s."""
_POLL_S = 2.0
_STOP_S = 90.0
_SHOWN_MAX = 3
_TOPICS_CHECKED = 20
"""Topics whose route shows whether the broker has come back for producers."""


@dataclass(slots=True)
class Remaining:
    """Messages that a broker must still deliver."""

    lags: dict[tuple[str, str], int] = field(default_factory=dict)
    """Group and topic -> consumer lag in messages, if any."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Kind -> messages that wait: delayed, half, popped."""

    @property
    def is_empty(self) -> bool:
        """True if nothing remains."""
        return not self.lags and not any(self.waiting.values())

    def rows(self) -> list[Document]:
        """Return what remains, as a table."""
        return [
            *(
                {"what": "lag", "group": group, "topic": topic, "count": count}
                for (group, topic), count in sorted(self.lags.items())
            ),
            *(
                {"what": kind, "group": None, "topic": None, "count": count}
                for kind, count in self.waiting.items()
                if count
            ),
        ]

    def __str__(self) -> str:
        """Return what remains, as a line."""
        largest = sorted(self.lags.items(), key=lambda item: -item[1])
        words = [f"{group} lags {lag} in {topic}" for (group, topic), lag in largest[:_SHOWN_MAX]]
        if len(largest) > _SHOWN_MAX:
            words.append(f"{len(largest) - _SHOWN_MAX} more groups and topics")
        words += [f"{count} {kind}" for kind, count in self.waiting.items() if count]
        return ", ".join(words) or "nothing remains"


@command("yes", *CLUSTER)
def drain(
    session: Session,
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", help="The name of the broker, not its address.")
    ],
    ignored: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="GROUP", help="Do not wait for this group; repeatable."),
    ] = None,
    quiet_s: Annotated[
        float,
        typer.Option(
            "--quiet",
            min=0,
            metavar="SECONDS",
            help="Time without a new message before the end; clients fetch routes every 30 s.",
        ),
    ] = QUIET_S,
    limit_s: Annotated[
        float | None,
        typer.Option("--limit", min=0, metavar="SECONDS", help="Give up after this time."),
    ] = None,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="Then stop its process, which must be on this machine."),
    ] = False,
) -> View:
    """Take a broker out of the cluster: no new messages, wait until all are consumed, stop it.

    Producers use other brokers within 30 s; consumers are not affected. Messages that no group
    reads stay in the store. Ctrl-C ends only the waiting; `reput cluster write-permission BROKER
    on` undoes it. The exit code is 1 if something remains after --limit. Without --yes it only
    shows what remains.
    """
    groups = frozenset(ignored or ())

    async def work(admin: "Admin") -> View:
        address = await _address(admin, broker)
        if stop:
            _local_pid(address)  # refused before anything is changed
        remaining = await _remaining(admin, broker, address, groups)
        if not session.is_done:
            return _view(broker, address, remaining, is_done=False)
        await admin.wipe_write_perm(broker)
        remaining = await _until_empty(admin, broker, address, groups, quiet_s, limit_s)
        is_stopped = stop and remaining.is_empty
        if is_stopped:
            await _stop(address)
        return _view(broker, address, remaining, is_done=True, is_stopped=is_stopped)

    return session.ask(work)


async def _address(admin: "Admin", broker: str) -> str:
    table = (await admin.clusters()).broker_addr_table
    if broker not in table or MASTER_ID not in table[broker].broker_addrs:
        masters = [name for name, data in table.items() if MASTER_ID in data.broker_addrs]
        raise InvalidOption("BROKER", broker, ", ".join(sorted(masters)) or "none is registered")
    return table[broker].broker_addrs[MASTER_ID]


def _view(
    broker: str, address: str, remaining: Remaining, *, is_done: bool, is_stopped: bool = False
) -> View:
    document = {
        "broker_name": broker,
        "address": address,
        "is_done": is_done,
        "is_drained": is_done and remaining.is_empty,
        "is_stopped": is_stopped,
        "remaining": remaining.rows(),
    }
    names = "broker=broker_name address is_done is_drained is_stopped"
    table = Table("what group topic #count", remaining.rows(), is_optional=True)
    is_incomplete = is_done and not remaining.is_empty
    return View(
        document, Fields.of(names, document), table, exit_code=EXIT_DAMAGE if is_incomplete else 0
    )


# --- waiting ------------------------------------------------------------------------------------


async def _until_empty(
    admin: "Admin",
    broker: str,
    address: str,
    ignored: frozenset[str],
    quiet_s: float,
    limit_s: float | None,
) -> Remaining:
    """Wait until nothing remains and nothing is new, or until the limit; return what remains."""
    import asyncio

    begin = quiet_since = time.monotonic()
    log_end = ""
    shown = ""
    while True:
        remaining = await _remaining(admin, broker, address, ignored)
        now_s = time.monotonic()
        end = (await admin.broker_status(address)).get("commitLogMaxOffset", "")
        if end != log_end or not remaining.is_empty:
            log_end, quiet_since = end, now_s
        if now_s - quiet_since >= quiet_s and remaining.is_empty:
            return remaining
        if limit_s is not None and now_s - begin >= limit_s:
            return remaining
        if str(remaining) != shown:
            shown = str(remaining)
            print_note(f"{now_s - begin:.0f} s: {shown}")
        if await _is_writable(admin, broker):
            await admin.wipe_write_perm(broker)
        await asyncio.sleep(min(_POLL_S, max(quiet_s / 4, 0.05)))


async def _is_writable(admin: "Admin", broker: str) -> bool:
    """Return True if producers have the broker in a route again: it has registered a change."""
    configs = await admin.topic_configs(broker)
    for topic in sorted(configs)[:_TOPICS_CHECKED]:
        try:
            route = await admin.topic_route(topic)
        except RemotingError:
            continue  # a topic that the broker does not register
        if any(
            queues.broker_name == broker and queues.perm & PERM_WRITE
            for queues in route.data.queue_datas
        ):
            return True
    return False


async def _remaining(
    admin: "Admin", broker: str, address: str, ignored: frozenset[str]
) -> Remaining:
    remaining = Remaining()
    for group in sorted(await admin.groups(broker=broker)):
        if group in ignored:
            continue
        try:
            stats = await admin.consume_stats(group)
        except RemotingError:
            continue  # a group that has never consumed anything
        for progress in stats.queues:
            if progress.queue.broker_name == broker and progress.lag > 0:
                key = group, progress.queue.topic
                remaining.lags[key] = remaining.lags.get(key, 0) + progress.lag
    status = await admin.broker_status(address)
    levels = await delays.levels_of(admin, broker)
    timers = int(status.get("timerCongestNum", "0")) + int(status.get("timerOffsetBehind", "0"))
    remaining.waiting = {
        "delayed": sum(level["waiting_count"] for level in levels) + timers,
        # Only brokers of reput report these.
        "half": int(status.get("halfMessages", "0")),
        "popped": int(status.get("poppedMessages", "0")),
    }
    return remaining


# --- stopping -----------------------------------------------------------------------------------


def _local_pid(address: str) -> int:
    """Return the process of a broker. Raises ``CommandFailed``: it is not on this machine."""
    host, _, port = address.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host.strip("[]"), 0))
    except OSError:
        pid = None
    else:
        pid = pid_of_port(int(port))
    if pid is None:
        raise CommandFailed(
            f"--stop: {address} is not a process of this user on this machine; drain it without "
            "--stop, and stop it there with SIGTERM"
        )
    return pid


async def _stop(address: str) -> None:
    import asyncio

    pid = _local_pid(address)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while pid_of_port(int(address.rpartition(":")[2])) == pid:
        if time.monotonic() > deadline:
            raise CommandFailed(f"process {pid} has not stopped in {_STOP_S:.0f} s after SIGTERM")
        await asyncio.sleep(0.1)


COMMANDS = {"drain": drain}
