"""``reput export``: messages of a store, an archive or brokers in a file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli.options import (
    CREDENTIALS,
    TLS,
    BeginOption,
    LiveOption,
    Session,
    command,
    parse_pairs,
)
from reput.cli.printing import Fields, View


@command(*TLS, *CREDENTIALS, "json", "utc")
def export(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A store folder or archive, a path or a URI; or name servers."
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            "--to", metavar="FILE", help="File to create: .parquet, .arrow, .jsonl or .csv."
        ),
    ],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; repeatable.")
    ] = None,
    tags: Annotated[
        str | None, typer.Option(metavar="TAGS", help="Only these tags: 'A || B'.")
    ] = None,
    begin: BeginOption = None,
    end: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Only messages stored before this time."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these columns, separated by ','.")
    ] = None,
    body: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="Bodies in JSON lines and CSV: auto (text if it is UTF-8, else base64), text or "
            "base64.",
        ),
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help='An option of format("rocketmq") of Spark; repeatable.'
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    live: LiveOption = False,
) -> View:
    """Write messages to a file: Parquet, Arrow, JSON lines or CSV.

    Needs the extra `arrow`, neither Spark nor Java. Brokers are read up to the messages
    that exist at the start. Messages are written as they are read: a topic may be larger than
    memory. The file appears when it is complete.
    """
    import reput.arrow
    from reput.arrow.reading import is_servers
    from reput.cli.progress import ProgressBar

    given: dict[str, Any] = {
        "topic": topic or None,
        "tags": tags,
        "startingTimestamp": session.time_ms("--from", begin),
        "endingTimestamp": session.time_ms("--until", end),
        "columns": columns,
        "allowLive": live or None,
        **(session.connection_options() if is_servers(source) else {}),
        **parse_pairs("--option", option),
    }
    with ProgressBar() as bar:
        exported = reput.arrow.export(
            source,
            to,
            body=body,
            force=force,
            on_task=lambda done, total: bar.update("export", done, total),
            **given,
        )
    document = {
        "source": source,
        "file": exported.file,
        "message_count": exported.message_count,
        "file_size": exported.file_size,
    }
    shown = Fields.of("source file messages=message_count size=file_size", document)
    return View(document, shown)


COMMANDS = {"export": export}
