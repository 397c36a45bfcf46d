"""A resend of all dead letters: its progress, and its receipt by queue."""

from reput.console.actions.dead_letters import job_of
from reput.console.page import Page, View


async def page(view: View) -> Page:
    """Return the page of a job."""
    job = job_of(view)
    title = f"Resend of dead letters of {job.order.group}"
    return Page("resend_job.html.j2", title, {"job": job.document()})


def version(view: View) -> int:
    """Return the version of the job."""
    return job_of(view).version
