"""Break the source in one place at a time, and find which suite of tests notices; ``make mutants``.

    python scripts/mutants.py run [--jobs 2] [--minutes 60] [--last package] [--day 0..6] [ID ...]
    python scripts/mutants.py cost unit/store model     # CPU seconds of suites without a mutant
    python scripts/mutants.py coverage unit             # lines that suites reach; needs coverage
    python scripts/mutants.py report                    # writes tests/PROTECTION.md
    python scripts/mutants.py draw                      # writes tests/mutants.toml again

``tests/mutants.toml`` has the mutants. Each is applied to a worktree of the last commit below
``build/mutants``, never to your files, and is played against ``STAGES`` of tests, the cheapest ones
first, until a test fails. A test kills a mutant if it fails with it and passes without it; of the
later stages, whose tests depend on time, it must fail with it twice. Results go to
``tests/mutants.json`` after each mutant: a run that was interrupted continues with the others, and
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
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import affected_tests
import mutation_places
import protection_report
from mutation_places import LIST, Mutant

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "mutants.json"
DOCUMENT = ROOT / "tests" / "PROTECTION.md"
SEED = 20261130
"""The seed with which the mutants were drawn, and of the tests in each run."""
STAGES = ("module", "importers", "package", "simulation", "faults", "others")
STAGE_S = dict.fromkeys(STAGES, 1200)
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
    near = [path for path in chosen if path.startswith(f"{home}/")]
    # Where no test of the folder is closer, all of the folder.
    folder = [home] if len(below.parts) > 1 and (tests / home).exists() else []
    stages = {
        "module": near or folder,
        "importers": [path for path in chosen if path not in near],
        "package": [*folder, f"unit/{package}", *BESIDE.get(package, ())],
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
    name = r"tests/[^\s\[]+(?:\[.*?\])?"  # in brackets there may be anything
    failed = re.search(rf"^(?:FAILED|ERROR) ({name})(?: - .*)?$", output, re.MULTILINE)
    if failed is not None:
        return failed[1]
    if "\nTimeout (" in output:
        began = re.findall(r"^(tests/\S+?::\S+)", output, re.MULTILINE)
        return began[-1] if began else None
    return None


class Tree:
    """A worktree of the last commit, in which mutants are applied and played.

    Args:
        number: Number of the worktree.
    """

    def __init__(self, number: int) -> None:
        self.path = ROOT / "build" / "mutants" / f"tree-{number}"
        self.kept = self.path.with_name(f"kernels-{number}")
        memory = Path("/dev/shm")
        parent = memory if os.access(memory, os.W_OK) else self.path.parent
        self.temporary = parent / f"reput-mutants-{os.getuid()}-{number}"
        _end(f"{self.path}:")  # of a run that was killed
        git = ("git", "worktree", "add", "--quiet", "--force", "--detach")
        if not self.path.exists():
            subprocess.run([*git, str(self.path), "HEAD"], cwd=ROOT, check=True)
        self.commit = _head()[:8]
        self.sound: set[str] = set()  # tests that pass without a mutant
        checkout = ("checkout", "--quiet", "--force", "--detach", self.commit)
        for command in (checkout, ("clean", "-fdxq")):
            subprocess.run(["git", *command], cwd=self.path, check=True)
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

    def pytest(
        self, words: Sequence[str], limit_s: float, below: Sequence[str] = ()
    ) -> tuple[int | None, str]:
        """Run pytest; return its exit code, or None after the time limit, and its output.

        Args:
            words: Its arguments.
            limit_s: Time limit in seconds.
            below: Module that runs it, with options.
        """
        options = ("-x", "-v", "--tb=short", "-n", "0", "-rfE", "-p", "no:cacheprovider")
        limits = ("-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true")
        mark = f"{self.path}:{uuid.uuid4().hex}"
        run_by = ("-m", *below) if below else ()
        command = [sys.executable, *run_by, "-m", "pytest", *options, *limits]
        with tempfile.TemporaryFile() as output:
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
            output.seek(0)
            text = output.read().decode(errors="replace")
        shutil.rmtree(self.temporary, ignore_errors=True)
        return code, text


def _head() -> str:
    command = ("git", "rev-parse", "HEAD")
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _end(mark: str) -> None:
    """Kill the processes whose mark begins with one: an endless loop would cost a processor."""
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
            elif test in tree.sound or tree.pytest([test], STAGE_S[stage])[0] == 0:
                tree.sound.add(test)
                killer = test
            else:
                skipped.append(test)
        seconds = {"s": time.monotonic() - began, "cpu_s": _cpu_s() - cpu_s}
        result["stages"][stage] = {name: round(value, 1) for name, value in seconds.items()}
        if is_cut:
            result["stages"][stage]["cut"] = True
        result["killer"] = killer
        result["unsound"] = sorted({*result["unsound"], *skipped})
    return {**result, "commit": tree.commit}


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


def run(arguments: argparse.Namespace) -> int:
    """Play mutants and write each result; return 1 if one survives that was killed before."""
    import grimp

    mutants = in_turn(mutation_places.read(LIST))
    results = read_results()
    before = dict(results["mutants"])
    played = results["mutants"] if arguments.day is None else {}
    stages = STAGES[: STAGES.index(arguments.last) + 1]
    if arguments.ids:
        mutants = [each for each in mutants if each.id in arguments.ids]
        played.update((name, {}) for name in arguments.ids)
    mutants = [each for each in mutants if arguments.without not in each.area]
    if arguments.day is not None:
        mutants = mutants[arguments.day :: 7]
    waiting = iter(to_play(mutants, played, stages, mutation_places.sources(ROOT)))
    graph = grimp.build_graph("reput", cache_dir=str(ROOT / ".import_linter_cache"))
    files = affected_tests.files_of(ROOT / "tests", graph.modules)
    importers = affected_tests.importers_in(graph)
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(arguments.jobs):
        numbers.put(number)
    until = time.monotonic() + 60 * arguments.minutes
    is_worse = False
    with concurrent.futures.ProcessPoolExecutor(
        arguments.jobs, context, initializer=_start_job, initargs=(numbers,)
    ) as pool:
        tasks: dict[concurrent.futures.Future[dict[str, Any]], Mutant] = {}
        while True:
            while len(tasks) < arguments.jobs and time.monotonic() < until:
                mutant = next(waiting, None)
                if mutant is None:
                    break
                choice = affected_tests.choose([mutant.file], files, importers, {})
                paths = tests_of(mutant, ROOT / "tests", choice.files)
                arguments_of = {stage: paths[stage] for stage in stages}
                task = pool.submit(_play_here, mutant, arguments_of, played.get(mutant.id, {}))
                tasks[task] = mutant
            if not tasks:
                return int(is_worse)
            for task in concurrent.futures.wait(tasks, return_when="FIRST_COMPLETED").done:
                mutant, result = tasks.pop(task), task.result()
                is_worse |= not result["killer"] and was_killed(before.get(mutant.id, {}), stages)
                print(mutant.id, result["killer"] or "survived", flush=True)
                if arguments.day is None:
                    played[mutant.id] = result
                    write_results(results)


def was_killed(result: Mapping[str, Any], stages: Sequence[str]) -> bool:
    """Return whether a mutant was killed in one of these stages."""
    return bool(result.get("killer")) and list(result["stages"])[-1] in stages


def read_results() -> dict[str, Any]:
    """Return what earlier runs have found: ``mutants``, ``suites`` and ``coverage``."""
    empty: dict[str, Any] = {"mutants": {}, "suites": {}, "coverage": {}}
    if not RESULTS.is_file():
        return empty
    return {**empty, **json.loads(RESULTS.read_text(encoding="utf-8"))}


def write_results(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write results, a line for each, so that a change of one is a change of its line."""
    parts = []
    for part, rows in results.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
        parts.append(f'"{part}": {{\n{lines}\n}}')
    staged = RESULTS.with_suffix(".tmp")
    staged.write_text(f"{{{', '.join(parts)}}}\n", encoding="utf-8")
    staged.replace(RESULTS)


def cost(arguments: argparse.Namespace) -> int:
    """Measure the CPU seconds of suites."""
    tree = Tree(0)
    for suite in arguments.suites:
        began = _cpu_s()
        code, _ = tree.pytest([f"tests/{suite}", "--maxfail=1000"], 24 * 3600)
        results = read_results()
        results["suites"][suite] = round(_cpu_s() - began)
        write_results(results)
        print(suite, results["suites"][suite], f"exit code {code}", flush=True)
    return 0


def coverage(arguments: argparse.Namespace) -> int:
    """Measure the lines that suites reach, in the process of the tests."""
    tree = Tree(0)
    data = tree.path.with_name("coverage")
    words = (f"--data-file={data}", "--source=src/reput")
    tree.pytest(
        [f"tests/{suite}" for suite in arguments.suites], 24 * 3600, ("coverage", "run", *words)
    )
    report = data.with_suffix(".json")
    command = ("coverage", "json", "--quiet", f"--data-file={data}", f"-o{report}")
    subprocess.run([sys.executable, "-m", *command], cwd=tree.path, check=True)
    results = read_results()
    results["coverage"] = {
        name.removeprefix("src/reput/"): [
            file["summary"]["covered_lines"],
            file["summary"]["num_statements"],
        ]
        for name, file in json.loads(report.read_text(encoding="utf-8"))["files"].items()
        if file["summary"]["num_statements"]
    }
    write_results(results)
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write the document."""
    mutants, results = mutation_places.read(LIST), read_results()
    DOCUMENT.write_text(
        protection_report.document(
            mutants, results, mutation_places.sources(ROOT), ROOT / "tests", SEED
        ),
        encoding="utf-8",
    )
    return 0


def draw(arguments: argparse.Namespace) -> int:
    """Draw mutants; those whose lines are unchanged stay."""
    known = mutation_places.read(LIST) if LIST.is_file() else []
    mutants = mutation_places.draw(mutation_places.sources(ROOT), SEED, known)
    mutation_places.write(LIST, mutants, SEED)
    print(f"seed {SEED}: {len(mutants)} mutants, {len({*mutants} - {*known})} of them new")
    return 0


def main(words: list[str]) -> int:
    """Run a command of the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for function in (report, draw):
        commands.add_parser(function.__name__).set_defaults(call=function)
    for function in (cost, coverage):
        command = commands.add_parser(function.__name__)
        command.set_defaults(call=function)
        command.add_argument("suites", nargs="+", help="folders of tests")
    command = commands.add_parser("run")
    command.set_defaults(call=run)
    command.add_argument("--jobs", type=int, default=2, help="number of worktrees")
    command.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after these")
    command.add_argument("--last", choices=STAGES, default=STAGES[-1], help="last stage to play")
    command.add_argument("--without", default="none", help="word of the areas to leave out")
    command.add_argument("--day", type=int, choices=range(7), help="a seventh; writes no results")
    command.add_argument("ids", nargs="*", help="these mutants alone")
    arguments = parser.parse_args(words)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return int(arguments.call(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
