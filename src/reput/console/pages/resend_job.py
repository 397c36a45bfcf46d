"""A resend of all dead letters: its progress, and its receipt by queue."""

from reput.console.page import Page, RequestFailed, View
from reput.console.resending import ResendJob


def job_of(view: View) -> ResendJob:
    """Return the job of the path. Raises ``RequestFailed``."""
    job = view.parts.resend_jobs.get(view.names["group"], view.names["job"])
    if job is None:
        raise RequestFailed(
            404, "there is no such job: the console remembers the last ones since its start"
        )
    return job


async def page(view: View) -> Page:
    """Return the page of a job."""
    job = job_of(view)
    title = f"Resend of dead letters of {job.order.group}"
    return Page("resend_job.html.j2", title, {"job": job.document()})


def version(view: View) -> int:
    """Return the version of the job."""
    return job_of(view).version
