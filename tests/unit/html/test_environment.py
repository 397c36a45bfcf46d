"""Templates of the pages: values are escaped or refused, and templates load from a zip."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

import reput
from reput.html import charts
from reput.html.environment import make_environment

TEMPLATES = Path(reput.__file__).parent / "html" / "templates"
ALL_TEMPLATES = sorted(Path(reput.__file__).parent.rglob("templates/*.j2"))


def rendered(source: str, **values: object) -> str:
    loader = jinja2.DictLoader({"test.html.j2": source})
    return make_environment(loader).get_template("test.html.j2").render(values)


def test_values_are_escaped_and_without_control_characters() -> None:
    assert rendered("<p title='{{ text }}'>{{ text }}</p>", text="<'\x00\ud800\"&>") == (
        "<p title='&lt;&#39;\ufffd\ufffd&#34;&amp;&gt;'>&lt;&#39;\ufffd\ufffd&#34;&amp;&gt;</p>"
    )


def test_the_output_of_a_macro_is_escaped_once() -> None:
    source = "{% import 'macros.html.j2' as draw %}{{ draw.name(text) }}"
    assert rendered(source, text="a<b") == "<bdi>a&lt;b</bdi>"


@pytest.mark.parametrize("source", ["{{ missing }}", "{% if missing %}{% endif %}"])
def test_an_undefined_value_is_an_error(source: str) -> None:
    with pytest.raises(jinja2.UndefinedError):
        rendered(source)


def test_no_template_switches_escaping_off() -> None:
    assert len(ALL_TEMPLATES) > 3
    for file in ALL_TEMPLATES:
        source = file.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe|autoescape|Markup", source), file.name


def test_no_style_is_written_in_markup() -> None:
    for file in ALL_TEMPLATES:
        assert not re.search(r"\s(style|on\w+)=", file.read_text(encoding="utf-8")), file.name


def test_each_color_has_a_style() -> None:
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    for color in (*(f"s{number}" for number in range(charts.COLOR_COUNT)), "sx"):
        assert f".{color} {{ color: var(--{color}); }}" in style
        assert len(re.findall(rf"--{color}: light-dark\(#\w+, #\w+\);", style)) == 1


def test_a_page_is_rendered_from_a_zip(tmp_path: Path) -> None:
    archive = shutil.make_archive(
        str(tmp_path / "reput"), "zip", Path(reput.__file__).parents[1], "reput"
    )
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from reput.html import environment\n"
        "assert environment.__file__.startswith(sys.argv[1])\n"
        "values = {'title': 'a <page>', 'text': 'b'}\n"
        "source = environment.make_environment().from_string("
        "'{% extends \"page.html.j2\" %}{% block main %}<p>{{ text }}</p>{% endblock %}')\n"
        "print(source.render(values))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, archive],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "<title>a &lt;page&gt;</title>" in done.stdout
    assert "<p>b</p>" in done.stdout
    assert ".card {" in done.stdout
