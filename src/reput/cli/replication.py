"""``reput cluster replicas``, ``promote`` and ``demote``: masters and slaves."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import replica_groups
from reput.cli.connecting import CommandFailed
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import CLUSTER, Session, command
from reput.cli.printing import Document, Fields, Table, View, print_note
from reput.cli.replica_groups import ControllerOption
from reput.errors import InvalidOption, RemotingError
from reput.format.codes import MASTER_ID

if TYPE_CHECKING:
    from reput.client.admin import Admin, ReplicaGroups

MASTER_ROLES = ("ASYNC_MASTER", "SYNC_MASTER")
SLAVE = "SLAVE"
CHANGE_TIMEOUT_S = 120.0
"""Time in which a broker reopens its store; the recovery of a large log takes long."""
_LISTED_S = 10.0
_POLL_S = 0.2
_BROKEN_STATES = frozenset({"diverged", "too old", "refused", "failed"})
"""States of a slave whose log is not the beginning of its master's."""

BrokerArgument = Annotated[
    str, typer.Argument(metavar="BROKER", help="The broker: its address host:port, or its name.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it although messages may be lost.")]


# --- replicas -----------------------------------------------------------------------------------


@command(*CLUSTER)
def replicas(
    session: Session,
    broker: Annotated[
        str | None, typer.Argument(metavar="[BROKER]", help="Only the brokers of this name.")
    ] = None,
    controller: ControllerOption = None,
) -> View:
    """Show masters and slaves: state, end of the log, and how far each slave lags.

    The second table has the connections of slaves to the masters. With a controller, two more have
    its groups: master, epochs and in-sync set, and each replica's epochs and log; a group without a
    master says what it waits for, and what it would lose otherwise. The exit code is 1 if a broker
    does not answer, a slave does not follow its master, or a group has no master.
    """

    async def work(admin: "Admin") -> "tuple[list[Document], list[Document], ReplicaGroups]":
        known = await replica_groups.find(admin, broker, controller)
        is_known = any(group.broker_name == broker for group in known.groups)
        return *await _replicas(admin, broker, is_known=is_known), known

    rows, connections, known = session.ask(work)
    groups = replica_groups.documents(known)
    for problem in known.problems:
        print_note(problem)
    is_wrong = known.problems or any(row["problem"] for row in (*rows, *groups))
    return View(
        {
            "replicas": rows,
            "connections": connections,
            "groups": groups,
            "problems": known.problems,
        },
        Table(
            "broker=broker_name #id=broker_id address role state #log_end #lag_bytes problem", rows
        ),
        Table(
            "master slave=address #acked=acked_offset #lag_bytes in_sync=is_in_sync",
            connections,
            is_optional=True,
        ),
        *replica_groups.tables(groups),
        exit_code=EXIT_DAMAGE if is_wrong else 0,
    )


async def _replicas(
    admin: "Admin", broker: str | None, *, is_known: bool
) -> tuple[list[Document], list[Document]]:
    """Return the brokers that name servers have; a controller may know a name that they lack."""
    import asyncio

    table = (await admin.clusters()).broker_addr_table
    if broker is not None and broker not in table:
        if is_known:
            return [], []
        allowed = ", ".join(sorted(table)) or "none: no broker is registered"
        raise InvalidOption("BROKER", broker, allowed)
    rows: list[Document] = []
    connections: list[Document] = []
    for name in sorted(table) if broker is None else [broker]:
        addresses = dict(sorted(table[name].broker_addrs.items()))
        states = await asyncio.gather(
            *(_status(admin, broker_address) for broker_address in addresses.values())
        )
        master = addresses.get(MASTER_ID)
        end = next(
            (
                _number(status, "commitLogMaxOffset")
                for address, status in zip(addresses.values(), states, strict=True)
                if address == master and isinstance(status, dict)
            ),
            None,
        )
        for (broker_id, address), status in zip(addresses.items(), states, strict=True):
            rows.append({"broker_name": name, **_replica(broker_id, address, status, end)})
        if end is not None and master is not None:
            connections += await _connections(admin, master)
    return rows, connections


async def _status(admin: "Admin", address: str) -> dict[str, str] | RemotingError:
    try:
        return await admin.broker_status(address)
    except RemotingError as error:
        return error


async def _connections(admin: "Admin", master: str) -> list[Document]:
    """Return the connections of slaves; none if the master is of 4.x."""
    try:
        info = await admin.ha_status(master)
    except RemotingError:
        return []
    return [
        {
            "master": master,
            "address": slave.addr,
            "acked_offset": slave.slave_ack_offset,
            "lag_bytes": slave.diff,
            "is_in_sync": slave.in_sync,
        }
        for slave in info.ha_connection_info
    ]


def _replica(
    broker_id: int, address: str, status: dict[str, str] | RemotingError, master_end: int | None
) -> Document:
    """Return the row of a broker; Java's brokers report no role and no state."""
    known = {} if isinstance(status, RemotingError) else status
    is_master = broker_id == MASTER_ID
    end = _end(known)
    lag = None
    if not is_master and end is not None:
        reported = _number(known, "slaveLagBytes")
        lag = reported if master_end is None else max(master_end - end, 0)
    state = known.get("slaveState")
    return {
        "broker_id": broker_id,
        "address": address,
        "role": known.get("brokerRole") or ("master" if is_master else "slave"),
        "state": None if not known else state or "running",
        "log_end": end,
        "lag_bytes": lag,
        "problem": str(status)
        if isinstance(status, RemotingError)
        else known.get("slaveReason") or None,
    }


def _number(status: dict[str, str], key: str) -> int | None:
    text = status.get(key, "")
    return int(text) if text.isdecimal() else None


def _end(status: dict[str, str]) -> int | None:
    """Return the end of a broker's log; a slave's includes bytes that it has not dispatched."""
    received = _number(status, "slaveMaxOffset")
    return _number(status, "commitLogMaxOffset") if received is None else received


# --- promote ------------------------------------------------------------------------------------


@command(*CLUSTER)
def promote(
    session: Session,
    broker: BrokerArgument,
    is_sync: Annotated[
        bool | None,
        typer.Option(
            "--sync/--async",
            help="As SYNC_MASTER, whose sends wait for a slave, or as ASYNC_MASTER.",
        ),
    ] = None,
    force: ForceOption = False,
) -> View:
    """Make a slave the master, after the master has failed or was demoted.

    It dispatches all messages that it has received, and continues their queues. Without --sync or
    --async it gets the role of the last master that it has followed; ASYNC_MASTER if it has seen
    none since its start. It is refused while another master answers, and if the slave is known to
    lack messages. It works on the machine of the broker, and with access control as a super user
    from everywhere; otherwise the broker must have reputRemoteSettings=java.
    """
    role = None if is_sync is None else MASTER_ROLES[is_sync]
    return session.ask(lambda admin: _promote(admin, broker, role, is_forced=force))


async def _promote(admin: "Admin", broker: str, role: str | None, *, is_forced: bool) -> View:
    table = (await admin.clusters()).broker_addr_table
    name, address = _slave(broker, {name: dict(data.broker_addrs) for name, data in table.items()})
    addresses = dict(table[name].broker_addrs) if name in table else {}
    status = await _role_status(admin, address)
    if status["brokerRole"] != SLAVE:
        raise CommandFailed(f"{address} is a master already: {status['brokerRole']}")
    ends = {address: _end(status) or 0}
    others = {known for known in addresses.values() if known != address}
    for other in sorted(others):
        other_status = await _status(admin, other)
        if isinstance(other_status, RemotingError):
            continue
        is_master = addresses.get(MASTER_ID) == other
        if is_master and not is_forced:
            raise CommandFailed(
                f"{other} is the master of {name}, and answers: stop it, or `reput cluster demote "
                f"{other}` first; --force makes {address} a second master"
            )
        ends[other] = _end(other_status) or 0
    known_end = max(max(ends.values()), _number(status, "masterMaxOffset") or 0)
    lost = known_end - ends[address]
    state = status.get("slaveState", "")
    if not is_forced:
        if state in _BROKEN_STATES:
            raise CommandFailed(
                f"{address} does not follow its master, {state}: {status.get('slaveReason')}; "
                "--force promotes it nevertheless"
            )
        if lost:
            best = max(ends, key=lambda replica_address: ends[replica_address])
            better = f", which {best} has" if ends[best] > ends[address] else ""
            raise CommandFailed(
                f"{address} lacks {lost} bytes of the log{better}: its log ends at "
                f"{ends[address]}, the longest known one at {known_end}; --force loses them"
            )
    chosen, source = _role(role, status)
    changes = {"brokerRole": chosen, "brokerId": str(MASTER_ID)}
    if is_forced:
        changes["haForceMaster"] = "true"
    after, note = await _change(admin, address, changes)
    await _until_listed(admin, name, address)
    document = _document(name, addresses, address, status, after, changes, note)
    return _view(document | {"role_source": source, "known_lost_bytes": lost})


def _role(wanted: str | None, status: dict[str, str]) -> tuple[str, str]:
    """Return the role of a slave as master, and where it comes from."""
    if wanted is not None:
        return wanted, "option"
    if status.get("masterRole") in MASTER_ROLES:
        return status["masterRole"], "last master"
    return MASTER_ROLES[0], "default: no master was seen"


async def _until_listed(admin: "Admin", name: str, address: str) -> None:
    """Wait until the name server lists the new master, so that clients find it at once."""
    import asyncio

    deadline = time.monotonic() + _LISTED_S
    while name and time.monotonic() < deadline:
        listed = (await admin.clusters()).broker_addr_table.get(name)
        if listed is not None and listed.broker_addrs.get(MASTER_ID) == address:
            return
        await asyncio.sleep(_POLL_S)


def _slave(broker: str, table: dict[str, dict[int, str]]) -> tuple[str, str]:
    """Return name and address of a slave: by its address, or by its name if there is only one."""
    if ":" in broker:
        owner = next((name for name, ids in table.items() if broker in ids.values()), "")
        return owner, broker
    if broker not in table:
        allowed = ", ".join(sorted(table)) or "host:port: no broker is registered"
        raise InvalidOption("BROKER", broker, allowed)
    slaves = sorted(
        slave_address for number, slave_address in table[broker].items() if number != MASTER_ID
    )
    if len(slaves) != 1:
        allowed = f"the address of a slave: {', '.join(slaves) or 'none is registered'}"
        raise InvalidOption("BROKER", broker, allowed)
    return broker, slaves[0]


# --- demote -------------------------------------------------------------------------------------


@command(*CLUSTER)
def demote(
    session: Session,
    broker: BrokerArgument,
    broker_id: Annotated[
        int | None,
        typer.Option("--id", min=1, metavar="N", help="Its id as a slave; by default a free one."),
    ] = None,
    force: ForceOption = False,
) -> View:
    """Make a master a slave, before another broker of its name is promoted.

    It answers all sends, and waits a second for its slaves to get the rest of the log. Until a
    slave is promoted, messages are refused. It is refused if no slave is in sync.
    """
    return session.ask(lambda admin: _demote(admin, broker, broker_id, is_forced=force))


async def _demote(admin: "Admin", broker: str, broker_id: int | None, *, is_forced: bool) -> View:
    table = (await admin.clusters()).broker_addr_table
    address = broker
    if ":" not in broker:
        if broker not in table or MASTER_ID not in table[broker].broker_addrs:
            masters = [name for name, data in table.items() if MASTER_ID in data.broker_addrs]
            allowed = ", ".join(sorted(masters)) or "host:port: no master is registered"
            raise InvalidOption("BROKER", broker, allowed)
        address = table[broker].broker_addrs[MASTER_ID]
    name = next(
        (name for name, data in table.items() if address in data.broker_addrs.values()), broker
    )
    status = await _role_status(admin, address)
    if status["brokerRole"] == SLAVE:
        raise CommandFailed(f"{address} is a slave already")
    if not is_forced and not _number(status, "slavesInSync"):
        raise CommandFailed(
            f"no slave of {address} is in sync: messages that only this broker has could not be "
            "sent to a new master; --force demotes it nevertheless"
        )
    used = set(table[name].broker_addrs) if name in table else set()
    wanted = broker_id or next(number for number in range(1, 1 << 16) if number not in used)
    changes = {"brokerRole": SLAVE, "brokerId": str(wanted)}
    after, note = await _change(admin, address, changes)
    addresses = dict(table[name].broker_addrs) if name in table else {}
    return _view(_document(name, addresses, address, status, after, changes, note))


# --- both ---------------------------------------------------------------------------------------


async def _role_status(admin: "Admin", address: str) -> dict[str, str]:
    """Return the status of a broker, which must be one of reput: only its role can be changed."""
    status = await admin.broker_status(address)
    if "brokerRole" not in status:
        raise CommandFailed(
            f"{address} is no broker of reput: set brokerRole and brokerId in its broker.conf, and "
            "restart it"
        )
    return status


async def _change(
    admin: "Admin", address: str, changes: dict[str, str]
) -> tuple[dict[str, str], str]:
    """Change the role of a broker, and wait until it serves again; return its status and note."""
    import asyncio

    note = await admin.update_broker_config(address, changes)
    deadline = time.monotonic() + CHANGE_TIMEOUT_S
    while True:
        status = await _status(admin, address)
        if isinstance(status, dict) and status.get("brokerRole") == changes["brokerRole"]:
            return status, note
        if time.monotonic() > deadline:
            why = status if isinstance(status, RemotingError) else "it still has the old role"
            raise CommandFailed(
                f"{address} is not {changes['brokerRole']} after {CHANGE_TIMEOUT_S:.0f} s: {why}; "
                "its log says why"
            )
        await asyncio.sleep(_POLL_S)


def _document(
    name: str,
    addresses: dict[int, str],
    address: str,
    before: dict[str, str],
    after: dict[str, str],
    changes: dict[str, str],
    note: str,
) -> Document:
    """Return what a change of the role has changed."""
    return {
        "broker_name": name,
        "address": address,
        "role_before": before["brokerRole"],
        "role": after["brokerRole"],
        "id_before": next((number for number in addresses if addresses[number] == address), None),
        "id": int(changes["brokerId"]),
        "log_end": _end(after),
        "note": note or None,
    }


def _view(document: Document) -> View:
    more = "role_source known_lost_bytes" if "role_source" in document else ""
    names = f"broker=broker_name address role_before role id_before id {more} log_end note"
    return View(document, Fields.of(names, document))


COMMANDS = {
    "replicas": replicas,
    **replica_groups.COMMANDS,
    "promote": promote,
    "demote": demote,
}
