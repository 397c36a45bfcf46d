"""docs/how-to/inspect-a-store.md shows the exact output of the commands."""

import re
import shlex
from pathlib import Path

import pytest

import golden
from reput.cli import main as cli

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "inspect-a-store.md"
STORES = {
    "store": ("4.9.7", "clean"),
    "crashed": ("4.9.7", "unclean"),
    "damaged": ("5.5.0", "torn/crc-late"),
}


def sessions() -> list[tuple[str, str]]:
    """Return the commands of the guide with their outputs."""
    blocks = re.findall(
        r"^```console\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    sessions_ = [part.partition("\n") for part in parts]
    return [(command, output) for command, _, output in sessions_]


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores of the guide, under their names in the current folder."""
    for name, location in STORES.items():
        (tmp_path / name).symlink_to(golden.unpack(*location))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "output"), sessions(), ids=lambda text: str(text)[:60])
@pytest.mark.usefixtures("stores")
def test_the_output_is_as_shown(
    capsys: pytest.CaptureFixture[str], command: str, output: str
) -> None:
    program, *arguments = shlex.split(command)
    assert program == "reput"
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    printed = out + err
    assert code == (2 if err.startswith("reput: no ") else int("damaged" in arguments))
    if output.endswith("...\n"):
        assert printed.startswith(output.removesuffix("...\n"))
    else:
        assert printed == output


def test_every_command_is_shown() -> None:
    shown = {command.split()[2] for command, _ in sessions()}
    assert shown == {"info", "ls", "show", "dump", "verify"}
