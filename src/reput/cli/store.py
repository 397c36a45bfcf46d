"""``reput store``: the contents of a store folder, and a check of its integrity."""

import enum
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import message_view
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.message_view import Body
from reput.cli.options import BodyOption, LiveOption, Session, command
from reput.cli.printing import (
    Clock,
    Document,
    Fields,
    Table,
    View,
    parse_time,
    print_json_line,
    print_note,
    size_text,
)
from reput.errors import InvalidOption, NotInStore

if TYPE_CHECKING:
    from reput.format.message import StoredMessage
    from reput.store.reader import StoreReader

FolderArgument = Annotated[
    str, typer.Argument(metavar="DIR", help="Folder that contains commitlog/; a path or a URI.")
]


class Listing(enum.StrEnum):
    """Kinds of entries that ``ls`` lists."""

    LOG = "log"
    QUEUES = "queues"
    INDEX = "index"
    TOPICS = "topics"
    GROUPS = "groups"


def _open(folder: str, live: bool) -> "StoreReader":
    from reput.store.foreign import opening

    return opening.open_reader(folder, allow_live=live)


# --- info ---------------------------------------------------------------------------------------


@command("json", "utc")
def info(session: Session, folder: FolderArgument, live: LiveOption = False) -> View:
    """Summarize a store and its condition.

    Condition, sizes, first and last message, queues, index, checkpoint, data after the end of the
    log. Reads only the heads and tails of files, so it is quick on a store of any size.
    """
    from reput.store.foreign import opening
    from reput.store.verify import documents

    reader = _open(folder, live)
    document = {**documents.info(reader), **opening.info(reader)}
    return View(document, _info_fields(document, session.clock), *_uncommitted(document))


def _uncommitted(document: Document) -> list[Table]:
    """Return the table of messages that are not known to be committed; empty without DLedger."""
    if "dledger" not in document:
        return []
    columns = "#uncommitted=index topic #queue=queue_id #queue_offset #physical_offset id"
    return [Table(columns, document["dledger"]["uncommitted"], is_optional=True)]


def _info_fields(document: Document, clock: Clock) -> Fields:
    log, queues, index = document["log"], document["queues"], document["index"]
    fields = {
        "store": document["location"],
        "condition": _condition_text(document),
        "broker": document["broker_name"] or "-",
        "log": f"{log['file_count']} files of {size_text(log['file_size'])}, "
        f"physical offset {log['start']} to {log['end']}",
        "messages from": clock.text(log["first_store_timestamp"]),
        "to": clock.text(log["last_store_timestamp"]),
        "queues": f"{queues['queue_count']} of {queues['topic_count']} topics, "
        f"{queues['message_count']} messages",
        "index": f"{index['file_count']} files, {index['entry_count']} entries",
    }
    if index["start"] is not None:
        fields["index"] += f", physical offset {index['start']} to {index['end']}"
    if "dledger" in document:
        fields["DLedger"] = _ledger_text(document["dledger"])
        fields |= {
            f"problem {n}": text for n, text in enumerate(document["dledger"]["problems"], 1)
        }
    fields["checkpoint"] = _checkpoint_text(document, clock)
    fields["tables"] = ", ".join(
        f"{'unreadable' if count is None else count} {name.replace('_', ' ')}"
        for name, count in document["tables"].items()
    )
    for hole in log["missing"]:
        fields[f"missing {hole['file']}"] = f"{hole['length']} bytes"
    for name, text in (("torn", "torn tail of a crash"), ("stale", "cut off by a recovery")):
        if log[name]:
            hole = log[name]
            position = f"{hole['length']} bytes from physical offset {hole['physical_offset']}"
            fields["after the end"] = f"{position}: {text}"
    return Fields(fields)


def _ledger_text(state: Document) -> str:
    """Return what a member of a DLedger group has."""
    if state["last_index"] is None:
        return f"{state['member']}, no entries"
    text = (
        f"{state['member']}, entries {state['first_index']} to {state['last_index']} of term "
        f"{state['last_term']}"
    )
    if state["committed_index"] is not None:
        text += f", committed to {state['committed_index']}"
    if state["plain_end"] is not None:
        text += f"; plain before physical offset {state['plain_end']}"
    return text


def _condition_text(document: Document) -> str:
    from reput.store.reader import process_name

    condition = str(document["condition"])
    if condition == "running":
        return f"running ({process_name(document['lock_holder'])})"
    return "crashed, or copied while running (has abort)" if condition == "crashed" else condition


def _checkpoint_text(document: Document, clock: Clock) -> str:
    checkpoint = document["checkpoint"]
    if checkpoint is None:
        return document["checkpoint_problem"] or "none"
    return (
        f"log {clock.text(checkpoint['physical_timestamp'])}, "
        f"queues {clock.text(checkpoint['queue_timestamp'])}, "
        f"index {clock.text(checkpoint['index_timestamp'] or None)}"
    )


# --- ls -----------------------------------------------------------------------------------------


@command("json", "utc")
def ls(
    session: Session,
    folder: FolderArgument,
    what: Annotated[Listing, typer.Option(help="Kind of entries.")] = Listing.LOG,
    live: LiveOption = False,
) -> View:
    """List log files, queues, index files, topics or groups."""
    from reput.store.verify import documents

    listings = {
        Listing.LOG: documents.log_files,
        Listing.QUEUES: documents.queues,
        Listing.INDEX: documents.index_files,
        Listing.TOPICS: documents.topics,
        Listing.GROUPS: documents.groups,
    }
    listed = listings[what](_open(folder, live))
    return View({what.value: listed}, Table(_COLUMNS[what], listed))


_COLUMNS = {
    Listing.LOG: (
        "file=name #size #first=first_physical_offset #last=last_physical_offset "
        "@first_stored=first_store_timestamp @last_stored=last_store_timestamp "
        "#wasted=wasted_bytes"
    ),
    Listing.QUEUES: (
        "topic #queue=queue_id #min=min_offset #max=max_offset #messages=message_count "
        "@last_stored=last_store_timestamp #files=file_count family"
    ),
    Listing.INDEX: (
        "file=name #size #entries=entry_count #first=begin_physical_offset "
        "#last=end_physical_offset @first_stored=begin_timestamp @last_stored=end_timestamp "
        "problem"
    ),
    Listing.TOPICS: (
        "topic kind in_table #read=read_queue_count #write=write_queue_count #perm "
        "#queues=queue_count #messages=message_count @last_stored=last_store_timestamp"
    ),
    Listing.GROUPS: "group topic #queue=queue_id #offset=consumer_offset #max=max_offset #lag",
}
"""Columns of each listing; see ``printing``."""


# --- show ---------------------------------------------------------------------------------------


@command("json", "utc")
def show(
    session: Session,
    folder: FolderArgument,
    offset: Annotated[
        int | None, typer.Option(min=0, help="The message at this physical offset.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="TOPIC/ID/N", help="The message at offset N of a queue.")
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="By unique key or offset id; all copies."),
    ] = None,
    key: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="TOPIC KEY", help="All messages of a topic with a key."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The first message stored then or later; with --queue TOPIC/ID, of that queue.",
        ),
    ] = None,
    body: BodyOption = Body.AUTO,
    live: LiveOption = False,
) -> View:
    """Show messages in full.

    Selected by physical offset, queue offset, id, key or time: give one of these. Keys are looked
    up in the index, and checked on the messages found.
    """
    ways = (offset, queue if time is None else None, message_id, key, time)
    if sum(way is not None for way in ways) != 1:
        raise typer.BadParameter("give one of --offset, --queue, --id, --key and --time")
    reader = _open(folder, live)
    messages, unreadable = _find(reader, session.clock, offset, queue, message_id, key, time)
    for problem in unreadable:
        print_note(f"cannot be read, and may match too: {problem}")
    if not messages:
        raise NotInStore(f"no message of {folder} matches")
    shown = [message_view.document(message, body) for message in messages]
    return message_view.view(shown, unreadable=unreadable)


def _find(
    reader: "StoreReader",
    clock: Clock,
    offset: int | None,
    queue: str | None,
    message_id: str | None,
    key: tuple[str, str] | None,
    time: str | None,
) -> tuple[list["StoredMessage"], list[str]]:
    """Return the messages, and the problems of unreadable records that may match."""
    from reput.cli import selecting
    from reput.format import batch

    if offset is not None:
        return batch.unwrap_if_valid(reader.message_at(offset)), []
    if message_id is not None:
        return reader.messages_by_id(message_id), []
    if key is not None:
        hits = reader.messages_by_key(*key)
        return hits.messages, [str(problem) for problem in hits.unreadable]
    if queue is not None:
        return [_find_in_queue(reader, clock, queue, time)], []
    assert time is not None
    return [selecting.at_time(reader, parse_time("--time", time, clock))], []


def _find_in_queue(
    reader: "StoreReader", clock: Clock, queue: str, time: str | None
) -> "StoredMessage":
    from reput.cli import selecting

    topic, queue_id, queue_offset = selecting.parse_queue(queue)
    if (queue_offset is None) == (time is None):
        raise InvalidOption("--queue", queue, "TOPIC/ID/N, or TOPIC/ID together with --time")
    if queue_offset is None:
        timestamp_ms = parse_time("--time", time or "", clock)
        return selecting.in_queue_at_time(reader, topic, queue_id, timestamp_ms)
    return selecting.in_queue(reader, topic, queue_id, queue_offset)


# --- dump ---------------------------------------------------------------------------------------


@command("json", "utc")
def dump(
    session: Session,
    folder: FolderArgument,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; repeatable.")
    ] = None,
    tags: Annotated[
        str | None, typer.Option(metavar="TAGS", help="Only these tags: 'A || B'.")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Start: a physical offset or a time."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="End, exclusive: a physical offset or a time."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Maximum number of messages.")] = None,
    body: BodyOption = Body.AUTO,
    live: LiveOption = False,
) -> None:
    """Print messages in log order, one a line.

    Columns are separated by tabs; with --json each line is a JSON document. A PLACE of digits is a
    physical offset, anything else a time such as 2026-11-21T03:03. Damage is reported on stderr,
    and makes the exit code 1.
    """
    import itertools

    from reput.cli import selecting

    selection = selecting.Selection(
        _open(folder, live),
        selecting.parse_bounds(begin, end, session.clock),
        frozenset(topic or ()),
        frozenset(
            tag.strip() for tag in (tags or "").split(selecting.TAG_SEPARATOR) if tag.strip()
        ),
    )
    for message in itertools.islice(selection.messages(), limit):
        document = message_view.document(message, body)
        if session.as_json:
            print_json_line(document)
        else:
            position = f"{message.topic}/{message.queue_id}/{message.queue_offset}"
            print(
                message_view.line(document, session.clock, str(message.physical_offset), position)
            )
    for damage in selection.damage:
        print_note(f"skipped: {damage.error()}")
    if selection.damage:
        raise typer.Exit(EXIT_DAMAGE)


# --- verify -------------------------------------------------------------------------------------


@command("json")
def verify(
    session: Session,
    folder: FolderArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="List every file and every finding.")
    ] = False,
    live: LiveOption = False,
) -> View:
    """Check the integrity of a whole store.

    Reads every byte of the log, and compares queues, index and tables with it.

    Exit code 0: no damage, perhaps notes and warnings; 1: damage; 2: the store cannot be read.
    """
    from reput.cli.progress import ProgressBar
    from reput.store.foreign import verification
    from reput.store.verify import documents

    reader = _open(folder, live)
    with ProgressBar() as bar:
        report = verification.verify(reader, progress=bar.update)
    return _report_view(documents.report(report), everything)


def _report_view(document: Document, everything: bool) -> View:
    counts = Counter(file["verdict"] for file in document["files"])
    fields = Fields(
        {
            "store": document["location"],
            "condition": document["condition"],
            "log": f"physical offset {document['log_start']} to {document['log_end']}, "
            f"{document['record_count']} messages",
            "queues": f"{document['unit_count']} units "
            f"for {document['queued_count']} queued messages",
            "index": f"{document['entry_count']} entries",
            "files": ", ".join(f"{counts[name]} {name}" for name in _VERDICTS if counts[name]),
            "verdict": document["verdict"],
        }
    )
    files = [entry for entry in document["files"] if everything or entry["verdict"] != "ok"]
    files.sort(key=lambda file: -_VERDICTS.index(file["verdict"]))
    return View(
        document,
        fields,
        Table(
            "file=path #size #holds=count verdict why=text",
            files,
            is_optional=True,
        ),
        Table(
            "#hole_at=physical_offset #bytes=length file verdict=severity why=text",
            document["holes"],
            is_optional=True,
        ),
        Table(
            "finding=kind verdict=severity where=path what=text",
            document["findings"] if everything else [],
            is_optional=True,
        ),
        exit_code=EXIT_DAMAGE if document["is_damaged"] else 0,
    )


_VERDICTS = ("ok", "note", "warning", "damage")


COMMANDS = {"info": info, "ls": ls, "show": show, "dump": dump, "verify": verify}
