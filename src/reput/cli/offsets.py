"""``reput offset``: consumer offsets of groups; show, reset and clone them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.connecting import CommandFailed, check_group, choose_queues, queue_text
from reput.cli.options import (
    CLUSTER,
    GroupArgument,
    QueuesOption,
    Session,
    TopicArgument,
    command,
)
from reput.cli.printing import Computed, Document, Table, View
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from reput.client.admin import Admin
    from reput.format.bodies import MessageQueue


# --- show ---------------------------------------------------------------------------------------


@command(*CLUSTER)
def show(session: Session, group: GroupArgument, topic: TopicArgument) -> View:
    """Show the consumer offsets of a group in all queues of a topic.

    Without an offset, a broker reports 0 for a queue that still has its first message.
    """
    queues = session.ask(lambda admin: _describe(admin, group, topic))
    columns = (
        "broker=broker_name #queue=queue_id #min=min_offset #max=max_offset #consumer_offset #lag"
    )
    return View({"group": group, "topic": topic, "queues": queues}, Table(columns, queues))


async def _describe(admin: "Admin", group: str, topic: str) -> list[Document]:
    documents = []
    queues = await _queues(admin, topic)
    await check_group(admin, group)
    for queue in queues:
        consumer_offset = await admin.consumer_offset(group, queue)
        end = await admin.max_offset(queue)
        documents.append(
            {
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "min_offset": await admin.min_offset(queue),
                "max_offset": end,
                "consumer_offset": consumer_offset,
                "lag": None if consumer_offset is None else end - consumer_offset,
            }
        )
    return documents


async def _queues(admin: "Admin", topic: str) -> "list[MessageQueue]":
    return sorted((await admin.topic_route(topic)).subscribe_queues)


CreateOption = Annotated[
    bool, typer.Option("--create", help="Also if no broker knows the group to change yet.")
]
_CREATE_HINT = "; --create sets the offsets of a new group"


# --- reset --------------------------------------------------------------------------------------


@dataclass
class _Move:
    """A change of a consumer offset."""

    queue: "MessageQueue"
    before: int | None
    wanted: int
    after: int | None = None

    def document(self) -> Document:
        """Return the JSON document."""
        return {
            "broker_name": self.queue.broker_name,
            "queue_id": self.queue.queue_id,
            "before": self.before,
            "wanted": self.wanted,
            "after": self.after,
        }


@command("yes", *CLUSTER, "utc")
def reset(
    session: Session,
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="earliest, latest, or a queue offset."),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first message stored then or later.")
    ] = None,
    queue: QueuesOption = None,
    create: CreateOption = False,
) -> View:
    """Move a group to other messages of a topic, given by --to or --time.

    Without --yes it shows the present and the new consumer offset of each queue. With --yes it
    moves the group, and shows the offsets that brokers report afterwards.

    A group with members is moved through them, in all queues at once: by time, earliest or latest.
    To move it to a number, or in some queues only, stop its members first.
    """
    if (to is None) == (time is None):
        raise typer.BadParameter("give one of --to and --time")
    if to not in (None, "earliest", "latest") and not (to.isascii() and to.isdigit()):
        raise InvalidOption("--to", to, "earliest, latest, or a queue offset; --time for a time")
    timestamp_ms = session.time_ms("--time", time)

    async def work(admin: "Admin") -> tuple[list[_Move], int]:
        chosen = choose_queues("--queue", await _queues(admin, topic), queue)
        if not create:
            await check_group(admin, group, hint=_CREATE_HINT)
        connection = await admin.consumer_connection(group)
        member_count = len(connection.connection_set) if connection else 0
        is_for_members = queue is None and (to is None or not to.isdigit())
        if member_count and not is_for_members:
            allowed = (
                f"earliest, latest or --time, for all queues: the group has {member_count} "
                "members, which would overwrite it (stop them)"
            )
            raise InvalidOption("--to", to, allowed)
        moves = []
        for target in chosen:
            wanted = await _wanted(admin, target, to, timestamp_ms)
            if timestamp_ms is not None and not member_count:
                wanted = await _end_if_later(admin, target, timestamp_ms, wanted)
            moves.append(_Move(target, await admin.consumer_offset(group, target), wanted))
        if session.is_done:
            await _move(admin, group, topic, moves, to, timestamp_ms, has_members=member_count > 0)
        return moves, member_count

    moves, member_count = session.ask(work)
    document = {"group": group, "topic": topic, "member_count": member_count}
    return _view(session, document, moves)


async def _wanted(
    admin: "Admin", queue: "MessageQueue", to: str | None, timestamp_ms: int | None
) -> int:
    """Return the new consumer offset of a queue; a number is clamped to the queue's offsets."""
    if timestamp_ms is not None:
        return await admin.search_offset(queue, timestamp_ms)
    first, end = await admin.min_offset(queue), await admin.max_offset(queue)
    if to == "earliest":
        return first
    if to == "latest":
        return end
    assert to is not None
    return min(max(int(to), first), end)


async def _end_if_later(
    admin: "Admin", queue: "MessageQueue", timestamp_ms: int, queue_offset: int
) -> int:
    """Return the end of a queue for a time later than all messages, for which 4.x finds the last.

    For any other time, return ``queue_offset``.
    """
    status = (await admin.topic_status(queue.topic)).get(queue)
    is_later = status is not None and timestamp_ms > status.last_update_timestamp
    return await admin.max_offset(queue) if is_later else queue_offset


async def _move(
    admin: "Admin",
    group: str,
    topic: str,
    moves: list[_Move],
    to: str | None,
    timestamp_ms: int | None,
    *,
    has_members: bool,
) -> None:
    """Move a group, and record the resulting offset of each queue."""
    if has_members:
        if timestamp_ms is None:
            timestamp_ms = 0 if to == "earliest" else -1
        reported = await admin.reset_offsets(group, topic, timestamp_ms)
        for move in moves:
            move.after = reported.get(move.queue)
        return
    for move in moves:
        await admin.update_consumer_offset(group, move.queue, move.wanted)
        move.after = await admin.consumer_offset(group, move.queue)


def _view(session: Session, document: Document, moves: list[_Move]) -> View:
    """Return the view of moves, with a failure if an offset is not the wanted one."""
    columns = "broker #queue #is_at=before #wanted #change"
    if session.is_done:
        columns = "broker #queue #was_at=before #wanted #change #is_at=after"
    computed: Computed = {
        "broker": lambda move: move.queue.broker_name,
        "queue": lambda move: move.queue.queue_id,
        "change": lambda move: None if move.before is None else f"{move.wanted - move.before:+d}",
    }
    failure = None
    wrong = [queue_text(move.queue) for move in moves if move.after != move.wanted]
    if session.is_done and wrong:
        failure = CommandFailed(f"the group is not at the wanted offset in {' '.join(wrong)}")
    queues = [move.document() for move in moves]
    return View(
        {"is_done": session.is_done, **document, "queues": queues},
        Table(columns, moves, computed=computed),
        failure=failure,
    )


# --- clone --------------------------------------------------------------------------------------


@command("yes", *CLUSTER)
def clone(
    session: Session,
    from_group: Annotated[
        str, typer.Argument(metavar="FROM_GROUP", help="The group to copy offsets from.")
    ],
    to_group: Annotated[str, typer.Argument(metavar="TO_GROUP", help="The group to change.")],
    topic: TopicArgument,
    create: CreateOption = False,
) -> View:
    """Copy the consumer offsets of a group to another, in all queues of a topic.

    Without --yes it only shows the change. The members of the changed group must be stopped: they
    would overwrite its offsets.
    """

    async def work(admin: "Admin") -> list[_Move]:
        moves = []
        queues = await _queues(admin, topic)
        await check_group(admin, from_group)
        if not create:
            await check_group(admin, to_group, hint=_CREATE_HINT)
        for queue in queues:
            wanted = await admin.consumer_offset(from_group, queue)
            if wanted is not None:
                moves.append(_Move(queue, await admin.consumer_offset(to_group, queue), wanted))
        if not moves:
            allowed = f"a group that has offsets in topic {topic}"
            raise InvalidOption("FROM_GROUP", from_group, allowed)
        connection = await admin.consumer_connection(to_group)
        if connection is not None:
            allowed = f"a group without members; stop its {len(connection.connection_set)}"
            raise InvalidOption("TO_GROUP", to_group, allowed)
        if session.is_done:
            await admin.clone_offsets(from_group, to_group, topic)
            for move in moves:
                move.after = await admin.consumer_offset(to_group, move.queue)
        return moves

    moves = session.ask(work)
    document = {"from_group": from_group, "to_group": to_group, "topic": topic}
    return _view(session, document, moves)


COMMANDS = {"show": show, "reset": reset, "clone": clone}
