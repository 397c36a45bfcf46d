"""Write the field tables of the 5.x clients' service from its ``.proto`` files.

``python scripts/grpc_messages.py`` replaces ``src/reput/grpc/wire/grpc_messages.py``. A test
compares the module with the files.

Only the part of the language that the files use is read: proto3, messages with enums in them,
oneofs, maps of strings, and services. Anything else stops the script.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIRE = ROOT / "src" / "reput" / "grpc" / "wire"
PROTO = WIRE / "proto"
FILES = ("apache/rocketmq/v2/definition.proto", "apache/rocketmq/v2/service.proto")
TARGET = WIRE / "grpc_messages.py"
TOKEN = re.compile(r"//[^\n]*|\"[^\"]*\"|[\w.]+|[{}()<>=;,]")
SCALARS = frozenset({"string", "bytes", "int32", "int64", "bool", "float"})
WELL_KNOWN = {
    "google.protobuf.Timestamp": "protobuf.TIMESTAMP",
    "google.protobuf.Duration": "protobuf.DURATION",
}
HEAD = '''"""Messages, enums and methods of the 5.x clients' service.

Made by ``scripts/grpc_messages.py`` from ``grpc/wire/proto``; not to be edited. Tables are for
``reput.grpc.wire.protobuf``.
"""

import enum
from typing import NamedTuple

from reput.grpc.wire import protobuf
from reput.grpc.wire.protobuf import MessageField, MessageTable
'''
METHOD = '''
class Method(NamedTuple):
    """A method of the service."""

    name: str
    request: MessageTable
    reply: MessageTable
    is_request_stream: bool = False
    is_reply_stream: bool = False
'''


@dataclass
class Message:
    """Fields of a message: (number, name, type, label, oneof)."""

    fields: list[tuple[int, str, str, str, str]] = field(default_factory=list)


@dataclass
class Definitions:
    """Contents of the files."""

    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    service: str = ""
    methods: list[tuple[str, str, str, bool, bool]] = field(default_factory=list)
    """Name, request, reply, whether each is a stream."""


class Parser:
    """Reads one file into the definitions."""

    def __init__(self, text: str, definitions: Definitions) -> None:
        self.tokens: Iterator[str] = iter(
            [token for token in TOKEN.findall(text) if not token.startswith("//")]
        )
        self.definitions = definitions
        self.package = ""

    def take(self, *expected: str) -> str:
        """Return the next token, which must be an expected one if any are given."""
        token = next(self.tokens)
        if expected and token not in expected:
            sys.exit(f"{token!r} where {' or '.join(expected)} is expected")
        return token

    def read_file(self) -> None:
        """Read all statements."""
        for keyword in self.tokens:
            if keyword == "message":
                self.read_message()
            elif keyword == "enum":
                self.read_enum()
            elif keyword == "service":
                self.read_service()
            elif keyword == "package":
                self.package = self.take()
                self.take(";")
            elif keyword in ("syntax", "import", "option"):
                while self.take() != ";":
                    pass
            else:
                sys.exit(f"unexpected {keyword!r}")

    def read_enum(self) -> None:
        """Read an enum, also one within a message."""
        values = self.definitions.enums[self.take()] = []
        self.take("{")
        while (name := self.take()) != "}":
            self.take("=")
            values.append((name, int(self.take())))
            self.take(";")

    def read_message(self) -> None:
        """Read a message."""
        message = self.definitions.messages[self.take()] = Message()
        self.take("{")
        oneof = ""
        while True:
            token = self.take()
            if token == "}":
                if not oneof:
                    return
                oneof = ""
            elif token == "oneof":
                oneof = self.take()
                self.take("{")
            elif token == "enum":
                self.read_enum()
            else:
                message.fields.append(self.read_field(token, oneof))

    def read_field(self, token: str, oneof: str) -> tuple[int, str, str, str, str]:
        """Read a field from its first token on."""
        label = ""
        if token in ("optional", "repeated"):
            label, kind = token, self.take()
        elif token == "map":
            for expected in ("<", "string", ",", "string", ">"):
                self.take(expected)
            label, kind = "map", "string"
        else:
            kind = token
        name = self.take()
        self.take("=")
        number = int(self.take())
        self.take(";")
        return number, name, kind, label, oneof

    def read_service(self) -> None:
        """Read a service and its methods."""
        self.definitions.service = f"{self.package}.{self.take()}"
        self.take("{")
        while self.take("rpc", "}") == "rpc":
            name = self.take()
            request, is_request_stream = self.read_type()
            self.take("returns")
            reply, is_reply_stream = self.read_type()
            self.take("{")
            self.take("}")
            self.definitions.methods.append(
                (name, request, reply, is_request_stream, is_reply_stream)
            )

    def read_type(self) -> tuple[str, bool]:
        """Return a message in parentheses, and whether it is a stream."""
        self.take("(")
        token = self.take()
        is_stream = token == "stream"
        message = self.take() if is_stream else token
        self.take(")")
        return message, is_stream


def constant(name: str) -> str:
    """Return the constant of a message, such as SEND_MESSAGE_REQUEST."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def ordered(messages: dict[str, Message]) -> Iterator[str]:
    """Yield messages, each after those it contains."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> Iterator[str]:
        if name in path:
            sys.exit(f"{name} contains itself")
        if name in messages and name not in done:
            for _, _, kind, _, _ in messages[name].fields:
                yield from visit(kind, (*path, name))
            done.add(name)
            yield name

    for name in messages:
        yield from visit(name, ())


def field_line(definitions: Definitions, row: tuple[int, str, str, str, str]) -> str:
    """Return the code of a field."""
    number, name, kind, label, oneof = row
    words = [f"{number}", f'"{name}"']
    if kind in definitions.messages or kind in WELL_KNOWN:
        words += ['"message"', WELL_KNOWN.get(kind) or constant(kind)]
    elif kind in definitions.enums:
        words.append('"enum"')
    elif kind in SCALARS:
        words.append(f'"{kind}"')
    else:
        sys.exit(f"field {name} has the unknown type {kind}")
    if label:
        words.append(f'label="{label}"')
    if oneof:
        words.append(f'oneof="{oneof}"')
    return call("    ", "MessageField", words) + ","


def call(indent: str, name: str, words: list[str]) -> str:
    """Return the code of a call as the formatter leaves it."""
    line = f"{indent}{name}({', '.join(words)})"
    if len(line) < 100:
        return line
    return "\n".join(
        [f"{indent}{name}(", *(f"{indent}    {word}," for word in words), f"{indent})"]
    )


def module_text(paths: tuple[Path, ...]) -> str:
    """Return the module that describes the files."""
    definitions = Definitions()
    for path in paths:
        Parser(path.read_text(encoding="utf-8"), definitions).read_file()
    parts = [HEAD]
    for name, values in definitions.enums.items():
        lines = [f"    {value} = {number}" for value, number in values]
        head = f'\nclass {name}(enum.IntEnum):\n    """Values of ``{name}``."""\n\n'
        parts.append(head + "\n".join(lines) + "\n")
    parts.append(METHOD)
    tables = []
    for name in ordered(definitions.messages):
        fields = definitions.messages[name].fields
        lines = [field_line(definitions, row) for row in fields]
        tables.append(
            f'{constant(name)} = MessageTable(\n    "{name}",\n' + "\n".join(lines) + "\n)\n"
        )
    parts.append("\n" + "".join(tables))
    methods = []
    for name, request, reply, is_request_stream, is_reply_stream in definitions.methods:
        words = [f'"{name}"', constant(request), constant(reply)]
        words += ["is_request_stream=True"] * is_request_stream
        words += ["is_reply_stream=True"] * is_reply_stream
        methods.append(call("        ", "Method", words) + ",")
    constants = "".join(f"        {constant(name)},\n" for name in definitions.messages)
    parts[-1] += (
        f"TABLES = {{\n    table.name: table\n    for table in (\n{constants}    )\n}}\n"
        '"""Tables by name of the message."""\n\n'
        f'SERVICE = "{definitions.service}"\n"""Name of the service in paths."""\n'
        "METHODS = {\n    method.name: method\n    for method in (\n"
        + "\n".join(methods)
        + '\n    )\n}\n"""Methods by name."""\n'
    )
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(module_text(tuple(PROTO / path for path in FILES)), encoding="utf-8")
