"""Words that several pages use, and times and ages as the pages write them."""

from reput.console.access import ROLES, Right
from reput.html.texts import duration_text

SECTIONS = (
    ("", "Overview", Right.VIEW),
    ("topics", "Topics", Right.VIEW),
    ("groups", "Groups", Right.VIEW),
    ("brokers", "Brokers", Right.VIEW),
    ("replicas", "Replica groups", Right.VIEW),
    ("messages", "Messages", Right.READ),
    ("dlq", "Dead letters", Right.VIEW),
    ("stores", "Stores", Right.VIEW),
    ("audit", "Audit", Right.ADMIN),
)
"""First part of the path, name and right of each entry of the navigation."""

ERRORS = {
    400: "Not a request",
    401: "Not logged in",
    403: "Not allowed",
    404: "Not found",
    405: "Not a page",
    413: "Too large",
    421: "Not the name of this console",
    429: "Too many attempts",
    500: "A bug in the console",
    503: "No answer",
}
"""Titles of pages about a failure, by status."""


ROLE_OF = {right: name for name, right in ROLES.items()}
"""Name of the lowest role that has a right."""


def age_text(age_ms: int) -> str:
    """Format the age of an event: ``now``, ``12 s ago``."""
    if age_ms < 1000:
        return "now"
    return f"{duration_text(age_ms // 1000 * 1000)} ago"


def rate_text(rate: float) -> str:
    """Format a number of messages per second."""
    if rate >= 100:
        return f"{rate:,.0f}"
    return f"{rate:.1f}" if rate else "0"
