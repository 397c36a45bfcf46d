"""Each golden script is a test: its commands must print the output in the script.

    pytest tests/scripts -k recovery             # scripts with this in their path
    REPUT_SCRIPTS=write pytest tests/scripts     # write the actual output into the scripts
    REPUT_SOAK=1 pytest tests/scripts            # each script with all subjects

A script that has several subjects, such as a broker with its fast path and without, runs with one
of them, another each day. Read written output line by line before you commit it: a script states
the right output.
"""

import contextlib
import os
from pathlib import Path

import pytest

import seeds
from scripts import runner

IS_WRITING = os.environ.get("REPUT_SCRIPTS") == "write"
IS_WHOLE = IS_WRITING or "REPUT_SOAK" in os.environ


def _cases() -> list[object]:
    cases = []
    for number, path in enumerate(sorted(runner.SCRIPTS.rglob("*.script")), seeds.today()):
        subjects = getattr(runner.commands_class(path), "SUBJECTS", ("",))
        if not IS_WHOLE:
            subjects = (subjects[number % len(subjects)],)
        name = str(path.relative_to(runner.SCRIPTS).with_suffix(""))
        for subject in subjects:
            case_id = f"{name}-{subject}" if subject else name
            cases.append(pytest.param(path, subject, id=case_id))
    return cases


@pytest.mark.parametrize(("path", "subject"), _cases())
def test_script(path: Path, subject: str, tmp_path: Path) -> None:
    text = path.read_text()
    commands_class = runner.commands_class(path)
    run = runner.Run(commands_class(tmp_path, subject), path)
    with contextlib.closing(run):
        actual = runner.render(run.run(runner.parse(text)))
    if actual == text:
        return
    is_first_subject = subject == getattr(commands_class, "SUBJECTS", ("",))[0]
    if IS_WRITING and is_first_subject:
        path.write_text(actual)
        return
    pytest.fail(
        f"{runner.difference(path, text, actual)}\n\n"
        "REPUT_SCRIPTS=write writes the actual output into the script: read it before a commit",
        pytrace=False,
    )
