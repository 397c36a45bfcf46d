"""The reference page of TLS agrees with the code."""

import ast
import inspect
import re
from pathlib import Path

from reput import config
from reput.remoting.tls_settings import TlsSettings

PAGE = (Path(__file__).parents[2] / "docs/reference/tls-options.md").read_text()
ROW = re.compile(r"^\| `([\w.]+)` \| (?:`([^`]*)`)? *\| (.+) \|$", re.MULTILINE)


def test_every_key_with_its_default_and_meaning() -> None:
    (class_,) = ast.parse(inspect.getsource(TlsSettings)).body
    assert isinstance(class_, ast.ClassDef)
    meanings = {}
    for entry, text in zip(class_.body, class_.body[1:], strict=False):
        if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(entry.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            meaning = " ".join(str(text.value.value).split()).replace("``", "`")
            meanings[config.key_of(entry.target.id)] = meaning
    defaults = TlsSettings().pairs()
    rows = [(key, default, meaning) for key, default, meaning in ROW.findall(PAGE)]
    renamed = TlsSettings.keys.renamed
    assert rows == [(key, default, meanings[renamed[key]]) for key, default in defaults.items()]
