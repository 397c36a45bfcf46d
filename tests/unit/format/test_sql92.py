"""SQL92 filters: the examples of docs and more; tests/interop compares them with the jar."""

import pickle
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from cases import each
from reput.format import limits, properties as props, sql92
from reput.format.sql92 import EvaluationError, FilterTooLarge, Sql92Error, compile_filter

PAGE = Path(__file__).parents[3] / "docs/formats/sql92.md"
VALUES = {"true": True, "false": False, "null": None}


def table(columns: str) -> list[list[str]]:
    """Return the cells of the documented table with these columns."""
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(rf"^\| {columns} \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert match, columns
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines()]


def properties(cell: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in cell.strip("`").split(", ")) if cell else {}


def value(expression: str, **message: str) -> bool | None:
    return compile_filter(expression).evaluate(message)


# --- the page --------------------------------------------------------------


@each(("expression", "message", "wanted"), table(r"expression \| properties \| value"))
def test_example(expression: str, message: str, wanted: str) -> None:
    filter_ = compile_filter(expression.strip("`"))
    if wanted == "error":
        with pytest.raises(EvaluationError):
            filter_.evaluate(properties(message))
    else:
        assert filter_.evaluate(properties(message)) is VALUES[wanted]
    assert filter_.matches(properties(message)) == (wanted == "true")


@each(("expression", "reason"), table(r"expression \| reason"))
def test_refusal(expression: str, reason: str) -> None:
    with pytest.raises(Sql92Error) as refused:
        compile_filter(expression.strip("`"))
    assert str(refused.value) == reason


def test_every_keyword_is_on_the_page() -> None:
    (words,) = [form for word, form in table(r"word \| form") if word == "keyword"]
    keywords = re.findall(r"`(\w+)`", words)
    for keyword in keywords:
        for spelling in (keyword, keyword.lower(), keyword.title()):
            with pytest.raises(Sql92Error):
                compile_filter(f"{spelling} = 5 AND {spelling} > 5")
    assert set(keywords) == set(sql92._KEYWORDS)
    assert str(sql92.NESTING_MAX) in PAGE.read_text(encoding="utf-8")


# --- words -----------------------------------------------------------------


def test_blanks_and_comments_are_allowed_anywhere() -> None:
    assert value("/**/a\t--x\n=\r\n5/* * / ** */\f--'\r", a="5")
    assert value("a=5--x\r\nAND/***/b='--x\n/*'", a="5", b="--x\n/*")


def test_names_and_strings_are_not_part_of_the_generated_source() -> None:
    for text in ("{0}", "'", '"', "\\", "\n", "\\n", "{", "%s", "\0", "k0", "\ud800", "é😀"):
        literal = "'" + text.replace("'", "''") + "'"
        assert value(f"a = {literal} AND a CONTAINS {literal} AND a IN ({literal})", a=text)
    for name in ("$", "_", "get", "integer", "evaluate", "k0", "v0", "None", "__builtins__", "a$1"):
        assert compile_filter(f"{name} = 'x'").matches({name: "x"})


def test_names_have_ascii_letters_only() -> None:
    for name in ("é", "aé", "\u212a", "\u017f", "a.b", "1a", '"a"', "a\u00a0"):
        with pytest.raises(Sql92Error):
            compile_filter(f"{name} = 'x'")


@each(
    ("expression", "tail"),
    [
        ("a = 5", ""),
        ("a = 5 /* c */ -- d\n", ""),
        ("a = 5  b", "b"),
        ("a = 5 )", ")"),
        ("a + 1 > 2", "+ 1 > 2"),
        ("a = 5L 'x", None),
        ("a = 5 b 'x", "b 'x"),
        ("a = 05", "5"),
        ("a = 0x10", "x10"),
        ("a = 5 LIKE # !", "LIKE # !"),
        ("a IS NULL TRUE", "TRUE"),
        ("a = 5 -- c", "-- c"),
    ],
)
def test_ignored_tail(expression: str, tail: str | None) -> None:
    if tail is None:
        with pytest.raises(Sql92Error):
            compile_filter(expression)
        return
    filter_ = compile_filter(expression)
    assert filter_.ignored_tail == tail
    assert filter_.expression == expression
    assert expression.endswith(tail)
    assert filter_.warning.endswith(f"ignores what follows, {tail!r}" if tail else "")
    assert bool(filter_.warning) == bool(tail)
    shortened = compile_filter(expression.removesuffix(tail))
    assert (shortened.ignored_tail, shortened.warning) == ("", "")
    for a in ("5", "0", "6"):
        assert shortened.evaluate({"a": a}) == filter_.evaluate({"a": a})


# --- values ----------------------------------------------------------------


@each("text", ["", " 5", "5 ", "5.0", "1_0", "0x5", "+", "++5", "\u00b2", "\U0001d7d3"])
def test_no_integer(text: str) -> None:
    for expression in ("a = 5", "5 <= a", "a BETWEEN 1 AND 9", "a = 5000000000"):
        with pytest.raises(EvaluationError, match="For input string"):
            value(expression, a=text)


@pytest.mark.parametrize("text", ["5", "+5", "05", "0" * 5000 + "5", "\u0665", "\uff15"])
def test_integer(text: str) -> None:
    assert value("a = 5", a=text)
    assert value("a > 4 AND a < 6 AND a >= 5 AND a <= 5", a=text)
    assert value("a < 5000000000", a=text)


def test_integers_have_limits() -> None:
    for text in ("2147483647", "-2147483648"):
        assert value("a <> 5", a=text)
    for text in ("2147483648", "-2147483649", "9" * 5000):
        with pytest.raises(EvaluationError):
            value("a <> 5", a=text)
    assert value("a > 2147483648", a="9223372036854775807")
    with pytest.raises(EvaluationError):
        value("a > 2147483648", a="9223372036854775808")


@pytest.mark.parametrize("text", ["5.5", " 5.5\t", "5.5f", "55e-1D", "+5.50", "0x1.6p2", "\x005.5"])
def test_double(text: str) -> None:
    assert value("a = 5.5", a=text)
    assert value("a > 5.4 AND a < 5.6 AND 5.5 >= a AND 5.5 <= a", a=text)


@each("text", ["", " ", "inf", "nan", "5,5", "5_5.0", "5.5.5", "0x16", "\u0665.5", "NaNf"])
def test_no_double(text: str) -> None:
    with pytest.raises(EvaluationError):
        value("a = 5.5", a=text)


def test_doubles_have_the_order_of_java() -> None:
    ascending = [
        "-Infinity",
        "-1e400",
        "-1",
        "-0.0",
        "0.0",
        "1e-400",
        "4.9e-324",
        "0x1p9999",
        "NaN",
    ]
    equal = {("-Infinity", "-1e400"), ("0.0", "1e-400")}
    for i, low in enumerate(ascending):
        for high in ascending[i + 1 :]:
            assert value("a < b", a=low, b=high) is ((low, high) not in equal)
            assert value("a <= b", a=low, b=high)
            assert value("b >= a", a=low, b=high)
            assert value("a > b", a=low, b=high) is False
        assert value("a >= b AND a <= b", a=low, b=low)
    assert value("a > 5.5 AND a >= 5.5 AND 5.5 < a AND NOT (a = 5.5)", a="NaN")
    assert value("a < 5.5 OR a <= 5.5 OR a = 5.5", a="NaN") is False


# --- logic -----------------------------------------------------------------

OPERANDS = {"(n IS NULL)": "T", "x = 'y'": "F", "n = 5": "N", "x = 5": "E"}


def letter(expression: str) -> str:
    try:
        return {True: "T", False: "F", None: "N"}[value(expression, x="x")]
    except EvaluationError:
        return "E"


def test_and_or_not() -> None:
    for operand, left in OPERANDS.items():
        assert letter(f"NOT ({operand})") == {"T": "F", "F": "T"}.get(left, left)
        for other, right in OPERANDS.items():
            pair = left + right
            both = "F" if left == "F" else "E" if "E" in pair else min(pair, key="FNT".index)
            either = "T" if left == "T" else "E" if "E" in pair else max(pair, key="FNT".index)
            assert letter(f"{operand} AND {other}") == both, pair
            assert letter(f"{operand} OR {other}") == either, pair


@given(st.lists(st.sampled_from(sorted(OPERANDS)), min_size=3, max_size=7), st.data())
def test_brackets_within_a_chain_have_no_effect(operands: list[str], data: st.DataObject) -> None:
    for operator in ("AND", "OR"):
        position = data.draw(st.integers(0, len(operands) - 2))
        end = data.draw(st.integers(position + 2, len(operands)))
        inner = f" {operator} ".join(operands[position:end])
        words = [*operands[:position], f"({inner})", *operands[end:]]
        assert letter(f" {operator} ".join(words)) == letter(f" {operator} ".join(operands))


# --- limits ----------------------------------------------------------------


def test_long_chains_and_lists_are_accepted() -> None:
    names = [f"a{i}" for i in range(190)]
    message = dict.fromkeys(names, "5")
    assert compile_filter(" AND ".join(f"{name} = 5" for name in names)).matches(message)
    assert compile_filter(" OR ".join(f"{name} = 6" for name in names)).evaluate(message) is False
    nested = "".join(f"({name} = 6 OR " for name in names) + "a = 5" + ")" * len(names)
    assert compile_filter(nested).matches({**message, "a": "5"})
    values = ", ".join(f"'a{i}'" for i in range(1900))
    assert compile_filter(f"a IN ({values})").matches({"a": "a77"})
    assert compile_filter("(" * 590 + "a = 5" + ")" * 590).matches({"a": "5"})


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(["a = 1"] * 310),
        " OR ".join(["a"] * 800),
        " OR ".join(["'a' = 'b'"] * 400),
        " AND ".join(["a CONTAINS 'x'"] * 400),
        "a = " + "-" * 1_500 + "1",
        "a = " + "-" * 16_000 + "1",
        "a = " + "- " * 1_500 + "1",
        "+" * 1_600 + "a = 1",
        "(" * 1_600 + "a = 1",
    ],
    ids=lambda expression: f"{expression[:14]} {len(expression)}",
)
def test_a_filter_of_too_many_words_is_refused(expression: str) -> None:
    with pytest.raises(FilterTooLarge) as refused:
        compile_filter(expression)
    assert refused.value.limit is limits.FILTER_NODES
    assert f"at most {limits.FILTER_NODES.maximum}" in str(refused.value)


@pytest.mark.parametrize(
    "expression",
    ["a = '" + "x" * 16_384 + "'", "a = '" + "\u00e4" * 8_190 + "'", "x" * 4_000_000, " " * 20_000],
    ids=["letters", "bytes", "name", "blanks"],
)
def test_a_filter_that_is_too_long_is_refused_before_it_is_read(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql92, "_parse", None)
    with pytest.raises(FilterTooLarge, match="at most 16384 bytes") as refused:
        compile_filter(expression)
    assert refused.value.limit is limits.FILTER_BYTES


def test_minus_signs_take_linear_time() -> None:
    """Each sign copied the rest of the text: 16,000 signs took four seconds."""
    filter_ = compile_filter("a = " + "- " * 1_001 + "1")
    assert filter_.matches({"a": "-1"})
    with pytest.raises(Sql92Error) as refused:
        compile_filter("- " * 3 + "1 IN ('x')")
    assert str(refused.value) == "Expected a property for In expression, got: (- (- (- 1)))"


def test_reasons_quote_only_the_beginning_of_long_texts() -> None:
    with pytest.raises(Sql92Error) as refused:
        compile_filter("'" + "x" * 10_000 + "' > 5")
    assert len(str(refused.value)) < 300
    assert len(compile_filter("a b " + "c" * 10_000).warning) < 900


def test_many_reads_and_few_reads_agree() -> None:
    """With many reads, the properties are decoded once in advance."""
    text = "a\x015\x02b\x01\x02c\x01x\x01y\x02a\x016\x02\x01z\x02d"
    for condition in ("a = 6", "b IS NULL", "c = 'x\x01y'", "d IS NULL", "a = 5", "e IS NULL"):
        few = compile_filter(condition)
        many = compile_filter(" AND ".join([condition] * 20))
        assert few.matches_text(text) is many.matches_text(text) is (condition != "a = 5")


@pytest.mark.parametrize(("words", "search_count"), [(2, 2), (290, 0)])
def test_a_message_costs_no_search_for_each_word(
    monkeypatch: pytest.MonkeyPatch, words: int, search_count: int
) -> None:
    """Each of many reads searched all properties: 20 ms for a message."""
    searched = []

    def getter(text: str) -> Callable[[str], str | None]:
        def get(name: str) -> str | None:
            searched.append(name)
            return plain(name)

        plain = getter_of_properties(text)
        return get

    getter_of_properties = props.getter
    monkeypatch.setattr(props, "getter", getter)
    text = "\x02".join(f"p{i}\x01v" for i in range(4_000))
    filter_ = compile_filter(" OR ".join(f"a{i} = 1" for i in range(words)))
    assert not filter_.matches_text(text)
    assert len(searched) == search_count


@pytest.mark.parametrize(
    ("start", "level", "middle", "end", "levels_each"),
    [
        ("", "NOT ", "a", "", 1),
        ("", "(a = 5 AND (a = 6 OR ", "a = 5", "))", 2),
        ("", "(a = 5 AND b = 5 AND (a = 6 OR b = 6 OR ", "a = 5", "))", 2),
        ("", "(", "a = 5", " AND a = 6 OR a = 7)", 2),
        ("", "(a = ", "(a = 5)", ")", 1),
        ("a > ", "-(a = ", "a", ")", 2),
        ("", "(", "a = 5", " IS NULL)", 1),
    ],
)
def test_nesting_has_a_limit(
    start: str, level: str, middle: str, end: str, levels_each: int
) -> None:
    count = sql92.NESTING_MAX // levels_each
    filter_ = compile_filter(start + level * (count - 3) + middle + end * (count - 3))
    assert filter_.matches({"a": "true"}) in (True, False)
    for too_many in (count + 3, count + 15):
        with pytest.raises(Sql92Error, match="nested deeper than"):
            compile_filter(start + level * too_many + middle + end * too_many)


def test_between_does_not_double_its_left_side() -> None:
    """Java evaluates the left side twice, so each nesting level doubles the time."""

    class Counted(dict[str, str]):
        count = 0

        def get(self, name: str, default: object = None) -> str | None:  # type: ignore[override]
            self.count += 1
            return super().get(name)

    message = Counted(a="1")
    inner = "a BETWEEN 1 AND 2"
    for _ in range(10):
        inner = f"-({inner}) BETWEEN 1 AND 2"
    assert compile_filter(inner).evaluate(message) is None
    assert message.count == 2


# --- the filter ------------------------------------------------------------


def test_filter_is_cached_pickled_and_shown() -> None:
    filter_ = compile_filter("a > 5 b")
    assert compile_filter("a > 5 b") is filter_
    assert pickle.loads(pickle.dumps(filter_)) is filter_, "it is kept"
    assert (filter_.expression, filter_.ignored_tail) == ("a > 5 b", "b")
    assert filter_.matches({"a": "6"})
    assert repr(filter_) == "Filter('a > 5 b')"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" OR ".join(f"steps{i} = 1" for i in range(250)), None),
        (" OR ".join(f"refused{i} = 1" for i in range(250)) + " OR", "ends too early"),
        (" OR ".join(f"large{i} = 1" for i in range(350)), "at most 1200"),
    ],
    ids=["filter", "error", "over the limit"],
)
def test_it_is_compiled_in_steps_and_kept(text: str, reason: str | None) -> None:
    """A refusal took as long again in each request."""
    steps = sql92.compile_in_steps(text)
    assert steps is not None
    assert sum(1 for _ in steps) >= 10
    assert sql92.compile_in_steps(text) is None
    if reason is None:
        assert compile_filter(text) is compile_filter(text)
        return
    errors = []
    for _ in range(2):
        with pytest.raises(Sql92Error, match=reason) as caught:
            compile_filter(text)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert errors[0] is not errors[1], "whose tracebacks would keep what the callers had"


def test_errors_are_value_errors() -> None:
    assert issubclass(Sql92Error, ValueError)
    assert issubclass(EvaluationError, ValueError)


WORDS = [
    *sql92._KEYWORDS,
    *("a", "b", "(", ")", "(", ")", ",", "=", "<>", ">", ">=", "<", "<=", "+", "-", "#", "'"),
    *("5", "0", "5L", "5.5", ".5", "1e400", "'x'", "''", "'5'"),
]


@given(
    st.one_of(
        st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
        st.text(st.sampled_from(string.printable), max_size=30),
        st.text(max_size=20),
    ),
    st.dictionaries(
        st.sampled_from("ab"), st.one_of(st.sampled_from(["5", "x", "true"]), st.text())
    ),
)
def test_a_filter_returns_a_value_or_an_error(text: str, message: dict[str, str]) -> None:
    try:
        filter_ = compile_filter(text)
    except Sql92Error:
        return
    try:
        result = filter_.evaluate(message)
    except EvaluationError:
        result = None
    assert result in (True, False, None)
    assert filter_.matches(message) is (result is True)
