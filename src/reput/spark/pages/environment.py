"""The templates of the reports, with the frame and the macros of ``reput.html``."""

from typing import Any

from jinja2 import BaseLoader, Environment

from reput.html import environment


def make_environment(*loaders: BaseLoader) -> Environment:
    """Make an environment with the templates of the reports, and of other loaders before them."""
    return environment.make_environment(*loaders, environment.package_loader("reput.spark.pages"))


def render(template: str, values: dict[str, Any]) -> str:
    """Render a template of a report."""
    return make_environment().get_template(template).render(values)
