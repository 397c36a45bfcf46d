"""Answers of RocketMQ's own classes, recorded, so that most runs start no JVM for them.

``tests/data/java/README.md`` describes the files. A test that asks an ``Oracle`` is played

* from the recording, by default: with the examples of ``SEED``, for every version;
* with ``REPUT_INTEROP=all`` twice for each version: beside a JVM with the examples of the day, and
  with those of ``SEED``, whose answers must be the recorded ones;
* with ``REPUT_RECORD=java`` beside a JVM with the examples of ``SEED``, which writes the recording.
"""

import difflib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import seeds
from interop import java_oracle
from interop.java_oracle import JavaError, JavaOracle, Oracle, Word, line_of

FOLDER = Path(__file__).parents[1] / "data/java"
SEED = 20261130
"""Seed of the recorded examples."""
VARIABLE = "REPUT_RECORD"
SHARE = 10
"""Examples of a run beside a JVM for each one of a recording, unless the test says otherwise."""
_HOME = re.compile(r"/tmp/[\w./-]*/\w+Oracle-[\w.]+")
_NOW = re.compile(r'timestamp\\+":1[78]\d{11}')
SHOWN = 20
"""Number of different answers that are shown."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an oracle.

    Args:
        command: Its command.
        asked: Hash of its requests.
        answers: The answers, one a request; or the text of Java's error.
    """

    command: str
    asked: str
    answers: Sequence[Any] | str

    def result(self) -> list[Any]:
        """Return the answers, as new objects. Raises ``JavaError``."""
        if isinstance(self.answers, str):
            raise JavaError(self.answers)
        copied: list[Any] = json.loads(json.dumps(self.answers))
        return copied


def is_recording() -> bool:
    return os.environ.get(VARIABLE) == "java"


def digest(lines: Iterable[str]) -> str:
    """Return the hash of requests."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


# --- files ------------------------------------------------------------------------------

Recording = dict[str, dict[str, list[Call]]]
"""Test, version, and the calls in order."""


def parse(text: str) -> Recording:
    """Return what a file has."""
    recording: Recording = {}
    for line in text.splitlines():
        row = json.loads(line)
        call = Call(row["command"], row["asked"], row.get("answers", row.get("error")))
        for version in row["versions"]:
            recording.setdefault(row["test"], {}).setdefault(version, []).append(call)
    return recording


def render(recording: Mapping[str, Mapping[str, Sequence[Call]]]) -> str:
    """Return the text of a file: a line for each call; versions with equal calls share them."""
    lines = []
    for test, by_version in sorted(recording.items()):
        groups: list[tuple[list[str], Sequence[Call]]] = []
        for version, calls in sorted(by_version.items()):
            group = next((versions for versions, others in groups if others == calls), None)
            if group is None:
                groups.append(([version], calls))
            else:
                group.append(version)
        for versions, calls in groups:
            for call in calls:
                kind = "error" if isinstance(call.answers, str) else "answers"
                row = {"test": test, "versions": versions, "command": call.command}
                row |= {"asked": call.asked, kind: call.answers}
                lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    return "".join(lines)


def file_of(module: str) -> Path:
    """Return the file with the recordings of a module of tests."""
    return FOLDER / f"{module.removeprefix('test_')}.jsonl"


def read(module: str) -> Recording:
    """Return the recordings of a module of tests."""
    path = file_of(module)
    return parse(path.read_text(encoding="ascii")) if path.exists() else {}


def write(module: str, test: str, version: str, calls: Sequence[Call]) -> None:
    """Replace the calls of a test with a version."""
    path = file_of(module)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers record at the same time
        recording = read(module)
        recording.setdefault(test, {})[version] = list(calls)
        path.write_text(render(recording), encoding="ascii")
        path.with_suffix(".lock").unlink()


# --- oracles ----------------------------------------------------------------------------


class RecordedOracle(Oracle):
    """Oracle that gives recorded answers.

    Args:
        version: Version of RocketMQ.
        calls: The recorded calls of the test, in order.
    """

    is_recorded = True

    def __init__(self, version: str, calls: Sequence[Call]) -> None:
        super().__init__(version)
        self._calls = calls
        self._next = 0

    def ask(self, command: str, requests: Iterable[Sequence[Word]]) -> list[Any]:
        asked = digest(line_of(command, words) for words in requests)
        assert self._next < len(self._calls), f"{command} is not recorded: {AGAIN}"
        call = self._calls[self._next]
        self._next += 1
        # Requests that our code encodes differ if it encodes something else, too.
        assert (command, asked) == (call.command, call.asked), (
            f"call {self._next}: the requests of {command} are not the recorded ones. If the test "
            f"changed, {AGAIN}; else our code encodes them differently"
        )
        return call.result()

    def size(self, whole: int, recorded: int | None = None) -> int:
        return recorded or max(1, whole // SHARE)

    def check(self) -> None:
        """Assert that the test made all calls."""
        assert self._next == len(self._calls), f"{len(self._calls) - self._next} calls are missing"


AGAIN = f"record again with {VARIABLE}=java, and read the differences"


@dataclass(eq=False)
class _Listening(Oracle):
    """Oracle that keeps the answers of a JVM.

    Args:
        live: Oracle that starts a JVM.
    """

    live: Oracle
    calls: list[Call] = field(default_factory=list)
    is_recorded = True

    def __post_init__(self) -> None:
        super().__init__(self.live.version)

    def ask(self, command: str, requests: Iterable[Sequence[Word]]) -> list[Any]:
        requests = list(requests)
        asked = digest(line_of(command, words) for words in requests)
        try:
            answers: list[Any] | str = self.live.ask(command, requests)
        except JavaError as error:
            if not error.line:  # the JVM died
                raise
            answers = error.cause
        self.calls.append(Call(command, asked, answers))
        return self.calls[-1].result()

    def size(self, whole: int, recorded: int | None = None) -> int:
        return recorded or max(1, whole // SHARE)


def differences(recorded: Sequence[Call], live: Sequence[Call]) -> list[str]:
    """Return a paragraph for each of the first calls and answers that are not the recorded ones."""
    paragraphs = []
    if len(recorded) != len(live):
        paragraphs.append(f"{len(recorded)} calls are recorded, {len(live)} were made")
    for number, (old, new) in enumerate(zip(recorded, live, strict=False), start=1):
        place = f"call {number}, {new.command}"
        if (old.command, old.asked) != (new.command, new.asked):
            paragraphs.append(f"{place}: other requests than those recorded for {old.command}")
        elif _plain(old.answers) != _plain(new.answers):
            lists = not isinstance(old.answers, str) and not isinstance(new.answers, str)
            pairs = zip(old.answers, new.answers, strict=True) if lists else [(old, new)]
            paragraphs += [
                f"{place}, request {index}: " + "\n".join(_diff(before, after))
                for index, (before, after) in enumerate(pairs)
                if _plain(before) != _plain(after)
            ]
    return paragraphs[:SHOWN]


def _plain(value: Any) -> str:
    """Return a value as text, without the home folder of the JVM and the time of its tables."""
    return _NOW.sub("timestamp", _HOME.sub("/home", json.dumps(value, default=str)))


def _diff(before: Any, after: Any) -> Iterator[str]:
    texts = [json.dumps(v, indent=1, default=str).splitlines() for v in (before, after)]
    return difflib.unified_diff(*texts, "recorded", "live", lineterm="", n=0)


# --- fixtures ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """How a test is played: with which version, and where its answers come from."""

    version: str
    is_live: bool
    """Whether a JVM answers."""
    of_day: bool = False
    """Whether examples are those of the day, and not the recorded ones."""

    def __str__(self) -> str:
        return f"{self.version}-live" if self.of_day else self.version


def params(versions: Sequence[str], *, is_recorded: bool) -> list[Any]:
    """Return the parameters of a fixture."""
    if not is_recorded:
        kinds = [Kind(version, is_live=True, of_day=True) for version in versions]
    elif is_recording():
        kinds = [Kind(version, is_live=True) for version in versions]
    elif java_oracle.wants_all_versions():
        kinds = [Kind(v, True, of_day) for v in versions for of_day in (False, True)]
    else:
        kinds = [Kind(version, is_live=False) for version in versions]
    # One worker per version, so that there is one Java process per version.
    return [
        pytest.param(
            kind,
            id=str(kind),
            marks=[pytest.mark.xdist_group(f"rocketmq-{kind.version}")] if kind.is_live else [],
        )
        for kind in kinds
    ]


def oracle_fixture(
    kind: type[JavaOracle],
    versions: Sequence[str] = java_oracle.ALL_VERSIONS,
    *,
    is_recorded: bool = True,
) -> Any:
    """Return a fixture that provides an oracle of each version: recorded, or a JVM.

    Args:
        kind: Class that starts the JVM.
        versions: Versions of RocketMQ.
        is_recorded: False for answers that depend on the clock: a JVM gives them in each run.
    """

    @pytest.fixture(params=params(versions, is_recorded=is_recorded))
    def oracle(request: pytest.FixtureRequest) -> Iterator[Oracle]:
        played: Kind = request.param
        module = request.node.path.stem
        test = _name(request.node, str(played))
        failed = request.session.testsfailed
        if played.of_day:
            yield request.getfixturevalue("start_oracle")(kind, played.version)
            return
        with seeds.played(SEED):
            if not played.is_live:
                calls = read(module).get(test, {}).get(played.version, [])
                recorded = RecordedOracle(played.version, calls)
                yield recorded
                if request.session.testsfailed == failed:
                    recorded.check()
                return
            listening = _Listening(request.getfixturevalue("start_oracle")(kind, played.version))
            yield listening
        if request.session.testsfailed > failed:
            return
        if is_recording():
            write(module, test, played.version, listening.calls)
        else:
            old = read(module).get(test, {}).get(played.version, [])
            problems = differences(old, listening.calls)
            assert not problems, "\n".join([f"{test}, {played.version}: {AGAIN}", *problems])

    return oracle


def _name(item: Any, kind: str) -> str:
    """Return the name of a test without that of its kind of oracle: ``test_x``, ``test_x[a]``."""
    callspec = getattr(item, "callspec", None)
    parts = callspec.id.split("-") if callspec is not None else []
    rest = callspec.id.replace(kind, "", 1).strip("-") if parts else ""
    return f"{item.originalname}[{rest}]" if rest else str(item.originalname)
