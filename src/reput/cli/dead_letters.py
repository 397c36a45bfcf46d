"""``reput dlq``: dead letters of consumer groups; show, export and resend them."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from reput.cli import messages
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.message_view import Body
from reput.cli.options import (
    CLUSTER,
    BodyOption,
    GroupArgument,
    LimitOption,
    Options,
    Session,
    command,
    option,
)
from reput.cli.printing import Computed, Document, Fields, Table, View
from reput.errors import InvalidOption, NotInStore, ReputError
from reput.format import names, properties as props

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reput.client.admin import Admin
    from reput.client.config import ClientConfig
    from reput.client.message import ReceivedMessage
    from reput.client.producer import Producer

_SELECTION: Options = {
    "id": option(
        list[str] | None, metavar="ID", help="Only this message, by any of its ids; repeatable."
    ),
    "begin": option(
        str | None, "--from", metavar="TIME", help="Only dead letters of this time or later."
    ),
    "end": option(str | None, "--to", metavar="TIME", help="Only dead letters before this time."),
    "limit": (LimitOption, None),
}


# --- list ---------------------------------------------------------------------------------------


@command(*CLUSTER, "utc")
def list_groups(session: Session) -> View:
    """List the groups that have dead letters, with their number."""
    groups = session.ask(_groups)
    columns = "group topic #messages=message_count @last_given_up=last_store_timestamp"
    return View({"groups": groups}, Table(columns, groups))


async def _groups(admin: "Admin") -> list[Document]:
    groups = []
    for topic in await admin.topics():
        if not names.is_dlq_topic(topic):
            continue
        queues = (await admin.topic_status(topic)).values()
        groups.append(
            {
                "group": topic.removeprefix(names.DLQ_PREFIX),
                "topic": topic,
                "message_count": sum(queue.max_offset - queue.min_offset for queue in queues),
                "last_store_timestamp": max(
                    (queue.last_update_timestamp for queue in queues), default=0
                )
                or None,
            }
        )
    return groups


# --- selection ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Selection:
    """The selected dead letters of a group."""

    group: str
    ids: frozenset[str]
    begin_ms: int | None
    end_ms: int | None
    limit: int | None

    @classmethod
    def of(
        cls,
        session: Session,
        group: str,
        *,
        id: list[str] | None,  # noqa: A002 - the option's name
        begin: str | None,
        end: str | None,
        limit: int | None,
    ) -> Self:
        """Return the selection of ``_SELECTION``."""
        begin_ms, end_ms = session.time_ms("--from", begin), session.time_ms("--to", end)
        return cls(group, frozenset(id or ()), begin_ms, end_ms, limit)

    def has(self, message: "ReceivedMessage") -> bool:
        """Return whether a dead letter is selected."""
        stored_ms = message.store_timestamp_ms
        if self.begin_ms is not None and stored_ms < self.begin_ms:
            return False
        if self.end_ms is not None and stored_ms >= self.end_ms:
            return False
        return not self.ids or not self.ids.isdisjoint(_ids(message))


def _ids(message: "ReceivedMessage") -> set[str]:
    """Return the ids of a dead letter: of its producer, and its first and present offset ids."""
    ids = {message.message_id, message.offset_message_id}
    if origin := message.stored.properties.get(props.ORIGIN_MESSAGE_ID):
        ids.add(origin)
    return ids


async def _dead_letters(
    client: "ClientConfig", selection: _Selection
) -> "AsyncIterator[ReceivedMessage]":
    """Yield the present dead letters, oldest first.

    Raises:
        NotInStore: A selected id is not the id of a dead letter of the group.
    """
    missing = set(selection.ids)
    count = 0
    async with messages.range_reader(client) as reader:
        queues = await reader.queues(names.dlq_topic(selection.group))
        async with contextlib.aclosing(messages.in_order(reader, queues)) as present:
            async for message in present:
                if not selection.has(message):
                    continue
                yield message
                missing -= _ids(message)
                count += 1
                if count == selection.limit or (selection.ids and not missing):
                    return
    if missing:
        ids = " ".join(sorted(missing))
        raise NotInStore(f"no dead letter of group {selection.group} has id {ids}")


def _document(message: "ReceivedMessage", body: Body) -> Document:
    """Return the document of a dead letter: a message with its original topic and id."""
    properties = message.stored.properties
    return {
        "origin_topic": properties.get(props.RETRY_TOPIC),
        "origin_message_id": properties.get(props.ORIGIN_MESSAGE_ID),
        **messages.message_document(message, body),
    }


# --- show and export ----------------------------------------------------------------------------


@command(*CLUSTER, "utc", selection=_SELECTION)
def show(
    session: Session,
    group: GroupArgument,
    selection: Document,
    body: BodyOption = Body.AUTO,
) -> None:
    """Print the dead letters of a group, oldest first, one message a line.

    Columns: time, queue and offset, original topic, number of retries, tags, keys, id, body; with
    --json one document a line.
    """
    selected = _Selection.of(session, group, **selection)

    async def work(client: "ClientConfig") -> None:
        async for message in _dead_letters(client, selected):
            document = _document(message, body)
            columns = document["origin_topic"] or "-", str(document["reconsume_times"])
            messages.print_line(session, message, document, *columns)

    session.run(work)


@command(*CLUSTER, "utc", selection=_SELECTION)
def export(
    session: Session,
    group: GroupArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to create; it must not exist.")
    ],
    selection: Document,
) -> View:
    """Write the dead letters of a group to a file: one JSON document a line, bodies in hex.

    The file is created when it is complete.
    """
    import json as codec

    from reput import small_file

    if file.exists():
        raise InvalidOption("FILE", str(file), "the name of a new file")
    selected = _Selection.of(session, group, **selection)

    async def work(client: "ClientConfig") -> list[str]:
        return [
            codec.dumps(_document(message, Body.HEX), ensure_ascii=False, separators=(",", ":"))
            + "\n"
            async for message in _dead_letters(client, selected)
        ]

    lines = session.run(work)
    small_file.replace_file(file, "".join(lines).encode())
    document = {"group": group, "file": str(file), "message_count": len(lines)}
    return View(document, Fields.of("group file messages=message_count", document))


# --- resend -------------------------------------------------------------------------------------


@dataclass
class _Resend:
    """A dead letter to send again, and the result."""

    message: "ReceivedMessage"
    to: str
    message_id: str | None = None
    problem: str | None = None


@command("yes", *CLUSTER, "utc", selection=_SELECTION)
def resend(
    session: Session,
    group: GroupArgument,
    selection: Document,
    to_origin: Annotated[
        bool,
        typer.Option(
            "--to-origin", help="Send to the original topic: all of its groups get them again."
        ),
    ] = False,
) -> View:
    """Send dead letters again, to the group that gave them up.

    A copy goes to the group's retry topic: only members of the group get it, with as many tries as
    a new message. The dead letter remains until the broker deletes its log file: sending it twice
    delivers it twice. Without --yes it shows the messages that would be sent.

    A message that the broker does not store makes the exit code 1; the others are still sent.
    """
    selected = _Selection.of(session, group, **selection)

    async def work(client: "ClientConfig") -> list[_Resend]:
        from reput.client.producer import Producer

        resends = []
        async for message in _dead_letters(client, selected):
            origin = message.stored.properties.get(props.RETRY_TOPIC)
            resend = _Resend(message, (origin or "") if to_origin else names.retry_topic(group))
            if not resend.to:
                resend.problem = f"the message has no original topic ({props.RETRY_TOPIC})"
            resends.append(resend)
        if session.is_done and resends:
            async with Producer(names.TOOLS_PRODUCER, client=client) as producer:
                for resend in resends:
                    if resend.problem is None:
                        await send(producer, resend)
        return resends

    async def send(producer: "Producer", resend: _Resend) -> None:
        from reput.client.dead_letters import copy, problem_of

        try:
            result = await producer.send(copy(resend.message, resend.to))
        except ReputError as error:
            resend.problem = str(error)
        else:
            resend.message_id = result.offset_message_id
            resend.problem = problem_of(result)

    resends = session.run(work)
    stored = "stored_as=message_id " if session.is_done else ""
    columns = f"@given_up id keys to {stored}problem"
    computed: Computed = {
        "given_up": lambda resend: resend.message.store_timestamp_ms,
        "id": lambda resend: resend.message.message_id,
        "keys": lambda resend: list(resend.message.keys),
        "to": lambda resend: resend.to or None,
    }
    documents = [
        {
            **_document(resend.message, Body.NONE),
            "to_topic": resend.to or None,
            "new_offset_id": resend.message_id,
            "problem": resend.problem,
        }
        for resend in resends
    ]
    is_failed = session.is_done and any(resend.problem for resend in resends)
    return View(
        {"is_done": session.is_done, "group": group, "messages": documents},
        Table(columns, resends, computed=computed),
        exit_code=EXIT_DAMAGE if is_failed else 0,
    )


COMMANDS = {"list": list_groups, "show": show, "resend": resend, "export": export}
