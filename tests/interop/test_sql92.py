"""SQL92 filters: the same results as RocketMQ's filter jar, for each expression and message."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

import seeds
from interop import java_oracle
from interop.java_oracle import JavaOracle, Oracle, Word, property_words
from interop.recorded_oracle import oracle_fixture
from reput.format import sql92

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
EXPRESSIONS = 3000
MESSAGES = 8
"""Messages per expression."""

# --- the jar ---------------------------------------------------------------

JARS = ("rocketmq-filter", "rocketmq-common", "guava", "failureaccess")
"""Jars that the filter's classes use, without the rest of RocketMQ that they depend on."""


class FilterOracle(JavaOracle):
    """Running ``FilterOracle.java``."""

    main_class = "FilterOracle"

    def folders(self, version: str, work: Path) -> list[Path]:
        return [java_oracle.more_jars(version, "filter", JARS, work)]


oracle = oracle_fixture(FilterOracle)


# --- comparing -------------------------------------------------------------

Request = tuple[str, list[dict[str, str]]]
LETTERS = {True: "T", False: "F", None: "N"}
SYNTAX = re.compile(r"unexpected |no word begins|the string that begins|the expression ends")


def chosen(oracle: Oracle, requests: Sequence[Request]) -> list[Request]:
    """Return all requests beside a JVM, and a quarter of them for a recording."""
    count = oracle.size(len(requests), len(requests) // 4)
    return seeds.random("sql92", "chosen").sample(requests, count)


def java_answers(oracle: Oracle, requests: Sequence[Request]) -> list[str]:
    """Return Java's result: a letter for each message, or C and the text of a compile error."""
    words: list[list[Word]] = [
        [text, *itertools.chain.from_iterable(map(property_words, messages))]
        for text, messages in requests
    ]
    return oracle.ask("filter", words)


def our_answer(request: Request) -> str:
    text, messages = request
    try:
        condition = sql92.compile_filter(text)
    except sql92.Sql92Error as error:
        return f"C{error}"
    letters = ""
    for message in messages:
        try:
            letters += LETTERS[condition.evaluate(message)]
        except sql92.EvaluationError:
            letters += "E"
    return letters


def compare(oracle: Oracle, requests: Sequence[Request]) -> list[str]:
    """Assert that both give the same results; return Java's."""
    answers = java_answers(oracle, requests)
    for request, java in zip(requests, answers, strict=True):
        ours = our_answer(request)
        if java[0] != "C":
            assert ours == java, request
            continue
        assert ours[0] == "C", (request, java)
        is_syntax = "Encountered" in java or java.startswith("CTokenMgrError")
        # If a text has two errors, Java may report the other one.
        if not is_syntax and not SYNTAX.match(ours[1:]):
            assert plain(ours[1:]) == plain(java.partition(": ")[2]), request
    return answers


def plain(reason: str) -> str:
    """Remove the differences: the brackets of a chain, doubles, lists, the name of the cause."""
    double = r"\d+\.\d+(E-?\d+|e[-+]\d+)?|\d+e[-+]\d+"
    rest = r" IN \(.*| \(java\.lang\.Boolean and .*"
    return re.sub(rf"{rest}|[()]|{double}|^java\.lang\.\w+: ", "", reason, flags=re.DOTALL)


# --- samples ---------------------------------------------------------------

VALUES = [
    *("", "0", "1", "5", "-5", "+5", "--5", "+", "-", "05", "-05", "000", "6", "4", "55", "-0"),
    *("5.5", "5.0", "5.", ".5", ".", "-0.0", "0.0", "-.5e1", "1e1", "5f", "5D", "5ff", "5L", "1e"),
    *("0x10", "0x1p3", "-0x.8P+4f", "0x1.8p1", "0x1.p1", "0x.p1", "0x1p9999", "-0x1p9999d", "0x"),
    *("0x1p-9999", "0x1.fffffffffffff8p0", "0x1.00000000000008p0", "0x0.0000000000001p-1022"),
    *("0x1.0p-1075", "0x1.00001p-1075", "0x1p2147483648", "0x1p-99999999999", "0x0p99999999999"),
    *(
        "NaN",
        "-NaN",
        "+NaN",
        "nan",
        "NaNf",
        "Infinity",
        "-Infinity",
        "inf",
        "infinity",
        "Infinityf",
    ),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "4294967301", "99999999999"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("9007199254740992", "9007199254740993", "9007199254740993.0", "99999999999999999999"),
    *("1e400", "-1e400", "1e-400", "4.9E-324", "2e-324", "1.7976931348623157e308", "1e99999999999"),
    *("1e-99999999999", "0e99999999999", "0." + "0" * 400 + "5", "5" + "0" * 400, "0" * 5000 + "5"),
    *("0.1", "0.10000000000000000555", "2.2250738585072011e-308", "5.50000000000000000000000001"),
    *(" 5 ", "5 ", "\t5\n", "\0 5.5\x1f", "\u00a05", "\u20035", "1_000", "1,000", "5 5", "0b101"),
    # Digits: fullwidth, Arabic-Indic, bold, Devanagari. No digits: two, half, Roman, 五. No minus.
    *("\uff11\uff15", "\u0665", "-\u0665", "\U0001d7d3", "5\u0665", "\u096b.\u096b"),
    *("\u00b2", "\u00bd", "\u2164", "五", "\u22125"),
    *("abc", "x", "X", "xaby", "it's", "'x'", "ab", "b", "é", "日本", "😀", "\u017f", "İ"),
    *("TRUE", "true", "False", "tRuE", "false", " true", "trUe ", "yes", "null", "NULL"),
]
NUMBERS = [
    *(
        "0",
        "1",
        "5",
        "5",
        "5",
        "6",
        "5L",
        "5l",
        "0L",
        "05",
        "007",
        "55",
        "2147483647",
        "2147483648",
    ),
    *("9223372036854775807", "9223372036854775808", "9007199254740993", "99999999999999999999"),
    *("5.5", "5.", ".5", "0.5", "5e0", "5.0", "1E1", "1e+1", "50.e-1", "00.5", "05.0", "08e0"),
    *("0.0", "0.", ".0", "0e5", "1e400", "1e-400", "4.9E-324", "2e-324", "9007199254740993.0"),
    *("1.7976931348623157E308", "5f", "5.5L", "0x10", "5e", "5.5.5", "1_000"),
]
STRINGS = [
    *("'x'", "'abc'", "''", "'5'", "'5.5'", "'it''s'", "'TRUE'", "'a'", "'b'", "'ab'", "'日本'"),
    *("'😀'", "'/* '", "'-- '", "'\n'", "''''", "'NaN'", "'true'", "' 5 '"),
]
NAMES = ["a", "b", "c", "d", "A", "$x", "_y1", "inn", "nullx", "e1", "l"]
CONSTANTS = ["TRUE", "FALSE", "NULL", "true", "False", "nUlL"]
ORDERS = [">", ">=", "<", "<="]
SEARCHES = ["CONTAINS", "STARTSWITH", "ENDSWITH", "contains", "EndsWith"]
BLANKS = [" "] * 12 + ["", "", "\t", "\n", "\r\n", "\f", "  ", "/* c */", "/***/", "-- c\n", "--\r"]
NOISE = [
    *(
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "IS",
        "NULL",
        "TRUE",
        "(",
        ")",
        ",",
        "+",
        "-",
        "=",
        "<>",
    ),
    *(
        "!=",
        "==",
        ">",
        "<",
        "LIKE",
        "*",
        "/",
        ";",
        "#",
        "'",
        "''",
        '"',
        "\\",
        "a",
        "5",
        "'x'",
        ".5",
    ),
    *("--", "/*", "*/", "é", "\0", "\x0b", "\u00a0", "\u2028", "[", "&&", "%", ":", "?", "NOT IN"),
]


class Grammar:
    """Random expressions, as words; mostly meaningful, but any node may be anywhere."""

    def __init__(self, random: Random, *, has_searches: bool) -> None:
        self.random = random
        self.has_searches = has_searches

    def text(self) -> str:
        words = self.condition(self.random.choice((0, 1, 1, 2, 3)))
        if self.random.random() < 0.4:
            for _ in range(self.random.choice((1, 1, 2, 4))):
                self.damage(words)
        return "".join(
            itertools.chain.from_iterable((word, self.random.choice(BLANKS)) for word in words)
        )

    def damage(self, words: list[str]) -> None:
        place = self.random.randrange(len(words) + 1)
        kind = self.random.randrange(5)
        if kind == 0 or not words:
            words.insert(place, self.random.choice(NOISE))
        elif kind == 1:
            del words[place : place + 1]
        elif kind == 2:
            words[place : place + 1] = [self.random.choice(NOISE)]
        elif kind == 3:
            other = self.random.randrange(len(words))
            words.insert(place, words[other])
        else:
            words[place:] = []

    def condition(self, depth: int) -> list[str]:
        kind = self.random.randrange(14)
        if depth > 0 and kind < 7:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            if kind < 5:
                return [*left, self.random.choice(("AND", "OR", "and", "Or")), *right]
            return ["(", *left, ")"] if kind == 5 else ["NOT", "(", *left, ")"]
        if kind == 7:
            return ["NOT", *self.operand(depth)]
        if kind == 8:
            return self.operand(depth)
        return self.test(depth)

    def test(self, depth: int) -> list[str]:
        choice, maybe = self.random.choice, self.random.random
        kind = self.random.randrange(9 if self.has_searches else 7)
        negation = [choice(("NOT", "not"))] if maybe() < 0.3 else []
        value = [choice(NAMES)] if maybe() < 0.85 else self.operand(depth)
        match kind:
            case 0 | 1:
                other = self.operand(depth) if maybe() < 0.5 else [choice(STRINGS + NUMBERS)]
                sides = [value, other] if maybe() < 0.8 else [other, value]
                return [*sides[0], choice(("=", "<>")), *sides[1]]
            case 2 | 3:
                other = self.operand(depth) if maybe() < 0.3 else self.number()
                sides = [value, other] if maybe() < 0.8 else [other, value]
                return [*sides[0], choice(ORDERS), *sides[1]]
            case 4:
                return [*value, choice(("IS", "is")), *negation, choice(("NULL", "null"))]
            case 5:
                low, high = self.number(), self.number()
                if maybe() < 0.2:
                    low = self.operand(depth)
                return [*value, *negation, choice(("BETWEEN", "between")), *low, "AND", *high]
            case 6:
                items = [
                    item for _ in range(choice((1, 2, 3, 6))) for item in (choice(STRINGS), ",")
                ]
                return [*value, *negation, "IN", "(", *items[:-1], ")"]
            case _:
                return [*value, *negation, choice(SEARCHES), choice(STRINGS)]

    def number(self) -> list[str]:
        if self.random.random() < 0.25:
            return [*self.random.choices("+-", k=self.random.randint(1, 2)), "5"]
        return [self.random.choice(NUMBERS)]

    def operand(self, depth: int) -> list[str]:
        choice = self.random.choice
        match self.random.randrange(10):
            case 0 | 1 | 2 | 3:
                return [choice(NAMES)]
            case 4:
                return [choice(STRINGS)]
            case 5:
                return [choice(CONSTANTS)]
            case 6:
                return ["-", *self.operand(depth - 1)]
            case 7 if depth > -2:
                return ["(", *self.test(depth - 1), ")"]
            case _:
                return self.number()


def messages(random: Random, count: int) -> list[dict[str, str]]:
    plain_values = ("5", "5", "4", "6", "-5", "5.5", "x", "abc", "TRUE", "false", "")
    return [
        {
            name: random.choice(plain_values if random.random() < 0.6 else VALUES)
            for name in NAMES
            if random.random() < 0.75
        }
        for _ in range(count)
    ]


# --- tests -----------------------------------------------------------------


def test_random_expressions(oracle: Oracle) -> None:
    random = seeds.random("sql92", 1)
    grammar = Grammar(random, has_searches=not oracle.is_4)
    count = oracle.size(EXPRESSIONS, 1000)
    requests = [(grammar.text(), messages(random, MESSAGES)) for _ in range(count)]
    answers = compare(oracle, requests)
    refused = sum(answer[0] == "C" for answer in answers)
    letters = "".join(answer for answer in answers if answer[0] != "C")
    assert 0.2 < refused / count < 0.6
    assert all(letters.count(letter) > 0.04 * len(letters) for letter in "TFNE"), letters[:100]


def test_random_words(oracle: Oracle) -> None:
    random = seeds.random("sql92", 2)
    searches = [] if oracle.is_4 else SEARCHES
    words = [*NOISE, *NAMES, *NUMBERS, *STRINGS, *CONSTANTS, *ORDERS, *searches]
    requests = []
    for _ in range(oracle.size(1500, 500)):
        chosen = random.choices(words, k=random.randint(0, 7))
        text = "".join(word + random.choice(BLANKS) for word in chosen)
        requests.append((text, messages(random, 3)))
    compare(oracle, requests)


def test_every_value_with_every_literal(oracle: Oracle) -> None:
    numbers = [*NUMBERS, *(f"-{number}" for number in NUMBERS[::2])]
    literals = [*numbers, *STRINGS[::3], *CONSTANTS[:3]]
    rows = [{}, *({"a": value} for value in VALUES)]
    requests = []
    for literal in literals:
        for operator in (*ORDERS, "=", "<>"):
            requests.append((f"a {operator} {literal}", rows))
            requests.append((f"{literal} {operator} a", rows))
        requests.append((f"a BETWEEN {literal} AND 6", rows))
        requests.append((f"a NOT BETWEEN 4 AND {literal}", rows))
        requests.append((f"a IN ({literal}, 'x')", rows))
    compare(oracle, chosen(oracle, requests))


def test_every_value_with_every_value(oracle: Oracle) -> None:
    rows = [{"a": value, "b": other} for value in VALUES for other in VALUES]
    requests = [(f"a {operator} b", rows) for operator in (*ORDERS, "=", "<>")]
    requests += [
        (text, [{"a": value} for value in VALUES])
        for text in ("NOT a", "a", "a = (b IS NULL)", "(b IS NULL) = a", "a = TRUE", "-a = 5")
    ]
    compare(oracle, chosen(oracle, requests))


def test_every_literal_with_every_literal(oracle: Oracle) -> None:
    numbers = [*NUMBERS[::3], "5.0", "-5", "-2147483648", "-5.5", "-05"]
    literals = [*numbers, *STRINGS[::3], "'NaN'", *CONSTANTS[:3], "(a = 5)"]
    texts = [
        text
        for left, right in itertools.product(literals, literals)
        for text in (f"{left} = {right}", f"{left} < {right}", f"a BETWEEN {left} AND {right}")
    ]
    compare(oracle, chosen(oracle, [(text, [{}, {"a": "5"}]) for text in texts]))


def test_three_valued_logic_is_equal(oracle: Oracle) -> None:
    """True, false, null and error, next to and inside each other, in every order."""
    operands = ["n IS NULL", "x = 'y'", "n = 5", "x = 5", "NULL"]
    texts = [
        f"{negation} ({a} {first} {b}) {second} {c}"
        for a, b, c in itertools.product(operands, repeat=3)
        for first, second in itertools.product(("AND", "OR", "="), ("AND", "OR"))
        for negation in ("", "NOT")
    ]
    texts += [
        f"{a} {first} ({b} {second} {c})"
        for a, b, c in itertools.product(operands, repeat=3)
        for first, second in itertools.product(("AND", "OR"), repeat=2)
    ]
    compare(oracle, chosen(oracle, [(text, [{"x": "x"}]) for text in texts]))


def test_examples_of_the_documentation(oracle: Oracle) -> None:
    page = (ROOT / "docs/formats/sql92.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([^`]*)` \| (?:`(.*)` )?\| (true|false|null|error) \|$", page, re.MULTILINE
    )
    assert len(rows) > 40
    rows = [row for row in rows if not (oracle.is_4 and re.search("CONTAINS|WITH", row[0]))]
    requests = [
        (text, [dict(pair.split("=") for pair in message.split(", ") if pair)])
        for text, message, _ in rows
    ]
    assert compare(oracle, requests) == [value[0].upper() for *_, value in rows]
    refused = re.findall(r"^\| `([^`]*)` \| [^`|]+ \|$", page, re.MULTILINE)
    assert len(refused) > 15
    assert {answer[0] for answer in compare(oracle, [(text, []) for text in refused])} == {"C"}


def test_keywords_of_5_are_names_in_4(oracle: Oracle) -> None:
    message = {"a": "abc", "contains": "5"}
    java = java_answers(oracle, [("a CONTAINS 'b'", [message]), ("contains = 5", [message])])
    if oracle.is_4:  # a, with a tail; and a property
        assert java == ["F", "T"]
    else:
        assert java[0] == "T"
        assert java[1][0] == "C"
        compare(oracle, [("a CONTAINS 'b'", [message]), ("contains = 5", [message])])
