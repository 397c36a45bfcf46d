"""console.toml: stores by name; errors name what they refuse."""

from pathlib import Path

import pytest

from reput.console import settings
from reput.console.settings import StorePlace
from reput.errors import InvalidOption


def test_stores(tmp_path: Path) -> None:
    file = tmp_path / "console.toml"
    file.write_text(
        'controllers = ["10.0.0.1:9878"]\n'
        '[stores.old-broker]\npath = "store"\n\n[stores.b_2]\npath = "s3://bucket/b"\nlive = true\n'
    )
    assert settings.load(file).controllers == ["10.0.0.1:9878"]
    assert dict(settings.load(file).stores) == {
        "old-broker": StorePlace("old-broker", str(tmp_path / "store")),
        "b_2": StorePlace("b_2", "s3://bucket/b", may_be_live=True),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stores = 3", "'stores' is 3; allowed: a table: [stores]"),
        ("[stores.a]", "'stores.a.path' is None; allowed: the path or URI of a store folder"),
        ('[stores.a]\npath = "x"\nlive = 1', "'stores.a.live' is 1; allowed: true or false"),
        (
            '[stores.a]\npath = "x"\nlife = true',
            "'stores.a.life' is True; allowed: only live, path",
        ),
        ('[stores."../x"]\npath = "x"', "allowed: names of letters, digits, - and _"),
        ("controllers = 3", "'controllers' is 3; allowed: addresses"),
        ('controllers = ["here"]', "'controllers' is 'here'; allowed: addresses"),
        ("[shops.a]", "'shops' is "),
        ("[stores", "a file in TOML"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "console.toml"
    file.write_text(text)
    with pytest.raises(InvalidOption) as refusal:
        settings.load(file)
    assert problem in str(refusal.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="No such file"):
        settings.load(tmp_path / "console.toml")
