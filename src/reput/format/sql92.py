r"""SQL92 filters: a condition on the properties of a message, compiled to a Python function.

    amount > 5 AND (region = 'eu' OR vip IS NOT NULL)

``compile_filter`` behaves as RocketMQ's filter jar, quirks included: match, no match, null, error,
or a refusal to compile. ``docs/formats/sql92.md`` describes the language;
``tests/interop/test_sql92.py`` compares this module with the jar.

Compiling has three steps. A lark grammar, token for token that of ``SelectorParser.jj``, calls
``_Builder``, whose methods check as Java's ``create...`` methods do and return nodes.
``_Writer`` generates a function from the nodes. Only numbers of the expression enter its source;
names and strings are globals, ``k0``, ``k1``... ``a > 5 AND b = 'x'`` becomes::

    def evaluate(get):
        v0 = get(k0)
        v1 = None if v0 is None else integer(v0) > 5
        v2 = v1
        if v2 is not False:
            v3 = get(k1)
            v4 = None if v3 is None else v3 == k2
            v2 = v4 if v2 else (False if v4 is False else None)
        return v2

Invariants:

* A text over the limits is refused before or during parsing, so that compiling any text takes
  milliseconds.
* A value is a string, a number, a Boolean or null. The type is known at compile time, since every
  property is a string; a comparison with a number converts the property.
* Operands are evaluated in Java's order and only if Java evaluates them: each may be an error.
* Compiling any text results in a Filter or a Sql92Error, evaluating in True, False, None or an
  EvaluationError.

Left out: Java's ``NowExpression``, which is unreachable by its grammar, and the types byte, short,
float and BigDecimal, which no literal has.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import copysign
from typing import Any, TypeGuard, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from reput.errors import excerpt
from reput.format import limits, properties as props
from reput.format.text_cache import TextCache
from reput.limits import Limit

NESTING_MAX = 80
"""Most levels of nesting; an AND or OR of many terms is one level. Each level may indent the
function once more, and Python reads 100 levels. Java's limit is the stack of its thread."""

COMPILED_COUNT_MAX = 1024
"""Capacity of the cache of compiled filters."""
COMPILED_LETTERS_MAX = 8 * limits.FILTER_BYTES.maximum
"""Total length of the cached texts in characters; a filter takes up to a hundred times as many
bytes."""
_READ_ONE_BY_ONE_MAX = 8
"""Number of property reads up to which each is looked up in the property string; above it, all
properties are decoded first."""


class Sql92Error(ValueError):
    """Invalid filter expression; the reason is Java's text, where Java has one."""

    def __init__(self, reason: str) -> None:
        super().__init__(excerpt(reason))
        self.reason = reason

    def copy(self) -> "Sql92Error":
        """Return an equal error without the traceback, which keeps what callers had."""
        return Sql92Error(self.reason)


class FilterTooLarge(Sql92Error):
    """Filter expression that exceeds a limit.

    Args:
        limit: The exceeded limit.
        value: The counted value; None if only the excess is known.
    """

    def __init__(self, limit: Limit, value: int | None = None) -> None:
        super().__init__(str(limit.exceeded(value)))
        self.limit = limit
        self.value = value

    def copy(self) -> "FilterTooLarge":
        """Return an equal error without the traceback."""
        return FilterTooLarge(self.limit, self.value)


class EvaluationError(ValueError):
    """Expression without a value for some properties: ``a > 5`` if a is ``many``."""


class Filter:
    """A compiled expression, made by ``compile_filter``. Threads and processes may share it.

    Attributes:
        expression: The text it was compiled from.
        ignored_tail: Text from the first token after the end of the expression, or "". Java
            ignores it, so that ``a + 1 > 2`` means ``a``; callers should report ``warning``.
    """

    __slots__ = ("_evaluate", "_has_many_reads", "expression", "ignored_tail")

    def __init__(self, expression: str, root: "_Node", ignored_tail: str) -> None:
        self.expression = expression
        self.ignored_tail = ignored_tail
        self._evaluate, read_count = _compile(root)
        self._has_many_reads = read_count > _READ_ONE_BY_ONE_MAX

    @property
    def warning(self) -> str:
        """Warning for the author of the expression; "" without an ignored tail."""
        if not self.ignored_tail:
            return ""
        meant = self.expression.removesuffix(self.ignored_tail).rstrip()
        return (
            f"SQL92 expression {excerpt(self.expression)!r} means {excerpt(meant)!r}: RocketMQ "
            f"ignores what follows, {excerpt(self.ignored_tail)!r}"
        )

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message passes; null and errors count as False."""
        try:
            return self._evaluate(properties.get) is True
        except EvaluationError:
            return False

    def matches_text(self, text: str) -> bool:
        """Return whether a message with this property string passes, without decoding all of it."""
        get = props.parse(text).get if self._has_many_reads else props.getter(text)
        try:
            return self._evaluate(get) is True
        except EvaluationError:
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return the value of the expression, None for null.

        Raises:
            EvaluationError: For example, a property is compared with a number and is none.
        """
        return self._evaluate(properties.get)

    def __repr__(self) -> str:
        return f"Filter({self.expression!r})"

    def __reduce__(self) -> tuple[Callable[[str], "Filter"], tuple[str]]:
        return compile_filter, (self.expression,)


def compile_filter(expression: str) -> Filter:
    """Return the filter of a SQL92 expression.

    Raises:
        Sql92Error: RocketMQ does not accept the expression, or it is nested deeper than
            ``NESTING_MAX``.
        FilterTooLarge: It exceeds ``limits.FILTER_BYTES`` or ``limits.FILTER_NODES``.
    """
    result = _results(expression)
    if isinstance(result, Filter):
        return result
    raise result.copy()


def compile_in_steps(expression: str) -> Generator[None] | None:
    """Prepare ``compile_filter``, which takes no time afterwards; None if it takes none now.

    A long expression takes some 20 ms. The generator yields at least once a millisecond, but for
    its last step, half of the work, in which Python compiles the function.
    """
    return None if expression in _results else _keep_result(expression)


_Result = Filter | Sql92Error
"""Both are kept: a refusal takes as long as a compilation."""


def _keep_result(expression: str) -> Generator[None]:
    _results.keep(expression, (yield from _result_of(expression)))


def _result_of(expression: str) -> Generator[None, None, _Result]:
    try:
        _check_length(expression)
        root, ignored_tail = yield from _parse(expression)
        return Filter(expression, root, ignored_tail)
    except Sql92Error as error:
        return error.copy()


def _result_now(expression: str) -> _Result:
    steps = _result_of(expression)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


_results = TextCache(
    _result_now,
    count_max=COMPILED_COUNT_MAX,
    letters_max=COMPILED_LETTERS_MAX,
    letters_of=len,
)


def _check_length(expression: str) -> None:
    length = len(expression)
    if length <= limits.FILTER_BYTES.maximum:
        length = len(expression.encode("utf-8", "surrogatepass"))
    if length > limits.FILTER_BYTES.maximum:
        raise FilterTooLarge(limits.FILTER_BYTES, length)


# --- nodes -----------------------------------------------------------------
# str() is Java's toString(), which appears in Java's reasons.


@dataclass(slots=True, eq=False)
class _Node:
    operands: list["_Node"]
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        self.depth = 1
        for operand in self.operands:
            self.hold(operand)

    def hold(self, operand: "_Node") -> None:
        """Update the depth for an operand. Raises ``Sql92Error`` if it is too deep."""
        self.depth = max(self.depth, operand.depth + 1)
        if self.depth > NESTING_MAX:
            raise Sql92Error(f"the expression is nested deeper than {NESTING_MAX} levels")


@dataclass(slots=True, eq=False)
class _Property(_Node):
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class _Constant(_Node):
    """A literal, or a number with one or more minus signs."""

    value: str | int | float | bool | None
    type: str
    text: str
    minus_count: int = 0

    @property
    def is_literal(self) -> bool:
        return not self.minus_count

    def __str__(self) -> str:
        return "(- " * self.minus_count + self.text + ")" * self.minus_count


@dataclass(slots=True, eq=False)
class _Nothing(_Node):
    """Minus of a non-number: null, unless its operand is an error."""

    def __str__(self) -> str:
        return f"(- {self.operands[0]})"


class _Condition(_Node):
    """Node with the value true, false or null: a ``BooleanExpression`` in Java."""

    __slots__ = ()


class _Cast(_Condition):
    """Property used as a condition: false, since it is a string, or null."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(self.operands[0])


class _Not(_Condition):
    __slots__ = ()

    def __str__(self) -> str:
        return f"(NOT {self.operands[0]})"


class _Equal(_Condition):
    __slots__ = ()

    def __str__(self) -> str:
        return "({} == {})".format(*self.operands)


class _IsNull(_Condition):
    __slots__ = ()

    def __str__(self) -> str:
        return f"({self.operands[0]} == NULL)"


@dataclass(slots=True, eq=False)
class _Order(_Condition):
    operator: str

    def __str__(self) -> str:
        left, right = self.operands
        return f"({left} {self.operator} {right})"


@dataclass(slots=True, eq=False)
class _Logic(_Condition):
    """AND or OR of any number of operands; both are associative, errors and nulls included."""

    operator: str

    def __str__(self) -> str:
        return f"({f' {self.operator} '.join(map(str, self.operands))})"


@dataclass(slots=True, eq=False)
class _In(_Condition):
    values: list[str]
    is_negated: bool

    def __str__(self) -> str:
        operator = "NOT IN" if self.is_negated else "IN"
        return f"{self.operands[0]} {operator} ( {', '.join(self.values)} )"


@dataclass(slots=True, eq=False)
class _Search(_Condition):
    """CONTAINS, STARTSWITH or ENDSWITH."""

    operator: str
    text: str
    is_negated: bool

    def __str__(self) -> str:
        return f"({'NOT ' * self.is_negated}{self.operator} {self.operands[0]})"


AND, OR = "&&", "||"
STRING, INTEGER, LONG, DOUBLE, BOOLEAN = "String", "Integer", "Long", "Double", "Boolean"
_NUMBERS = (INTEGER, LONG, DOUBLE)


def _type(node: _Node) -> str:
    """Return the type of a node's value, if it is not null."""
    if isinstance(node, _Property):
        return STRING
    return node.type if isinstance(node, _Constant) else BOOLEAN


def _is_condition(node: _Node) -> bool:
    return isinstance(node, _Condition) or (isinstance(node, _Constant) and node.type == BOOLEAN)


# --- from text to nodes ----------------------------------------------------

_GRAMMAR = r"""
start: disjunction

?disjunction: conjunction
    | disjunction _OR conjunction -> any_of

?conjunction: equality
    | conjunction _AND equality -> all_of

?equality: comparison
    | equality "=" comparison -> equal
    | equality _UNEQUAL comparison -> not_equal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null

?comparison: unary
    | comparison ORDER unary -> order
    | comparison SEARCH STRING -> search
    | comparison _NOT SEARCH STRING -> not_search
    | comparison _BETWEEN unary _AND unary -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> is_in
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> is_not_in

?unary: primary
    | "+" unary
    | "-" unary -> minus
    | _NOT unary -> negation

?primary: "(" disjunction ")"
    | ID -> property_
    | STRING -> string
    | DECIMAL -> integer
    | FLOAT -> double
    | _TRUE -> true
    | _FALSE -> false
    | _NULL -> null

%declare _NOT _AND _OR _BETWEEN _IN _IS _TRUE _FALSE _NULL SEARCH

_UNEQUAL.1: "<>"
ORDER: />=|<=|>|</
ID: /[A-Za-z_$][A-Za-z0-9_$]*/
STRING: /'(?:''|[^'])*'/
FLOAT.1: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL: /0|[1-9][0-9]*[lL]?/
LINE_COMMENT.1: /--[^\n\r]*+(?:\r\n|\n|\r)/
BLOCK_COMMENT.1: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
BLANK: /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%ignore BLANK
"""

_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_OTHER_KEYWORDS = ("NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL")
_KEYWORDS = {
    **{word: f"_{word}" for word in _OTHER_KEYWORDS},
    **dict.fromkeys(_SEARCHES, "SEARCH"),
}


_MINUSES_COUNT = 16
"""Number of words that a minus directly after another counts as."""


_STEP_TOKENS = 64
"""Number of tokens that are parsed in a step, in less than a millisecond."""


def _parse(text: str) -> Generator[None, None, tuple[_Node, str]]:
    """Return the longest expression at the start of ``text``, and the rest from its first token.

    Yields after some tokens.

    The first token must be valid, since Java has read it; the text after it may be anything.
    """
    parser = _parser().parse_interactive(text)
    tail = None
    count = 0
    try:
        after_minus, last_type = -1, ""
        for number, token in enumerate(parser.iter_parse(), 1):
            if number % _STEP_TOKENS == 0:
                yield
            if token.type == "MINUS":
                # Checking whether two minus signs begin a comment takes time linear in the text.
                count += _MINUSES_COUNT if _at(token) == after_minus else 1
                after_minus = _at(token) + 1
            elif token.type != "COMMA" and not (token.type == "STRING" and last_type == "COMMA"):
                count += 1  # except values of a list, which are cheap
            last_type = token.type
            if count > limits.FILTER_NODES.maximum:
                raise FilterTooLarge(limits.FILTER_NODES)
    except UnexpectedToken as error:
        tail = error.token
    except UnexpectedCharacters as error:
        raise Sql92Error(_not_a_word(text, cast(int, error.pos_in_stream))) from None
    try:
        root = cast(_Node, parser.feed_token(Token("$END", "")))
    except UnexpectedToken:
        if tail is None:
            raise Sql92Error("the expression ends too early") from None
        raise Sql92Error(f"unexpected {str(tail)!r} at character {_at(tail) + 1}") from None
    return root, "" if tail is None else text[_at(tail) :]


def _at(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


def _not_a_word(text: str, position: int) -> str:
    if text[position] == "'":
        return f"the string that begins at character {position + 1} does not end"
    return f"no word begins with {text[position]!r}, character {position + 1}"


@cache
def _parser() -> Lark:
    # The parser calls the builder's methods while it reads, without making a tree.
    return Lark(
        _GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_Builder(),
        lexer_callbacks={"ID": _keyword_or_name},
    )


def _keyword_or_name(token: Token) -> Token:
    token.type = _KEYWORDS.get(token.upper(), "ID")
    return token


def _unquote(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Builder(Transformer[Token, _Node]):
    def start(self, node: _Node) -> _Node:
        return _condition(node)

    def any_of(self, left: _Node, right: _Node) -> _Node:
        return _logic(OR, _condition(left), _condition(right))

    def all_of(self, left: _Node, right: _Node) -> _Node:
        return _logic(AND, _condition(left), _condition(right))

    def equal(self, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if isinstance(node, _Constant) and node.value is None:
                raise Sql92Error(f"'{node}' cannot be compared.")
        are_literals = _is_literal(left) and _is_literal(right)
        if are_literals and _is_condition(left) and not _is_condition(right):
            raise Sql92Error(f"'{left}' cannot be compared with '{right}'")
        return _Equal([left, right])

    def not_equal(self, left: _Node, right: _Node) -> _Node:
        return _Not([self.equal(left, right)])

    def is_null(self, node: _Node) -> _Node:
        return _IsNull([node])

    def is_not_null(self, node: _Node) -> _Node:
        return _Not([_IsNull([node])])

    def order(self, left: _Node, operator: str, right: _Node) -> _Node:
        return _order(left, str(operator), right)

    def search(self, node: _Node, operator: Token, text: Token) -> _Node:
        return _Search([node], operator.upper(), _unquote(text), is_negated=False)

    def not_search(self, node: _Node, operator: Token, text: Token) -> _Node:
        return _Search([node], operator.upper(), _unquote(text), is_negated=True)

    def between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        if _is_literal(low) and _is_literal(high):
            _check_between(low, high)
        # Java evaluates the node twice; the second time it cannot be an error.
        again = _Nothing([]) if isinstance(node, _Nothing) else node
        return _logic(AND, _order(node, ">=", low), _order(again, "<=", high))

    def not_between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        again = _Nothing([]) if isinstance(node, _Nothing) else node
        return _logic(OR, _order(node, "<", low), _order(again, ">", high))

    def is_in(self, node: _Node, *values: Token) -> _Node:
        return _in(node, values, is_negated=False)

    def is_not_in(self, node: _Node, *values: Token) -> _Node:
        return _in(node, values, is_negated=True)

    def minus(self, node: _Node) -> _Node:
        if isinstance(node, _Constant) and node.type in _NUMBERS:
            assert isinstance(node.value, int | float)
            return _Constant([], -node.value, node.type, node.text, node.minus_count + 1)
        return _Nothing([node])

    def negation(self, node: _Node) -> _Node:
        return _Not([_condition(node)])

    def property_(self, name: Token) -> _Node:
        return _Property([], str(name))

    def string(self, literal: Token) -> _Node:
        return _Constant([], _unquote(literal), STRING, str(literal))

    def integer(self, literal: Token) -> _Node:
        text = literal.rstrip("lL")
        try:
            value = _parse_integer(text, 64)
        except EvaluationError as error:
            raise Sql92Error(str(error)) from None
        # The suffix L is ignored: small numbers are of type Integer, large ones of type Long.
        return _Constant([], value, INTEGER if value < 1 << 31 else LONG, text)

    def double(self, literal: Token) -> _Node:
        value = float(literal)
        if value == float("inf"):
            raise Sql92Error(f"{literal} is greater than 1.7976931348623157E308")
        if value == 0:
            raise Sql92Error(f"{literal} is less than 4.9E-324")
        return _Constant([], value, DOUBLE, repr(value))

    def true(self) -> _Node:
        return _Constant([], True, BOOLEAN, "TRUE")

    def false(self) -> _Node:
        return _Constant([], False, BOOLEAN, "FALSE")

    def null(self) -> _Node:
        return _Constant([], None, BOOLEAN, "NULL")


def _is_literal(node: _Node) -> TypeGuard[_Constant]:
    return isinstance(node, _Constant) and node.is_literal


def _condition(node: _Node) -> _Node:
    if _is_condition(node):
        return node
    if isinstance(node, _Property):
        return _Cast([node])
    raise Sql92Error(f"Expression will not result in a boolean value: {node}")


def _logic(operator: str, left: _Node, right: _Node) -> _Node:
    """Join two operands to one node, in place if they have the same operator."""
    is_chain = isinstance(right, _Logic) and right.operator == operator
    if isinstance(left, _Logic) and left.operator == operator:
        for operand in right.operands if is_chain else [right]:
            left.hold(operand)
            left.operands.append(operand)
        return left
    if is_chain:
        right.hold(left)
        right.operands.insert(0, left)
        return right
    return _Logic([left, right], operator)


def _order(left: _Node, operator: str, right: _Node) -> _Node:
    for node in (left, right):
        is_number = isinstance(node, _Property | _Nothing) or _type(node) in _NUMBERS
        if not is_number:
            raise Sql92Error(f"Value '{node}' cannot be compared.")
    return _Order([left, right], operator)


def _in(node: _Node, values: tuple[Token, ...], *, is_negated: bool) -> _Node:
    if not isinstance(node, _Property):
        raise Sql92Error(f"Expected a property for In expression, got: {node}")
    return _In([node], [_unquote(value) for value in values], is_negated)


def _check_between(low: _Constant, high: _Constant) -> None:
    if low.value is None or high.value is None:
        raise Sql92Error("Illegal values of between, values can not be null!")
    try:
        is_descending = _compare(high.value, high.type, low.value, low.type) < 0
    except EvaluationError as error:
        raise Sql92Error(str(error)) from None
    if is_descending:
        texts = [
            node.text.lower() if node.type == BOOLEAN else str(node.value) for node in (low, high)
        ]
        raise Sql92Error(
            f"Illegal values of between, left value({texts[0]}) must less than or equal to "
            f"right value({texts[1]})"
        )


# --- from nodes to a function ----------------------------------------------

_Evaluate = Callable[[Callable[[str], str | None]], bool | None]

_READERS = {STRING: "{}", INTEGER: "integer({})", LONG: "long({})", DOUBLE: "double({})"}
_FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
# NaN is greater than every number and equal to itself, as in Double.compareTo.
_DOUBLE_ORDERS = {
    ">": "not {} <= {}",
    ">=": "not {} < {}",
    "<": "{} < {}",
    "<=": "{} <= {}",
}
# Condition to evaluate the next operand, and the combined value. {0} is the value so far.
_JOINS = {
    AND: ("{0} is not False", "{1} if {0} else (False if {1} is False else None)"),
    OR: ("not {0}", "(True if {1} else None) if {0} is None else {1}"),
}
_SEARCH_TESTS = {
    "CONTAINS": "{1} in {0}",
    "STARTSWITH": "{0}.startswith({1})",
    "ENDSWITH": "{0}.endswith({1})",
}


def _compile(root: _Node) -> tuple[_Evaluate, int]:
    """Return the function of a node and its number of property reads."""
    writer = _Writer()
    result = writer.value(root)
    source = "\n".join(("def evaluate(get):", *writer.lines, f" return {result}"))
    names: dict[str, Any] = {
        "__builtins__": {},
        "integer": _integer,
        "long": _long,
        "double": _double,
        "compare_strings": _compare_strings,
        "equal": _equal,
        **writer.constants,
    }
    exec(compile(source, "<sql92>", "exec"), names)
    return cast(_Evaluate, names["evaluate"]), writer.read_count


class _Writer:
    """Generator of the lines that compute nodes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, object] = {}
        self.read_count = 0
        self._indent = " "
        self._variables = 0

    def _constant(self, value: object) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def _let(self, expression: str) -> str:
        name = f"v{self._variables}"
        self._variables += 1
        self._set(name, expression)
        return name

    def _set(self, name: str, expression: str) -> None:
        self.lines.append(f"{self._indent}{name} = {expression}")

    @contextmanager
    def _when(self, condition: str) -> Iterator[None]:
        self.lines.append(f"{self._indent}if {condition}:")
        self._indent += " "
        self.lines.append(f"{self._indent}pass")
        yield
        self._indent = self._indent[:-1]

    def value(self, node: _Node) -> str:
        """Generate the lines for a node; return its value: a variable, a global, None or False."""
        match node:
            case _Property():
                self.read_count += 1
                return self._let(f"get({self._constant(node.name)})")
            case _Constant():
                return self._constant(node.value)
            case _Nothing():
                for operand in node.operands:
                    self.value(operand)
                return "None"
            case _Cast():
                return self._let(f"None if {self.value(node.operands[0])} is None else False")
            case _Not():
                value = self.value(node.operands[0])
                return self._let(f"None if {value} is None else not {value}")
            case _IsNull():
                return self._let(f"{self.value(node.operands[0])} is None")
            case _Equal():
                return self._equal(*node.operands)
            case _Order():
                return self._order(node.operands[0], node.operator, node.operands[1])
            case _Logic():
                return self._logic(node)
            case _In():
                value = self.value(node.operands[0])
                operator = "not in" if node.is_negated else "in"
                values = self._constant(frozenset(node.values))
                return self._let(f"None if {value} is None else {value} {operator} {values}")
            case _Search():
                return self._search(node)
        raise AssertionError(node)

    def _equal(self, left: _Node, right: _Node) -> str:
        # Null = something is null, something = null is false, and null = null is true.
        if isinstance(left, _Property) and isinstance(right, _Constant) and right.type in _READERS:
            value = self.value(left)
            test = f"{_READERS[right.type].format(value)} == {self._constant(right.value)}"
            return self._let(f"None if {value} is None else {test}")
        if isinstance(right, _Property) and isinstance(left, _Constant) and left.type in _READERS:
            value = self.value(right)
            test = f"{_READERS[left.type].format(value)} == {self._constant(left.value)}"
            return self._let(f"{value} is not None and {test}")
        values = [self.value(node) for node in (left, right)]
        return self._let(f"equal({values[0]}, {_type(left)!r}, {values[1]}, {_type(right)!r})")

    def _order(self, left: _Node, operator: str, right: _Node) -> str:
        match left, right:
            case _Nothing(), _:
                return self.value(left)
            case _, _Nothing():
                value = self.value(left)
                with self._when(f"{value} is not None"):
                    return self.value(right)
            case _Property(), _Property():
                first, second = self.value(left), self.value(right)
                test = f"compare_strings({first}, {second}) {operator} 0"
                return self._let(f"None if {first} is None or {second} is None else {test}")
            case _Constant(), _Constant():
                answer = _compare(left.value, left.type, right.value, right.type)
                return self._let(f"{answer} {operator} 0")
            case _Constant(), _Property():
                return self._order(right, _FLIPPED[operator], left)
            case _Property(), _Constant():
                value = self.value(left)
                form = _DOUBLE_ORDERS[operator] if right.type == DOUBLE else f"{{}} {operator} {{}}"
                test = form.format(_READERS[right.type].format(value), right.value)
                return self._let(f"None if {value} is None else {test}")
        raise AssertionError(left, right)

    def _logic(self, node: _Logic) -> str:
        going_on, joined = _JOINS[node.operator]
        first, *others = node.operands
        result = self._let(self.value(first))
        for operand in others:
            with self._when(going_on.format(result)):
                self._set(result, joined.format(result, self.value(operand)))
        return result

    def _search(self, node: _Search) -> str:
        if not node.text:
            return "False"  # without evaluating the operand
        value = self.value(node.operands[0])
        if _type(node.operands[0]) != STRING:
            return "False"
        test = _SEARCH_TESTS[node.operator].format(value, self._constant(node.text))
        return self._let(f"{value} is not None and {'not ' * node.is_negated}{test}")


# --- values ----------------------------------------------------------------

_INTEGER = re.compile(r"[+-]?(?:(?![\U00010000-\U0010ffff])\d)+")
"""``Character.digit`` accepts the digits of all scripts that take one UTF-16 unit."""

_DOUBLE = re.compile(
    r"""( [+-]? (?: \d+\.?\d* | \.\d+ ) (?: [eE][+-]?\d+ )? ) [fFdD]?
      | ( [+-]? (?: NaN | Infinity ) )
      | ( [+-]? 0[xX] (?: [0-9a-fA-F]+\.? | [0-9a-fA-F]*\.[0-9a-fA-F]+ ) [pP][+-]?\d+ ) [fFdD]?""",
    re.ASCII | re.VERBOSE,
)
_JAVA_BLANKS = bytes(range(0x21)).decode()
"""Characters that ``String.trim`` removes."""


def _integer(text: str) -> int:
    """Return ``Integer.valueOf``."""
    if len(text) < 10 and text.isascii() and text.isdecimal():
        return int(text)
    return _parse_integer(text, 32)


def _long(text: str) -> int:
    """Return ``Long.valueOf``."""
    return _parse_integer(text, 64)


def _parse_integer(text: str, bits: int) -> int:
    if _INTEGER.fullmatch(text):
        sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
        digits = digits.lstrip("0") or "0"
        value = int(sign + digits) if len(digits) < 20 else 1 << 64
        limit = 1 << (bits - 1)
        if -limit <= value < limit:
            return value
    raise EvaluationError(f'For input string: "{text}"')


def _double(text: str) -> float:
    """Return ``Double.valueOf``, which takes ``1f``, ``0x1p3`` and ``NaN``, but not ``nan``."""
    if text.isascii() and text.replace(".", "", 1).isdecimal():
        return float(text)
    trimmed = text.strip(_JAVA_BLANKS)
    match = _DOUBLE.fullmatch(trimmed)
    if not match:
        raise EvaluationError(f'For input string: "{trimmed}"' if trimmed else "empty String")
    decimal, name, hexadecimal = match.groups()
    if hexadecimal is None:
        return float(decimal or name)
    try:
        return float.fromhex(hexadecimal)
    except OverflowError:
        return float("-inf" if hexadecimal[0] == "-" else "inf")


def _boolean(text: str) -> bool:
    """Return ``Boolean.valueOf``."""
    return text.lower() == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {
    INTEGER: _integer,
    LONG: _long,
    DOUBLE: _double,
    BOOLEAN: _boolean,
}


def _equal(left: Any, left_type: str, right: Any, right_type: str) -> bool | None:
    """Return ``left = right``."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return _compare(left, left_type, right, right_type) == 0


def _compare(left: Any, left_type: str, right: Any, right_type: str) -> int:
    """Return the sign of Java's ``__compare``, which converts both to one type."""
    if left_type != right_type:
        if left_type == BOOLEAN and right_type == STRING:
            raise EvaluationError(
                "class java.lang.Boolean cannot be cast to class java.lang.String"
            )
        if BOOLEAN in (left_type, right_type) and left_type != STRING:
            return -1
        if right_type == STRING:
            right, right_type = _PARSERS[left_type](right), left_type
        elif left_type == STRING:
            left, left_type = _PARSERS[right_type](left), right_type
    if DOUBLE in (left_type, right_type):
        return _compare_doubles(float(left), float(right))
    sign: int = (left > right) - (left < right)
    return sign


def _compare_strings(left: str, right: str) -> int:
    return _compare_doubles(_double(left), _double(right))


def _compare_doubles(left: float, right: float) -> int:
    """Return the sign of ``Double.compareTo``: -0.0 is below 0.0, NaN above everything."""
    if left == right == 0:
        left, right = copysign(1, left), copysign(1, right)
    if left == left and right == right:
        return (left > right) - (left < right)
    return (left != left) - (right != right)
