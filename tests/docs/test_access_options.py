"""The reference page of access control agrees with the code."""

import ast
import inspect
import re
from pathlib import Path

from reput import config
from reput.broker.settings.access import AccessSettings
from reput.secret import NO_SECRET

PAGE = (Path(__file__).parents[2] / "docs/reference/access-options.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`)? *\| (.+) \|$", re.MULTILINE)


def test_every_key_with_its_default_and_meaning() -> None:
    (class_,) = ast.parse(inspect.getsource(AccessSettings)).body
    assert isinstance(class_, ast.ClassDef)
    defaults = {
        key: "" if text == repr(NO_SECRET) else text
        for key, text in config.texts(AccessSettings()).items()
    }
    expected = []
    for entry, text in zip(class_.body, class_.body[1:], strict=False):
        if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(entry.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            meaning = " ".join(str(text.value.value).split()).replace("``", "`")
            key = config.key_of(entry.target.id)
            expected.append((key, defaults[key], meaning))
    assert ROW.findall(PAGE) == expected
    assert {key for key, _, _ in expected} == defaults.keys()
