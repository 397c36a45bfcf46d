"""One read of stores, an archive or brokers: its options, its columns, and its batches."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from reput.arrow import expressions
from reput.arrow.task_threads import in_order
from reput.cores import usable_cores
from reput.errors import InvalidOption, one_of
from reput.spark import options as option_texts, predicates
from reput.spark.archive import files as archive_files
from reput.spark.filters import Constraint
from reput.spark.scan import fields_of, scan_of
from reput.spark.store_opening import store_paths
from reput.store.files.files import open_folder

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
OnTask = Callable[[int, int], None]

TASK_BYTES = 32 * 1024 * 1024
"""Default of ``maxBytesPerPartition``: tasks of threads are smaller than those of Spark."""
THREADS_MAX = 8
"""Default number of threads on a machine with more cores."""
_SERVERS = re.compile(r"(http://\S+|[^\s/;:]+:\d+|\[[0-9a-fA-F:.]+\]:\d+)(;\S+)*")


@dataclass(frozen=True)
class Predicate:
    """A condition on rows: a part that skips files and queues, and a rest that is evaluated."""

    constraint: Constraint = field(default_factory=Constraint)
    rest: pc.Expression | None = None
    names: tuple[str, ...] = ()
    """Columns of the remaining filter."""


class Read:
    """A read that is not planned yet.

    Args:
        source: A store folder or several, an archive, or name servers; None: options have it.
        options: Options of ``format("rocketmq")``.

    Raises:
        InvalidOption: An option is not allowed.
        StoreUnavailable: There is no such folder.
    """

    def __init__(self, source: Source, options: Mapping[str, object]) -> None:
        texts = {**_located(source), **option_texts.texts_of_values(options)}
        self.options = option_texts.parse(texts)
        option_texts.check_batch(self.options)
        if "maxbytesperpartition" not in map(str.lower, texts):
            self.options = replace(self.options, max_bytes_per_partition=TASK_BYTES)
        self.fields = fields_of(self.options)
        self.columns = list(self.options.columns or self.fields)
        self.check_names("columns", self.columns)
        if self.options.live is None:
            for path in store_paths(self.options):
                open_folder(path)

    def check_names(self, option: str, names: Sequence[str]) -> None:
        """Raise ``InvalidOption`` for a name that no column has."""
        for name in names:
            if name not in self.fields:
                raise InvalidOption(option, name, one_of(name, self.fields))

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of columns, by default of all selected ones."""
        names = self.columns if columns is None else columns
        return pa.schema([(name, self.fields[name]) for name in names])

    def predicate(self, given: object) -> Predicate:
        """Return a filter of pyarrow as a condition. Raises ``InvalidOption``."""
        if given is None:
            return Predicate()
        expression = expressions.expression_of(given)
        tree = expressions.tree_of(expression)
        names = sorted(predicates.names_of(tree))
        self.check_names("filter", names)
        constraint, is_whole = self.constraint(tree)
        return Predicate(constraint, *((None, ()) if is_whole else (expression, tuple(names))))

    def constraint(self, tree: predicates.Tree) -> tuple[Constraint, bool]:
        """Return a constraint that a tree implies, and whether the two are equivalent."""
        if self.options.view != "messages":
            return Constraint(), False
        return predicates.constraint_of(tree, self.options.replaced_columns)

    def batches(
        self,
        columns: Sequence[str],
        predicate: Predicate,
        threads: int | None = None,
        on_task: OnTask | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Plan the read, and return its batches, which threads read once the first is taken.

        Raises:
            InvalidOption: Topics, offsets or ``threads`` do not fit.
            StoreUnavailable: A path is not a store, or is in use.
            DataLoss: Messages in the options are deleted, unless ``failOnDataLoss`` is false.
            ReadFailed: A server does not reply, or refuses.
        """
        if threads is not None and threads < 1:
            raise InvalidOption("threads", threads, "a number from 1")
        needed = [*columns, *(name for name in predicate.names if name not in columns)]
        # Rows need a column.
        scan = scan_of(self.options, needed or ["broker"], predicate.constraint)
        tasks = scan.tasks()
        count = threads or min(usable_cores(), THREADS_MAX)
        batches = in_order(
            tasks, scan.read, count if self._is_thread_safe() else 1, on_task=on_task
        )
        return _chosen(batches, list(columns), predicate.rest)

    def _is_thread_safe(self) -> bool:
        """Return whether several threads may read tasks; Parquet files and pulls need one."""
        return self.options.live is None and not any(
            archive_files.is_archive(path) for path in store_paths(self.options)
        )


def _chosen(
    batches: Iterator[pa.RecordBatch], columns: list[str], rest: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        # Batches have such a filter, too, but in pyarrow 18 it fails if no row is left.
        chosen = (
            [batch] if rest is None else pa.Table.from_batches([batch]).filter(rest).to_batches()
        )
        for part in chosen:
            if part.num_rows:
                yield part if part.schema.names == columns else part.select(columns)


# Options -----------------------------------------------------------------------------------


def is_servers(source: str) -> bool:
    """Return whether a source is the addresses of name servers, not a folder."""
    return _SERVERS.fullmatch(source) is not None and not Path(source).exists()


def _located(source: Source) -> dict[str, str]:
    """Return the option of a source."""
    if source is None:
        return {}
    if isinstance(source, str):
        return {"nameServer" if is_servers(source) else "path": source}
    if isinstance(source, os.PathLike):
        text = os.fspath(source)
        return {"path": text} if "," not in text else {"paths": json.dumps([text])}
    return {"paths": json.dumps([os.fspath(path) for path in source])}
