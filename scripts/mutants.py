"""Break the source in one place at a time, and find which suite of tests notices; ``make mutants``.

    python scripts/mutants.py run [--jobs 2] [--minutes 60] [--last package] [--day 0..6] [ID ...]
    python scripts/mutants.py report       # writes tests/PROTECTION.md
    python scripts/mutants.py draw         # writes tests/mutants.toml again, see mutation_places.py

``tests/mutants.toml`` has the mutants. Each is applied to a worktree of the last commit below
``build/mutants``, never to your files, and is played against ``STAGES`` of tests, the cheapest ones
first, until a test fails. A test kills a mutant if it fails with it and passes without it; of the
later stages, whose tests depend on time, it must fail with it twice. Results go to
``tests/mutants.json`` after each mutant: a run that was interrupted goes on with the others, and
``--last`` lets a run stop before the long stages, which a later run plays.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import affected_tests
import mutation_places
from mutation_places import LIST, Mutant

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "mutants.json"
SEED = 20261130
"""The seed with which the mutants were drawn, and of the tests in each run."""
STAGES = ("module", "package", "simulation", "faults", "others")
STAGE_S = {"module": 600, "package": 1200, "simulation": 600, "faults": 1200, "others": 1200}
"""Time limits in seconds. A stage that takes longer has not killed the mutant."""
TEST_S = 240
"""Time limit of one test in seconds. A test that takes longer has failed."""
REPEATED = ("simulation", "faults", "others")
"""Stages whose failures must happen twice."""
UNSOUND_MAX = 6
"""Number of tests that fail without the mutant, too, before a stage is given up."""
BESIDE = {
    "store": ("scripts", "behaviour", "model"),
    "broker": ("scripts", "behaviour", "model"),
    "format": ("scripts", "behaviour"),
    "namesrv": ("scripts",),
}
"""Suites that are played with all unit tests of a package."""
SIMULATED = ("store", "broker", "namesrv", "client", "format", "remoting")
BROKEN = {
    "store": ("fuzz", "crash", "faults"),
    "broker": ("fuzz", "crash", "faults"),
    "format": ("fuzz", "crash"),
    "grpc": ("fuzz",),
    "remoting": ("fuzz", "faults"),
    "client": ("faults",),
    "namesrv": ("faults",),
}
OTHERS = {"spark": ("spark",), "arrow": ("spark",)}
"""By default the tests beside Java."""


def tests_of(mutant: Mutant, tests: Path, chosen: Iterable[str]) -> dict[str, list[str]]:
    """Return the arguments of pytest for each stage, in their order.

    Args:
        mutant: The mutant.
        tests: The folder of tests.
        chosen: Tests of the mutant's module, as paths below it.
    """
    below = Path(mutant.file).parent.relative_to("src/reput")
    package = below.parts[0]
    home = f"unit/{below}"
    named = [path for path in chosen if (tests / path).is_file()]
    stages = {
        "module": [*named, *([home] if len(below.parts) > 1 else [])],
        "package": [f"unit/{package}", *BESIDE.get(package, ())],
        "simulation": ["sim"] if package in SIMULATED else [],
        "faults": BROKEN.get(package, ()),
        "others": OTHERS.get(package, ("interop",)),
    }
    return {
        stage: [f"tests/{path}" for path in paths if (tests / path).exists()]
        for stage, paths in stages.items()
    }


def failed_test(output: str) -> str | None:
    """Return the test that failed, or that did not end, or the file that could not be imported."""
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+?)(?: - .*)?$", output, re.MULTILINE)
    if failed is not None:
        return failed[1]
    if "\nTimeout (" in output:
        began = re.findall(r"^(tests/\S+?::\S+)", output, re.MULTILINE)
        return began[-1] if began else None
    return None


def suite_of(test: str) -> str:
    """Return the suite of a test: ``tests/unit/store``, ``tests/model``."""
    parts = test.partition("::")[0].split("/")
    return "/".join(parts[: 3 if parts[1] == "unit" else 2])


class Tree:
    """A worktree of the last commit, in which mutants are applied and played.

    Args:
        number: Number of the worktree.
    """

    def __init__(self, number: int) -> None:
        self.path = ROOT / "build" / "mutants" / f"tree-{number}"
        self.kept = self.path.with_name(f"kernels-{number}")
        self.log = self.path.with_name(f"tree-{number}.txt")
        memory = Path("/dev/shm")
        parent = memory if os.access(memory, os.W_OK) else self.path.parent
        self.temporary = parent / f"reput-mutants-{os.getuid()}-{number}"
        git = ("git", "worktree", "add", "--quiet", "--force", "--detach")
        if not self.path.exists():
            subprocess.run([*git, str(self.path), "HEAD"], cwd=ROOT, check=True)
        for command in (("checkout", "--quiet", "--force", "--detach"), ("clean", "-fdxq")):
            head = [_head()] if command[0] == "checkout" else []
            subprocess.run(["git", *command, *head], cwd=self.path, check=True)
        for library in (ROOT / "src").glob("reput/*/kernels/*.so"):
            shutil.copy2(library, self.path / library.relative_to(ROOT))
        self.build()
        shutil.rmtree(self.kept, ignore_errors=True)
        for library in self._libraries():
            target = self.kept / library.relative_to(self.path)
            target.parent.mkdir(parents=True)
            shutil.copy2(library, target)

    def _libraries(self) -> list[Path]:
        return sorted((self.path / "src").glob("reput/*/kernels/*.so"))

    def _environment(self, mark: str = "") -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.path / "src"),
            "REPUT_SEED": str(SEED),
            "REPUT_MUTANT": mark,
        }

    def build(self) -> bool:
        """Compile the kernels whose sources have changed; return False if they are refused."""
        code = "from reput.format.kernels import build; build.build_all('src')"
        environment = {**self._environment(), "REPUT_KERNELS": "reference"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.path, env=environment, capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode == 0

    def write(self, file: str, source: str) -> None:
        """Replace a source, without the bytecode of the old one: it may have the same second."""
        path = self.path / file
        path.write_text(source, encoding="utf-8")
        cached = Path(importlib.util.cache_from_source(str(path)))
        cached.unlink(missing_ok=True)

    @contextlib.contextmanager
    def applied(self, mutant: Mutant) -> Iterator[bool]:
        """Apply a mutant while the context is open; yield False if it cannot be compiled."""
        original = (self.path / mutant.file).read_text(encoding="utf-8")
        self.write(mutant.file, mutant.applied_to(original))
        try:
            yield not mutant.is_compiled or self.build()
        finally:
            self.write(mutant.file, original)
            for library in self._libraries():
                shutil.copy2(self.kept / library.relative_to(self.path), library)

    def pytest(self, words: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Run pytest; return its exit code, or None after the time limit, and its output."""
        options = ("-x", "-v", "--tb=short", "-n", "0", "-rfE", "-p", "no:cacheprovider")
        limits = ("-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true")
        mark = uuid.uuid4().hex
        command = [sys.executable, "-m", "pytest", *options, *limits]
        with self.log.open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--basetemp={self.temporary}", *words],
                cwd=self.path, env=self._environment(mark), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            _end(mark)
            process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)
        return code, self.log.read_text(encoding="utf-8", errors="replace")


def _head() -> str:
    command = ("git", "rev-parse", "HEAD")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _end(mark: str) -> None:
    """Kill the processes that a run started and left: an endless loop would cost a processor."""
    wanted = f"REPUT_MUTANT={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def play(
    tree: Tree, mutant: Mutant, stages: Mapping[str, Sequence[str]], result: dict[str, Any]
) -> dict[str, Any]:
    """Play a mutant against the stages that its result does not have; return the new result.

    Args:
        tree: The worktree.
        mutant: The mutant.
        stages: Arguments of pytest of the stages to play.
        result: What an earlier run has found: ``stages`` that the mutant survived, with seconds,
            ``killer``, and ``unsound`` tests, which fail without the mutant, too.
    """
    result = {"stages": {}, "killer": None, "unsound": [], **result}
    for stage, paths in stages.items():
        if stage in result["stages"] or result["killer"]:
            continue
        if not paths:
            result["stages"][stage] = {}
            continue
        began, cpu_s = time.monotonic(), _cpu_s()
        skipped: list[str] = []
        killer, is_cut = None, False
        while len(skipped) < UNSOUND_MAX and killer is None:
            words = [*paths, *(f"--deselect={test}" for test in skipped)]
            with tree.applied(mutant) as is_compiled:
                code, output = tree.pytest(words, STAGE_S[stage]) if is_compiled else (1, "")
                test = failed_test(output) if is_compiled else "compiler"
                again = code != 0 and test is not None and is_compiled
                if again and stage in REPEATED:
                    again = tree.pytest([str(test)], STAGE_S[stage])[0] not in (0, None)
                    if not again:
                        skipped.append(str(test))
                        continue
            if not is_compiled:
                killer = "compiler"
            elif code == 4 and test is None:  # conftest.py cannot be imported
                killer = str(paths[0])
            elif test is None:
                is_cut = code is None
                break
            elif tree.pytest([test], STAGE_S[stage])[0] == 0:
                killer = test
            else:
                skipped.append(test)
        seconds = {"s": time.monotonic() - began, "cpu_s": _cpu_s() - cpu_s}
        result["stages"][stage] = {name: round(value, 1) for name, value in seconds.items()}
        if is_cut:
            result["stages"][stage]["cut"] = True
        result["killer"] = killer
        result["unsound"] = sorted({*result["unsound"], *skipped})
    return result


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_tree: Tree


def _start_job(numbers: Any) -> None:
    global _tree
    _tree = Tree(numbers.get())


def _play_here(*arguments: Any) -> dict[str, Any]:
    return play(_tree, *arguments)


def in_turn(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return mutants in an order in which each part is a fair sample of the areas."""
    rank = {}
    for _, area in itertools.groupby(mutants, lambda mutant: mutant.area):
        group = list(area)
        rank.update({each.id: (place + 0.5) / len(group) for place, each in enumerate(group)})
    return sorted(mutants, key=lambda mutant: (rank[mutant.id], mutant.area))


def to_play(
    mutants: Iterable[Mutant],
    results: Mapping[str, Mapping[str, Any]],
    stages: Sequence[str],
    sources: Mapping[str, str],
) -> list[Mutant]:
    """Return the mutants that are neither killed, nor equivalent, nor lost, nor played before.

    Args:
        mutants: All mutants.
        results: What earlier runs have found, by id.
        stages: The stages to play.
        sources: The sources, by path.
    """

    def is_open(mutant: Mutant) -> bool:
        result = results.get(mutant.id, {})
        is_played = set(stages) <= result.get("stages", {}).keys()
        return not (result.get("killer") or mutant.equivalent or is_played)

    return [each for each in mutants if is_open(each) and each.is_in(sources[each.file])]


def run(arguments: argparse.Namespace) -> None:
    """Play mutants and write each result."""
    import grimp

    mutants = in_turn(mutation_places.read(LIST))
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    stages = STAGES[: STAGES.index(arguments.last) + 1]
    sources = mutation_places.sources(ROOT)
    chosen = to_play(mutants, results, stages, sources)
    if arguments.day is not None:
        chosen = [each for number, each in enumerate(mutants) if number % 7 == arguments.day]
        results, chosen = {}, to_play(chosen, {}, stages, sources)
    if arguments.ids:
        chosen = [each for each in mutants if each.id in arguments.ids]
    graph = grimp.build_graph("reput", cache_dir=str(ROOT / ".import_linter_cache"))
    files = affected_tests.files_of(ROOT / "tests", graph.modules)
    importers = affected_tests.importers_in(graph)
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(arguments.jobs):
        numbers.put(number)
    until = time.monotonic() + 60 * arguments.minutes
    with concurrent.futures.ProcessPoolExecutor(
        arguments.jobs, context, initializer=_start_job, initargs=(numbers,)
    ) as pool:
        waiting = iter(chosen)
        tasks: dict[concurrent.futures.Future[dict[str, Any]], Mutant] = {}
        while True:
            while len(tasks) < arguments.jobs and time.monotonic() < until:
                mutant = next(waiting, None)
                if mutant is None:
                    break
                choice = affected_tests.choose([mutant.file], files, importers, {})
                paths = tests_of(mutant, ROOT / "tests", choice.files)
                played = {stage: paths[stage] for stage in stages}
                task = pool.submit(_play_here, mutant, played, results.get(mutant.id, {}))
                tasks[task] = mutant
            if not tasks:
                break
            for task in concurrent.futures.wait(tasks, return_when="FIRST_COMPLETED").done:
                mutant = tasks.pop(task)
                results[mutant.id] = {**task.result(), "commit": _head()[:8]}
                print(mutant.id, results[mutant.id]["killer"] or "survived", flush=True)
                if arguments.day is None:
                    _write(results)


def _write(results: Mapping[str, Any]) -> None:
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results))
    staged = RESULTS.with_suffix(".tmp")
    staged.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    staged.replace(RESULTS)


def main(words: list[str]) -> int:
    """Run a command of the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="play mutants")
    command.set_defaults(call=run)
    command.add_argument("--jobs", type=int, default=2, help="number of worktrees")
    command.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after these")
    command.add_argument("--last", choices=STAGES, default=STAGES[-1], help="last stage to play")
    command.add_argument("--day", type=int, choices=range(7), help="a seventh; writes no results")
    command.add_argument("ids", nargs="*", help="these mutants alone")
    arguments = parser.parse_args(words)
    arguments.call(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
