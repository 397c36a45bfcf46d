"""GroupReplica groups under a controller: their tables, ``reput cluster elect`` and ``forget``."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.connecting import CommandFailed
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import CLUSTER, Session, command
from reput.cli.printing import Document, Fields, Table, View
from reput.errors import BrokerError, InvalidOption, RemotingError
from reput.format.codes import MASTER_ID, ResponseCode

if TYPE_CHECKING:
    from reput.client.admin import Admin, GroupReplica, ReplicaGroup, ReplicaGroups

SWITCH_S = 30.0
"""Longest time in which a broker that was elected becomes the master."""
_POLL_S = 0.02

ControllerOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Controllers, several separated by ';'. By default those of the brokers' settings.",
    ),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="BROKER-NAME", help="The name that all brokers of the group have.")
]


async def find(admin: "Admin", name: str | None, controller: str | None) -> "ReplicaGroups":
    """Return the replica groups; with a name, only the group of this name."""
    addresses = [word.strip() for word in (controller or "").split(";") if word.strip()]
    return await admin.replica_groups(name, controllers=addresses)


# --- replicas -----------------------------------------------------------------------------------


def documents(known: "ReplicaGroups") -> list[Document]:
    """Return the groups as JSON."""
    return [_document(group) for group in known.groups]


def tables(groups: list[Document]) -> tuple[Table, Table]:
    """Return tables of groups and of their replicas, which are omitted if there are none."""
    return (
        Table(
            "broker=broker_name controller master=master_address #epoch=master_epoch #set_epoch "
            "in_sync=in_sync_ids problem warning",
            groups,
            computed={"in_sync_ids": _in_sync_ids},
            is_optional=True,
        ),
        Table(
            "broker=broker_name #id=broker_id address alive=is_alive in_sync=is_in_sync #log_end "
            "#lag_bytes epochs=ranges problem",
            [
                {"broker_name": group["broker_name"], **replica}
                for group in groups
                for replica in group["replicas"]
            ],
            computed={"ranges": _ranges},
            is_optional=True,
        ),
    )


def _document(group: "ReplicaGroup") -> Document:
    return {
        "broker_name": group.broker_name,
        "controller": group.controller,
        **_master(group),
        "problem": group.problem or None,
        "warning": group.warning or None,
        "replicas": [
            {
                "broker_id": replica.broker_id,
                "address": replica.address,
                "is_alive": replica.is_alive,
                "is_in_sync": replica.is_in_sync,
                "log_end": replica.log_end,
                "lag_bytes": group.lag_bytes(replica),
                "epochs": [
                    {"epoch": epoch, "start": start, "end": end}
                    for epoch, start, end in replica.epochs
                ],
                "problem": replica.problem or None,
            }
            for replica in group.replicas
        ],
    }


def _master(group: "ReplicaGroup") -> Document:
    master = group.master
    return {
        "master_id": group.master_id,
        "master_address": None if master is None else master.address,
        "master_epoch": group.master_epoch,
        "set_epoch": group.set_epoch,
    }


def _in_sync_ids(group: Document) -> list[int]:
    return [replica["broker_id"] for replica in group["replicas"] if replica["is_in_sync"]]


def _ranges(replica: Document) -> list[str]:
    return [f"{range_['epoch']}:{range_['start']}-{range_['end']}" for range_ in replica["epochs"]]


# --- elect --------------------------------------------------------------------------------------


@command(*CLUSTER)
def elect(
    session: Session,
    name: NameArgument,
    broker_id: Annotated[
        int | None,
        typer.Option(
            "--id",
            min=1,
            metavar="N",
            help="Id of the replica; by default the longest log of those in sync, not the master.",
        ),
    ] = None,
    controller: ControllerOption = None,
) -> View:
    """Let the controller make another replica the master: a planned switch, or an election.

    Only a replica that is alive and in sync is elected: with allAckInSyncStateSet=true it has every
    acknowledged message. It shows the master and the epochs before and after; `switch_ms` is the
    time from the request until the new master served, in which sends may be refused, and
    `listed_ms` that until the name server had it.
    """
    return session.ask(lambda admin: _elect(admin, name, broker_id, controller))


async def _elect(admin: "Admin", name: str, broker_id: int | None, controller: str | None) -> View:
    group = (await find(admin, name, controller)).of(name)
    chosen = _chosen(group, broker_id)
    begin_s = time.monotonic()
    try:
        await admin.elect_master(group, chosen.broker_id)
    except BrokerError as error:
        raise CommandFailed(_refusal(group, chosen, error)) from error
    switched_s = await _until_master(admin, chosen, begin_s)
    listed_s = None if switched_s is None else await _until_listed(admin, name, chosen, begin_s)
    after = (await admin.replica_groups(name, controllers=[group.controller])).of(name)
    problem = None
    if switched_s is None:
        problem = f"{chosen} was elected, but is no master after {SWITCH_S:.0f} s: its log says why"
    document: Document = {
        "broker_name": name,
        "controller": group.controller,
        "before": _master(group),
        "after": _master(after),
        "switch_ms": _ms(switched_s),
        "listed_ms": _ms(listed_s),
        "problem": problem,
    }
    rows = [{"when": when, **document[when]} for when in ("before", "after")]
    return View(
        document,
        Table("when #id=master_id master=master_address #epoch=master_epoch #set_epoch", rows),
        Fields.of("broker=broker_name controller switch_ms listed_ms problem", document),
        exit_code=0 if problem is None else EXIT_DAMAGE,
    )


def _chosen(group: "ReplicaGroup", broker_id: int | None) -> "GroupReplica":
    """Return the replica that is to be elected."""
    if broker_id is not None:
        replica = group.replica(broker_id)
        if replica is None:
            known = ", ".join(str(member.broker_id) for member in group.replicas)
            raise InvalidOption("--id", broker_id, f"one of {known or 'none'}")
        return replica
    if group.candidates:
        return group.candidates[0]
    newer = group.newer_logs
    if newer:
        return max(newer, key=lambda replica: replica.rank)
    why = group.problem or "no other replica is alive and in sync, so a switch could lose messages"
    raise CommandFailed(f"{group.broker_name}: {why}")


def _refusal(group: "ReplicaGroup", chosen: "GroupReplica", error: BrokerError) -> str:
    """Return why the controller elects none, in plain words."""
    text = f"the controller at {group.controller} refuses: {error.remark}"
    if error.response_code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
        return f"{text}; broker {chosen} is the master already"
    if error.response_code != ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
        return text
    if not chosen.is_alive:
        return f"{text}; its heartbeats do not reach the controller"
    if not chosen.is_in_sync:
        fit = ", ".join(str(replica) for replica in group.candidates) or "no other replica"
        return f"{text}; broker {chosen} is not in sync, and may lack messages; in sync: {fit}"
    return text


async def _until_master(admin: "Admin", chosen: "GroupReplica", begin_s: float) -> float | None:
    """Return after how many seconds a broker served as master; None if it did not in time."""
    import asyncio

    while time.monotonic() - begin_s < SWITCH_S:
        try:
            log = await admin.broker_epochs(chosen.address)
        except RemotingError:
            pass  # a broker that changes its role may close its connections
        else:
            if log.broker_id == MASTER_ID:
                return time.monotonic() - begin_s
        await asyncio.sleep(_POLL_S)
    return None


async def _until_listed(
    admin: "Admin", name: str, chosen: "GroupReplica", begin_s: float
) -> float | None:
    """Return after how many seconds the name server had the new master; None if it did not."""
    import asyncio

    while time.monotonic() - begin_s < SWITCH_S:
        listed = (await admin.clusters()).broker_addr_table.get(name)
        if listed is not None and listed.broker_addrs.get(MASTER_ID) == chosen.address:
            return time.monotonic() - begin_s
        await asyncio.sleep(_POLL_S)
    return None


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


# --- forget -------------------------------------------------------------------------------------


@command("yes", *CLUSTER)
def forget(
    session: Session,
    name: NameArgument,
    broker_ids: Annotated[
        list[int] | None,
        typer.Option("--id", min=1, metavar="N", help="Id of a replica; repeatable."),
    ] = None,
    controller: ControllerOption = None,
) -> View:
    """Let the controller forget replicas that will never come back, or a group without a master.

    It refuses if one of them is alive. Their ids are not given again: without the file
    brokerIdentity in its store, such a broker joins under another one. Without --id, the whole
    group is forgotten.
    """

    async def work(admin: "Admin") -> tuple[str, list[Document]]:
        group = (await find(admin, name, controller)).of(name)
        chosen = [_chosen(group, broker_id) for broker_id in broker_ids or ()] or group.replicas
        if session.is_done:
            try:
                await admin.forget_replicas(group, broker_ids or ())
            except BrokerError as error:
                text = f"the controller at {group.controller} refuses: {error.remark}"
                raise CommandFailed(text) from error
        ids = [replica.broker_id for replica in chosen]
        shown = [row for row in _document(group)["replicas"] if row["broker_id"] in ids]
        return group.controller, shown

    controller, rows = session.ask(work)
    document = {
        "broker_name": name,
        "controller": controller,
        "is_done": session.is_done,
        "replicas": rows,
    }
    return View(
        document,
        Fields.of("broker=broker_name controller is_done", document),
        Table("#id=broker_id address alive=is_alive in_sync=is_in_sync #log_end", rows),
    )


COMMANDS = {"elect": elect, "forget": forget}
