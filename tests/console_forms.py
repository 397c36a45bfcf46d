"""Forms of the console's pages, as a browser would read them."""

import html
import re

_HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)"')
PREVIEWED = "Nothing has been changed"
"""Text of a preview before the form that confirms it."""


def hidden_fields(page: str) -> dict[str, str]:
    """Return the hidden fields of a page; of fields of the same name the last one."""
    return {html.unescape(name): html.unescape(value) for name, value in _HIDDEN.findall(page)}


def confirmation(preview: str) -> dict[str, str]:
    """Return the fields of the form that confirms a preview; empty if the page is none."""
    return hidden_fields(preview.partition(PREVIEWED)[2])
