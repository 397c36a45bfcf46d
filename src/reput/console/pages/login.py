"""The page on which users log in."""

from reput.console.page import Page


def page(target: str, error: str = "", *, status: int = 200) -> Page:
    """Return the page.

    Args:
        target: Path to go to afterwards.
        error: Why the last attempt failed.
        status: Status of HTTP.
    """
    return Page("login.html.j2", "Log in", {"to": target, "error": error}, status)
