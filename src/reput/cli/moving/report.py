"""Runs the checks of ``reput broker --check``, and prints their findings."""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter

from reput.broker.settings.config import BrokerSettings
from reput.cli import obstacles
from reput.cli.exit_codes import EXIT_DAMAGE, EXIT_ERROR
from reput.cli.moving import features, folder, machine, way_back
from reput.cli.moving.findings import Findings, MoveFinding, Verdict
from reput.cli.printing import printable
from reput.clock import SystemClock
from reput.errors import InvalidOption, ReputError
from reput.html.texts import count_text

_SETTINGS = "settings"
_WOULD_START = "The broker would start with these settings."


def check(
    load: Callable[[], BrokerSettings],
    given: Mapping[str, str],
    *,
    is_strict: bool,
    as_json: bool,
    for_java: str | None,
) -> int:
    """Check settings, store and machine, and print the findings.

    Args:
        load: Loads the settings of the broker.
        given: Keys and values of broker.conf.
        is_strict: Whether warnings forbid the move.
        as_json: Print a document instead of text.
        for_java: Version of the Java broker of the way back; None for the way to reput.

    Returns:
        0 if the broker may start; 1 with ``is_strict`` if there are warnings about store or
        machine; 2 if there is a reason to stop, or with ``is_strict`` a warning about settings.

    Raises:
        InvalidOption: ``for_java`` is no version of RocketMQ.
    """
    version = way_back.parse_version(for_java) if for_java is not None else None
    findings = Findings(_SETTINGS)
    store = ""
    try:
        settings = load()
    except InvalidOption as error:
        for problem in getattr(error, "problems", (error,)):
            findings.stop(_SETTINGS, str(problem), "correct it in broker.conf")
        results = findings.all
    else:
        store = settings.store.store_path_root_dir
        for text in settings.warnings:
            findings.warn(_SETTINGS, text, "remove it, or correct it")
        for obstacle in obstacles.of_files(settings):
            findings.stop(_SETTINGS, obstacle.fact, obstacle.action)
        results = [*findings.all, *_check_all(settings, given, version)]
    code = _exit_code(results, is_strict=is_strict)
    if as_json:
        print(json.dumps(_document(results, store, for_java, code), indent=2, ensure_ascii=False))
    else:
        _print_text(results, store, for_java, code)
    return code


def _check_all(
    settings: BrokerSettings, given: Mapping[str, str], version: way_back.Version | None
) -> list[MoveFinding]:
    now_ms = SystemClock().now_ms()
    checked = Findings("store")
    for obstacle in obstacles.of_folders(settings.store):
        checked.stop(obstacle.subject, obstacle.fact, obstacle.action)
    try:
        reader = folder.open_reader(settings.store)
    except ReputError as error:
        if not checked.all:
            checked.stop("folder", str(error), "set storePathRootDir, or --store")
        reader = None
    else:
        if reader is None:
            checked.warn(
                "folder",
                f"{settings.store.store_path_root_dir} has no store: an empty one would be made",
                "set storePathRootDir to the folder of the old broker, or --store",
            )
    parts = [checked]
    if reader is not None:
        parts.append(folder.check(reader, settings.store, now_ms))
        if version is None:
            parts.append(features.check(reader, settings, now_ms))
    parts.append(machine.check(reader, settings))
    if version is not None:
        parts.append(way_back.check(reader, settings, given, version))
    return [finding for part in parts for finding in part.all]


def _exit_code(results: Iterable[MoveFinding], *, is_strict: bool) -> int:
    worst = 0
    for finding in results:
        if finding.verdict is Verdict.STOP:
            return EXIT_ERROR
        if finding.verdict is Verdict.WARNING and is_strict:
            # A start with --strict refuses these settings.
            is_setting = finding.area == _SETTINGS
            worst = max(worst, EXIT_ERROR if is_setting else EXIT_DAMAGE)
    return worst


def _document(
    results: list[MoveFinding], store: str, for_java: str | None, code: int
) -> dict[str, object]:
    return {
        "go": code == 0,
        "exit_code": code,
        "store": store or None,
        "for_java": for_java,
        "counts": {
            verdict.value: sum(finding.verdict is verdict for finding in results)
            for verdict in Verdict
        },
        "findings": [
            {
                "area": finding.area,
                "subject": finding.subject,
                "verdict": finding.verdict.value,
                "found": finding.fact,
                "action": finding.action or None,
            }
            for finding in results
        ],
    }


def _print_text(results: list[MoveFinding], store: str, for_java: str | None, code: int) -> None:
    titles = {
        "store": f"Store {store}",
        "features": "Features in use",
        "machine": "Machine",
        "way back": f"Way back to RocketMQ {for_java}",
    }
    settings = [finding for finding in results if finding.area == _SETTINGS]
    for finding in settings:
        word = "wrong" if finding.verdict is Verdict.STOP else "warning"
        print(f"{word:<8} {printable(finding.fact)}")
    wrong = sum(finding.verdict is Verdict.STOP for finding in settings)
    if wrong:
        verb = "is" if wrong == 1 else "are"
        print(f"The broker would not start: {count_text(wrong, 'setting')} {verb} wrong.")
        return
    is_refused = settings and code == EXIT_ERROR and not _stops(results)
    print("The broker would not start with --strict." if is_refused else _WOULD_START)
    rest = (finding for finding in results if finding.area != _SETTINGS)
    for area, group in groupby(rest, attrgetter("area")):
        print(f"\n{printable(titles[area])}")
        for finding in group:
            print(f"{finding.verdict:<8} {finding.subject}: {printable(finding.fact)}")
            if finding.action:
                print(f"{'':<8} -> {printable(finding.action)}")
    print(f"\n{_conclusion(results, code)}")


def _stops(results: Iterable[MoveFinding]) -> int:
    return sum(finding.verdict is Verdict.STOP for finding in results)


def _conclusion(results: list[MoveFinding], code: int) -> str:
    count = sum(finding.verdict is Verdict.WARNING for finding in results)
    warnings = count_text(count, "warning")
    if stops := _stops(results):
        verb = "stops" if stops == 1 else "stop"
        return f"No go: {count_text(stops, 'finding')} {verb} the move; {warnings}."
    if code:
        return f"No go with --strict: {warnings}."
    return f"Go, with {warnings}." if count else "Go."
