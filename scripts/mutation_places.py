"""The places of the source where a mutant can be, and the list of the mutants.

``draw`` takes, for each area, the places with the smallest hashes of a seed and their text, from
each operator in turn. So a second draw after a change of the source replaces those mutants alone
whose lines are gone.
"""

import ast
import dataclasses
import hashlib
import itertools
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "tests" / "mutants.toml"
AREAS: dict[str, tuple[int, str]] = {
    "putting": (
        18,
        r"store/(writing/(putting|incoming|copying|flush)|log/(commit_log|mapped_f.*))",
    ),
    "recovery": (18, r"store/(opening/.*|log/torn_records)"),
    "dispatch": (12, r"store/writing/dispatch"),
    "index": (12, r"store/index/.*"),
    "queues": (18, r"store/queues/.*"),
    "pops": (18, r"broker/(pop/.*|processors/pop.*)|store/(tables/pop_tables|writing/pop_reader)"),
    "timers": (14, r"broker/(timer/.*|delay)|store/tables/timer_table"),
    "transactions": (14, r"broker/(transaction/.*|processors/transactions)"),
    "replication": (18, r"broker/replication/.*|store/(writing/replica_log|log/replica_acks)"),
    "access": (14, r"broker/(access/.*|processors/(plain_)?access)|grpc/access"),
    "client core": (14, r"client/core/.*"),
    "remoting": (14, r"remoting/.*"),
    "gRPC": (14, r"grpc/((http2|proxy)/)?\w+"),
    "name server": (10, r"namesrv/.*"),
    "codecs": (18, r"format/\w+|grpc/wire/\w+"),
    "Spark plan": (8, r"spark/(plan|store_planner|query_plan|filters|predicates|live/plan)"),
    "Arrow": (6, r"arrow/.*"),
    "store kernels": (20, r"store/kernels/.*"),
    "broker kernels": (20, r"broker/kernels/.*"),
    "format kernels": (12, r"format/kernels/.*"),
    "gRPC kernels": (8, r"grpc/kernels/.*"),
}
"""Number of mutants of each area, and its modules below ``src/reput``."""
ANCHOR_LINES_MAX = 6
_COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_SWAPPED = {ast.Lt: ("<", ">"), ast.LtE: ("<=", ">="), ast.Gt: (">", "<"), ast.GtE: (">=", "<=")}
_SIGNS: dict[type[ast.AST], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_LOG = re.compile(r"_?log\.(debug|info|warning|error|exception|critical)\(")
_UNREAD = ("__repr__", "__str__")


class BadAnchor(ValueError):
    """The lines of a mutant are not in its file, or several times."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one place.

    Args:
        id: Name of the area with a number.
        area: One of ``AREAS``.
        operator: What kind of change it is.
        file: Path of the source.
        before: The lines that are replaced.
        after: The lines that replace them.
        equivalent: Why no test can notice it; empty: it is a fault.
    """

    id: str
    area: str
    operator: str
    file: str
    before: str
    after: str
    equivalent: str = ""

    @property
    def is_compiled(self) -> bool:
        """True if kernels are compiled from what it changes, not only from the module's file."""
        shared = re.fullmatch(r"src/reput/(format|grpc/wire)/\w+\.py", self.file)
        at_top = not self.before.startswith(" ")
        is_kernel = "/kernels/" in self.file
        return is_kernel or (shared is not None and at_top)

    def is_in(self, source: str) -> bool:
        """Return whether the lines are in a source, once."""
        return _count(source, self.before) == 1

    def applied_to(self, source: str) -> str:
        """Return a source with the change. Raises ``BadAnchor``."""
        count = _count(source, self.before)
        if count != 1:
            raise BadAnchor(f"{self.id}: {self.file} has these lines {count} times, not once")
        return f"\n{source}".replace(f"\n{self.before}\n", f"\n{self.after}\n", 1)[1:]

    def line_in(self, source: str) -> int:
        """Return the number of the first line that differs."""
        pairs = zip(source.splitlines(), self.applied_to(source).splitlines(), strict=False)
        return next(number for number, (old, new) in enumerate(pairs, 1) if old != new)


def _count(source: str, lines: str) -> int:
    return sum(1 for _ in re.finditer(rf"(?m)^{re.escape(lines)}$", source))


Change = tuple[str, int, int, bytes]
"""Operator, first and last position in bytes, and what replaces these."""


def changes(source: str, is_kernel: bool = False) -> Iterator[Change]:
    """Yield the changes of a source.

    Args:
        source: The source.
        is_kernel: It returns numbers alone.
    """
    data = source.encode()
    starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]

    def begin(node: ast.expr | ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def between(operator: str, left: int, right: int, words: tuple[str, str]) -> Iterator[Change]:
        old, new = (word.encode() for word in words)
        place = data.find(old, left, right)
        if place >= 0:
            yield operator, place, place + len(old), new

    def of(node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                for name, table in (("comparison", _COMPARISONS), ("order", _SWAPPED)):
                    if type(operator) in table:
                        yield from between(name, end(left), begin(right), table[type(operator)])
            case ast.BoolOp(op=operator, values=values):
                words = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
                for left, right in itertools.pairwise(values):
                    yield from between("and or", end(left), begin(right), words)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _SIGNS:
                yield from between("sign", end(left), begin(right), _SIGNS[type(operator)])
            case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in _SIGNS:
                yield from between("sign", end(target), begin(value), _SIGNS[type(operator)])
            case ast.Constant(value=value) if type(value) is int:
                yield "constant", begin(node), end(node), str(value + 1).encode()
            case ast.Expr(value=ast.Call()):
                yield "call", begin(node), end(node), b"pass"
            case ast.Expr(value=ast.Await()):
                yield "await", begin(node), end(node), b"pass"
            case ast.Return(value=ast.Constant(value=bool() as value) as constant):
                yield "return", begin(constant), end(constant), str(not value).encode()
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "0"):
                yield "return", begin(value), end(value), b"0" if is_kernel else b"None"
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                other = b"max" if name == "min" else b"min"
                yield "min max", begin(node), begin(node) + 3, other
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "negation", begin(node), begin(operand), b""
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not _is_negated(node.test):
            test = data[begin(node.test) : end(node.test)]
            yield "negation", begin(node.test), end(node.test), b"not (%s)" % test

    yield from (change for node in _mutable(ast.parse(source)) for change in of(node))


def _is_negated(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one that users can notice: no annotations, assertions, log lines."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if not isinstance(child, ast.AST) or name in (
                "annotation",
                "returns",
                "decorator_list",
            ):
                continue
            if isinstance(child, ast.Assert | ast.Raise | ast.JoinedStr):
                continue
            if isinstance(child, ast.Expr) and _LOG.match(ast.unparse(child)):
                continue
            if isinstance(child, ast.FunctionDef) and child.name in _UNREAD:
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            yield child
            yield from _mutable(child)


def anchored(source: str, change: Change) -> tuple[str, str] | None:
    """Return the lines before and after a change; None if short lines are no anchor."""
    data = source.encode()
    _, first, last, new = change
    begin = data.rfind(b"\n", 0, first) + 1
    end = data.find(b"\n", last)
    for _ in range(ANCHOR_LINES_MAX):
        before = data[begin:end].decode()
        if before.count("\n") >= ANCHOR_LINES_MAX:
            return None
        if _count(source, before) == 1:
            return before, (data[begin:first] + new + data[last:end]).decode()
        if not begin:
            return None
        begin = data.rfind(b"\n", 0, begin - 1) + 1
    return None


def sources(root: Path) -> dict[str, str]:
    """Return the sources of the package by path."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / "src" / "reput").rglob("*.py"))
    }


def area_of(file: str, source: str) -> str | None:
    """Return the area of a source."""
    name = file.removeprefix("src/reput/").removesuffix(".py")
    # Beside compiled kernels there are modules that load and describe them.
    if "/kernels/" in name and "@njit" not in source:
        return None
    matching = [area for area, (_, pattern) in AREAS.items() if re.fullmatch(pattern, name)]
    return matching[-1] if matching else None


def draw(texts: Mapping[str, str], seed: int, known: Sequence[Mutant] = ()) -> list[Mutant]:
    """Draw the mutants of all areas.

    Args:
        texts: The sources by path.
        seed: The seed.
        known: Mutants of the last draw, whose reasons for equivalence are kept.
    """
    reasons = {(each.file, each.before, each.after): each.equivalent for each in known}
    places: dict[str, dict[str, list[tuple[str, Mutant]]]] = defaultdict(lambda: defaultdict(list))
    for file, source in texts.items():
        area = area_of(file, source)
        for change in changes(source, "/kernels/" in file) if area else ():
            lines = anchored(source, change)
            if lines is not None and area is not None:
                mutant = Mutant("", area, change[0], file, *lines)
                key = f"{seed} {file} {lines}".encode()
                places[area][change[0]].append((hashlib.sha256(key).hexdigest(), mutant))
    drawn = []
    for area, (count, _) in AREAS.items():
        # Each operator in turn, in an order that differs from area to area.
        order = sorted(
            places[area], key=lambda name: hashlib.sha256(f"{area}{name}".encode()).digest()
        )
        turns = itertools.zip_longest(
            *(sorted(places[area][name], key=lambda row: row[0]) for name in order)
        )
        rows = [row[1] for turn in turns for row in turn if row is not None][:count]
        for number, each in enumerate(rows, 1):
            equivalent = reasons.get((each.file, each.before, each.after), "")
            name = f"{area.lower().replace(' ', '-')}-{number:02}"
            drawn.append(dataclasses.replace(each, id=name, equivalent=equivalent))
    return drawn


def read(path: Path) -> list[Mutant]:
    """Read the list of mutants."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**row) for row in rows]


def _quoted(text: str) -> str:
    if "'''" in text or text.endswith("'"):
        return json.dumps(text, ensure_ascii=False)
    return f"'''\n{text}'''" if "\n" in text or "'" in text else f"'{text}'"


def write(path: Path, mutants: Sequence[Mutant], seed: int) -> None:
    """Write the list of mutants."""
    rows = [f"# Drawn with seed {seed} by scripts/mutants.py draw. Only `equivalent` is by hand.\n"]
    for mutant in mutants:
        row = dataclasses.asdict(mutant)
        values = [f"{name} = {_quoted(value)}\n" for name, value in row.items() if value]
        rows.append(f"[[mutant]]\n{''.join(values)}")
    path.write_text("\n".join(rows), encoding="utf-8")
