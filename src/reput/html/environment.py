"""The Jinja2 environment of the pages: templates become one HTML file that loads nothing.

Topics, tags, groups and hosts are untrusted input. Every value is escaped, control characters and
lone surrogates become U+FFFD, and the content security policy allows no style and no script but
those in the page, by their hashes. An undefined value is an error.
"""

import base64
import hashlib
import importlib.resources
import re

from jinja2 import BaseLoader, ChoiceLoader, Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from reput.html import texts

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def make_environment(*loaders: BaseLoader) -> Environment:
    """Make an environment with the templates of this package, and of other loaders before them."""
    pages = Environment(
        loader=ChoiceLoader([*loaders, package_loader("reput.html")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=without_controls,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    pages.filters.update(
        number=texts.number_text,
        count_of=texts.count_text,
        size=texts.size_text,
        time=texts.time_text,
        percent=_percent,
        pixels=_pixels,
    )
    style = read_text("reput.html", "page.css")
    script = read_text("reput.html", "page.js")
    pages.globals.update(
        style=Markup(style),
        script=Markup(script),
        style_hash=source_hash(style),
        script_hash=source_hash(script),
    )
    return pages


def package_loader(package: str) -> BaseLoader:
    """Return a loader of the folder ``templates`` of a package."""

    def source(name: str) -> str | None:
        try:
            return read_text(package, name)
        except FileNotFoundError:
            return None

    return FunctionLoader(source)


def read_text(package: str, name: str) -> str:
    """Read a file of the folder ``templates`` of a package, which may be imported from a zip."""
    file = importlib.resources.files(package) / "templates" / name
    return file.read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """Return the source expression of a content security policy for an inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def without_controls(value: object) -> object:
    """Return a value as text without control characters; markup of templates unchanged."""
    if hasattr(value, "__html__"):  # rendered already, by a macro
        return value
    return _CONTROL.sub("\ufffd", str(value))


def _percent(value: float) -> str:
    """Format a position or width inside a plot: plots scale sideways, their text does not."""
    return f"{value:.2f}%"


def _pixels(value: float) -> str:
    return f"{value:.1f}"
