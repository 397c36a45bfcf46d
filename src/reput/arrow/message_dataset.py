"""A read as a dataset of pyarrow, from which engines take the columns and rows that they need."""

from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as pds

from reput.arrow import expressions
from reput.arrow.reading import Read
from reput.spark import predicates


class MessageDataset(pds.Dataset):  # type: ignore[misc]  # pyarrow ships no types
    """The rows of a read. Each scan plans again.

    It has no files that pyarrow could read by itself, so that only scans, and methods that scan,
    work: ``scanner``, ``to_batches``, ``to_table``, ``head``, ``take``, ``count_rows``.
    """

    def __init__(self, read: Read, threads: int | None) -> None:  # of no C++ object
        self._read = read
        self._threads = threads

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._read.schema()

    def scanner(
        self,
        columns: "list[str] | Mapping[str, Any] | None" = None,
        filter: Any = None,  # noqa: A002 - pyarrow's name
        **settings: Any,
    ) -> pds.Scanner:
        """Plan a scan of some columns, and of rows for which a filter holds.

        Args:
            columns: Names, or expressions by name; None: all.
            filter: As for ``reput.arrow.scan``.
            **settings: Settings of pyarrow for files, without effect.

        Raises:
            ReputError: As ``reput.arrow.scan``.
        """
        read = self._read
        if isinstance(columns, Mapping):
            trees = map(expressions.tree_of, columns.values())
            names = sorted(set().union(*map(predicates.names_of, trees)))
        else:
            names = list(read.columns if columns is None else columns)
        read.check_names("columns", names)
        batches = read.batches(names, read.predicate(filter), self._threads)
        reader = pa.RecordBatchReader.from_batches(read.schema(names), batches)
        computed = columns if isinstance(columns, Mapping) else None
        return pds.Scanner.from_batches(reader, columns=computed)

    def _no_files(self, *arguments: Any, **settings: Any) -> NoReturn:
        """Raise an error for methods that would need files of pyarrow."""
        raise NotImplementedError("a dataset of messages has scans only: use scanner or to_table")

    filter = get_fragments = _get_fragments = replace_schema = _no_files
    join = join_asof = sort_by = __reduce__ = _no_files

    @property
    def partition_expression(self) -> pa.compute.Expression:
        """A condition that all rows fulfil."""
        return pa.compute.scalar(True)
