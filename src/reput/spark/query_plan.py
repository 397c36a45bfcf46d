"""Plans of Spark's queries: their needs of reads, and the same queries over reads of only those.

Spark passes a Python source neither the columns nor, reliably, the predicates of a query. But its
optimized plan shows both: a query is equal to its optimized plan whatever rows its tables have, so
that columns which that plan never reads may be null, and rows which it drops at once may be absent.

Only a plan of known form is used. A read that occurs in the optimized plan otherwise than in the
query, as after caching or in a common table expression used twice, is left as it is.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StructType,
    TimestampType,
)

from reput.spark import predicates
from reput.spark.filters import Constraint
from reput.spark.predicates import Call, ColumnName, Literals, Micros, Tree

_SOURCE = "rocketmq"
_PASSING = ("Filter", "Sort", "LocalLimit", "GlobalLimit")
"""Nodes that read columns, and pass the columns of their only child on."""
_COMPUTING = ("Project", "Aggregate")
"""Nodes that pass nothing on but what they compute."""
_FUNCTIONS = {
    "And": "and_kleene",
    "Or": "or_kleene",
    "EqualTo": "equal",
    "EqualNullSafe": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "In": "is_in",
    "IsNotNull": "is_valid",
}
"""Spark's predicates as functions of Arrow; null-safe comparisons only with constants."""
_INTEGERS = ("IntegerType", "LongType", "ShortType", "ByteType")
ROW_COUNT = "row_count"
"""Name of the column with the number of rows of counted ones."""

_COST: dict[DataType, int] = {IntegerType(): 0, LongType(): 1, TimestampType(): 2}
"""Types of columns that are cheap to read, in order of their cost."""

Ids = tuple[int, ...]
"""Ids of the columns of a read, which are unique in a session."""


class Read:
    """A read of ``format("rocketmq")`` in a plan."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.attributes = {column.name(): column for column in _items(node.output())}
        self.ids: Ids = tuple(_id(column) for column in self.attributes.values())

    @cached_property
    def options(self) -> dict[str, str]:
        """The options, as texts."""
        texts = self.node.options().asCaseSensitiveMap()
        return {str(name): str(texts[name]) for name in texts}

    @cached_property
    def schema(self) -> StructType:
        """The columns."""
        return StructType.fromJson(json.loads(self.node.schema().json()))

    @property
    def cheapest(self) -> str:
        """Column to read if a query needs only the number of rows: the cheapest type."""
        cost = {name: _COST.get(self.schema[name].dataType, len(_COST)) for name in self.attributes}
        return str(min(cost, key=cost.__getitem__))

    def names(self, ids: "frozenset[int] | None") -> list[str]:
        """Return the names of some columns; None for all."""
        pairs = zip(self.attributes, self.ids, strict=True)
        return [name for name, i in pairs if ids is None or i in ids]


@dataclass(frozen=True)
class Need:
    """The needed part of a read."""

    columns: tuple[str, ...]
    """Names of columns, in the order of the read."""
    constraint: Constraint = field(default_factory=Constraint)
    """A condition that the query sets for all rows."""
    counted_by: tuple[str, ...] | None = None
    """Columns by which the query counts rows, if it needs no more than these counts; None if it
    needs the rows."""


Reader = Callable[[Read, Need], DataFrame]
"""Returns a frame with the needed columns and, for counts, one more: the number of rows."""


def over_needed(frame: DataFrame, reader: Reader) -> DataFrame | None:
    """Return the query of a frame over reads of only its needs.

    Args:
        frame: A query of a session other than Spark Connect's.
        reader: Reads the needed part.

    Returns:
        None if the query has no read, or is not understood.

    Raises:
        ReputError: As ``reader``.
    """
    execution = frame._jdf.queryExecution()
    query = _Query(execution.analyzed())
    if not query.reads:
        return None
    needs = _Needs(query, execution.optimizedPlan())
    rewriting = _Rewriting(frame, needs, reader)
    plan = rewriting.rewritten(query.plan)
    if plan is query.plan:
        return None
    needed = _frame_of(frame.sparkSession, plan)
    return needed if needed.schema == frame.schema else None


class _Query:
    """The reads of an analyzed plan."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.reads: dict[Ids, Read] = {}
        self.counts: Counter[Ids] = Counter()
        for node in _nodes(plan):
            read = _read_of(node)
            if read is not None:
                self.reads[read.ids] = read
                self.counts[read.ids] += 1


def _read_of(node: Any) -> Read | None:
    """Return the read of a node of an analyzed plan; None if the node is no read."""
    if _kind(node) != "DataSourceV2Relation":
        return None
    table = node.table()
    is_ours = _kind(table) == "PythonTable" and table.name() == _SOURCE
    return Read(node) if is_ours else None


# Needs --------------------------------------------------------------------------------------


@dataclass
class _Filter:
    """The conditions that the optimized plan sets for a read right above it."""

    constraint: Constraint = field(default_factory=Constraint)
    is_whole: bool = True
    """True if these are all conditions of the plan."""


class _Needs:
    """The needs of an optimized plan, for each read of its query."""

    def __init__(self, query: _Query, plan: Any) -> None:
        self.query = query
        self.filters: dict[Ids, _Filter] = {}
        self._columns: dict[Ids, frozenset[int] | None] = {}
        self._counts: Counter[Ids] = Counter()
        self._is_known = True
        self._visit(plan, None, None)

    def of(self, read: Read) -> Need | None:
        """Return the needs of a read; None if they are not known."""
        if not self._is_known or self._counts[read.ids] != self.query.counts[read.ids]:
            return None
        # Without columns, PySpark 4.0 and 4.1 lose the rows.
        columns = read.names(self._columns[read.ids]) or [read.cheapest]
        return Need(tuple(columns), self.filter_of(read).constraint)

    def filter_of(self, read: Read) -> _Filter:
        """Return the conditions on a read; none if it occurs several times."""
        if self._counts[read.ids] == 1:
            return self.filters[read.ids]
        return _Filter(is_whole=False)

    def _visit(self, node: Any, wanted: frozenset[int] | None, condition: Any) -> None:
        """Note the needs of a node.

        Args:
            node: The node.
            wanted: Ids of the columns that the nodes above read; None for all.
            condition: The condition of a filter that is the parent.
        """
        kind = _kind(node)
        if kind in ("DataSourceV2ScanRelation", "DataSourceV2Relation"):
            self._note(
                node if kind == "DataSourceV2Relation" else node.relation(), wanted, condition
            )
            return
        for subquery in _items(node.subqueries()):
            self._visit(subquery, None, None)
        if kind in _COMPUTING:
            wanted = _references(node)
        elif kind in _PASSING:
            wanted = None if wanted is None else wanted | _references(node)
        else:
            wanted = None
        condition = node.condition() if kind == "Filter" else None
        for child in _items(node.children()):
            self._visit(child, wanted, condition)

    def _note(self, relation: Any, wanted: frozenset[int] | None, condition: Any) -> None:
        read = _read_of(relation)
        if read is None:
            return
        if read.ids not in self.query.reads:
            self._is_known = False  # a copy, but of which read?
            return
        self._counts[read.ids] += 1
        before = self._columns.get(read.ids, frozenset())
        self._columns[read.ids] = None if wanted is None or before is None else before | wanted
        self.filters[read.ids] = _filter(read, condition)


def _filter(read: Read, condition: Any) -> _Filter:
    if condition is None:
        return _Filter()
    from reput.spark import options as option_texts

    names = dict(zip(read.ids, read.attributes, strict=True))
    options = option_texts.parse(read.options)
    if options.view != "messages":
        return _Filter(is_whole=False)
    return _Filter(*predicates.constraint_of(_tree(condition, names), options.replaced_columns))


def _tree(expression: Any, names: dict[int, str]) -> Tree:
    """Return a predicate as a tree. Unknown parts are calls of unknown functions."""
    kind = _kind(expression)
    if kind == "AttributeReference":
        name = names.get(_id(expression))
        return Call("", ()) if name is None else ColumnName(name)
    if kind == "Literal":
        return Literals((_constant(expression.value(), expression.dataType()),))
    if kind not in _FUNCTIONS:
        return Call("", ())
    parts = [_tree(part, names) for part in _items(expression.children())]
    if kind == "EqualNullSafe" and any(part == Literals((None,)) for part in parts):
        return Call("", ())
    if kind == "In":
        column, *members = parts
        if not all(isinstance(member, Literals) for member in members):
            return Call("", ())
        values = tuple(value for member in members for value in member.values)  # type: ignore[union-attr]
        parts = [column, Literals(values)]
    return Call(_FUNCTIONS[kind], tuple(parts))


def _constant(value: Any, data_type: Any) -> str | int | Micros | None:
    """Return a constant of Spark as it is in trees."""
    name = str(data_type.toString())
    if value is None:
        return None
    if name == "StringType":
        return str(value.toString())
    if name == "TimestampType":
        return Micros(int(value))
    return int(value) if name in _INTEGERS else None


# The same query over other reads ------------------------------------------------------------


class _Rewriting:
    """Replaces reads in a plan."""

    def __init__(self, frame: DataFrame, needs: _Needs, reader: Reader) -> None:
        self._session = frame.sparkSession
        self._jvm: Any = self._session._jvm
        self._needs = needs
        self._reader = reader
        self._made: dict[Ids, Any] = {}

    def rewritten(self, node: Any) -> Any:
        """Return a node with other reads; the same one if it has no reads to replace."""
        read = _read_of(node)
        if read is not None:
            return self._replaced(read)
        counted = self._counted(node) if _kind(node) == "Aggregate" else None
        if counted is not None:
            return counted
        children = _items(node.children())
        changed = [self.rewritten(child) for child in children]
        if all(new is old for new, old in zip(changed, children, strict=True)):
            return node
        return node.withNewChildren(self._seq(changed))

    def _replaced(self, read: Read) -> Any:
        if read.ids not in self._made:
            need = self._needs.of(read)
            self._made[read.ids] = read.node if need is None else self._rows(read, need)
        return self._made[read.ids]

    def _rows(self, read: Read, need: Need) -> Any:
        """Return the plan of needed rows, with the columns of the read; the others are null."""
        plan = self._plan(read, need)
        missing = [name for name in read.attributes if name not in need.columns]
        if not missing:
            return plan
        literal = self._jvm.org.apache.spark.sql.catalyst.expressions.Literal
        columns = [
            column
            if name in need.columns
            else self._alias(column, literal(None, column.dataType()))
            for name, column in read.attributes.items()
        ]
        return self._project(columns, plan)

    def _alias(self, column: Any, value: Any) -> Any:
        """Return an expression with the name and id of a column."""
        alias = self._jvm.org.apache.spark.sql.catalyst.expressions.Alias
        none, nothing = self._jvm.scala.Option.empty(), self._seq([])
        return alias(value, column.name(), column.exprId(), column.qualifier(), none, nothing)

    def _project(self, columns: list[Any], plan: Any) -> Any:
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        return logical.Project(self._seq(columns), plan)

    def _plan(self, read: Read, need: Need) -> Any:
        """Return the plan of a frame, whose columns have the ids of the read's."""
        plan = self._reader(read, need)._jdf.queryExecution().analyzed()
        own = _items(plan.output())
        names = need.columns if need.counted_by is None else need.counted_by
        columns = [read.attributes[name] for name in names]
        if _kind(plan) != "LogicalRDD":
            return _copy(plan, output=self._seq([*columns, *own[len(columns) :]]))
        pairs = zip(columns, own, strict=True)
        return self._project([self._alias(column, value) for column, value in pairs], plan)

    def _counted(self, aggregate: Any) -> Any | None:
        """Return an aggregation that only counts rows over counted rows; None for others."""
        node = aggregate.child()
        has_filter = False
        while (kind := _kind(node)) in ("Filter", "Project", "SubqueryAlias", "View"):
            is_plain = kind != "Project" or all(
                _kind(column) == "AttributeReference" for column in _items(node.projectList())
            )
            if not is_plain:
                return None
            has_filter = has_filter or kind == "Filter"
            node = node.child()
        read = _read_of(node)
        need = None if read is None else self._needs.of(read)
        if read is None or need is None:
            return None
        condition = self._needs.filter_of(read)
        if has_filter and not condition.is_whole:
            return None
        keys = self._keys(read, aggregate)
        results = _items(aggregate.aggregateExpressions())
        are_counts = [_is_count(result, read) for result in results]
        if keys is None or None in are_counts or True not in are_counts:
            return None
        rows = self._plan(read, Need(keys, condition.constraint, keys))
        total = self._total(rows)
        return _copy(
            aggregate,
            aggregateExpressions=self._seq(
                [
                    result.withNewChildren(self._seq([total])) if is_count else result
                    for result, is_count in zip(results, are_counts, strict=True)
                ]
            ),
            child=rows,
        )

    def _keys(self, read: Read, aggregate: Any) -> tuple[str, ...] | None:
        """Return the names of the columns that an aggregation groups by, if it does only that."""
        keys = _items(aggregate.groupingExpressions())
        names = dict(zip(read.ids, read.attributes, strict=True))
        if not all(_kind(key) == "AttributeReference" and _id(key) in names for key in keys):
            return None
        chosen = dict.fromkeys(names[_id(key)] for key in keys)
        types = [read.schema[name].dataType for name in chosen]
        return None if any(isinstance(kind, ArrayType | MapType) for kind in types) else (*chosen,)

    def _total(self, rows: Any) -> Any:
        """Return the expression of the number of rows of counted ones."""
        total = F.coalesce(F.sum(ROW_COUNT), F.lit(0).cast("long"))
        totals = _frame_of(self._session, rows).agg(total.alias(ROW_COUNT))
        (result,) = _items(totals._jdf.queryExecution().analyzed().aggregateExpressions())
        return result.child()

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))


def _is_count(result: Any, read: Read) -> bool | None:
    """Return whether a result of an aggregation is the number of rows; None if it is neither.

    False for a column that it groups by.
    """
    value = result.child() if _kind(result) == "Alias" else result
    if _kind(value) == "AttributeReference":
        return False if _id(value) in read.ids else None
    if _kind(value) != "AggregateExpression" or value.isDistinct() or value.filter().isDefined():
        return None
    function = value.aggregateFunction()
    arguments = _items(function.children())
    is_constant = [_kind(part) == "Literal" and part.value() is not None for part in arguments]
    is_plain = _kind(function) == "Count" and len(arguments) == 1 and all(is_constant)
    return True if is_plain and _kind(result) == "Alias" else None


# Objects of the JVM -------------------------------------------------------------------------


def _frame_of(session: SparkSession, plan: Any) -> DataFrame:
    jvm: Any = session._jvm
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(rows, session)


def _kind(node: Any) -> str:
    """Return the name of a class."""
    return str(node.getClass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _references(node: Any) -> frozenset[int]:
    return frozenset(map(_id, _items(node.references().toSeq())))


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan and of the subqueries in it."""
    yield plan
    for part in (*_items(plan.children()), *_items(plan.subqueries())):
        yield from _nodes(part)


def _copy(node: Any, **values: Any) -> Any:
    """Return a copy of a case class with other values of some fields."""
    names = [node.productElementName(i) for i in range(node.productArity())]
    assert values.keys() <= {*names}, (names, values.keys())
    return node.copy(
        *(
            values[name] if name in values else node.productElement(i)
            for i, name in enumerate(names)
        )
    )
