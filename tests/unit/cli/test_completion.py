"""Completion of the command line, in the shells themselves."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source $1; LISTMAX=0; echo rea''dy"
while zpty -r shell line; do [[ $line == *ready* ]] && break; done
zpty -w -n shell "$2"$'\t'"; echo en''ded"$'\n'
while zpty -r shell line; do print -r -- "$line"; [[ $line == *ended* ]] && break; done
"""
TERMINAL_CODES = re.compile(r"\x1b\[[\d;?]*\w")
LIMIT_S = 60


def script_of(shell: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "reput", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def in_bash(script: Path, line: str) -> list[str]:
    """Return the words that bash offers for the last word of a line."""
    code = (
        'source "$1"; read -ra COMP_WORDS <<< "$2"; [[ $2 == *" " ]] && COMP_WORDS+=("");'
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _reput; printf "%s\\n" "${COMPREPLY[@]}";'
        "complete -p reput >&2"
    )
    return output("bash", "-c", code, "bash", str(script), line).split()


def in_fish(script: Path, line: str) -> list[str]:
    """Return the words that fish offers for the last word of a line."""
    code = "source $argv[1]; complete -C $argv[2]"
    return [word.split("\t")[0] for word in
            output("fish", "--no-config", "-c", code, str(script), line).splitlines()]  # fmt: skip


def in_zsh(script: Path, line: str) -> list[str]:
    """Return the words of the line that zsh has completed; it has only one completion."""
    shown = TERMINAL_CODES.sub(" ", output("zsh", "-f", "-c", ZSH, "zsh", str(script), line))
    word = line.rpartition(" ")[2]
    return [part for part in shown.split() if part.startswith(word) and part != word][:1]


def output(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, input=""
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHELLS: dict[str, Callable[[Path, str], list[str]]] = {
    "bash": in_bash,
    "fish": in_fish,
    "zsh": in_zsh,
}


@pytest.fixture(scope="module", params=SHELLS)
def shell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[str]]:
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    script = tmp_path_factory.mktemp(name) / "script"
    script.write_text(script_of(name))
    return lambda line: SHELLS[name](script, line)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("reput pip", ["pipeline"]),
        ("reput topic l", ["list"]),
        ("reput store sh", ["show"]),
        ("reput access user cr", ["create"]),
        ("reput broker --for-", ["--for-java"]),
        ("reput -x topic create --que", ["--queues"]),
        ("reput message get --body j", ["json"]),
        ("reput completion f", ["fish"]),
    ],
)
@pytest.mark.sampled(3)
def test_a_word_is_completed(
    shell: Callable[[str], list[str]], line: str, completed: list[str]
) -> None:
    assert shell(line) == completed


def test_bash_offers_all_commands_and_files(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(script_of("bash"))
    assert {"clone", "reset", "show"} <= set(in_bash(script, "reput offset "))
    assert in_bash(script, "reput broker --config ") == []  # bash completes files itself


def test_a_wrong_shell_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reput", "completion", "tcsh"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "'bash', 'zsh', 'fish'" in done.stderr
