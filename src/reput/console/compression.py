"""Compresses responses, except those to requests of foreign pages.

The size of a compressed page says how much a text in its URL has in common with the page (BREACH).
Only a foreign page sends URLs of its choice with the user's cookie: its requests are not answered
compressed. Tokens of forms are masked as well, so that they differ in each page.
"""

import gzip
from collections.abc import Mapping

from starlette.responses import Response, StreamingResponse

BODY_BYTES_MIN = 1_024
"""Size of a body from which on it is compressed."""
_LEVEL = 4
_OWN_SITES = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` for links in the console and for typed or scanned addresses."""


def compress(response: Response, headers: Mapping[str, str]) -> None:
    """Compress the body of a response, if the request allows it.

    Args:
        response: The response; streams are left as they are.
        headers: Headers of the request, by names in lower case.
    """
    response.headers.add_vary_header("Accept-Encoding")
    if isinstance(response, StreamingResponse) or len(response.body) < BODY_BYTES_MIN:
        return
    if not _accepts_gzip(headers.get("accept-encoding", "")) or _may_be_foreign(headers):
        return
    response.body = gzip.compress(bytes(response.body), _LEVEL, mtime=0)
    response.headers["Content-Encoding"] = "gzip"
    response.headers["Content-Length"] = str(len(response.body))


def _may_be_foreign(headers: Mapping[str, str]) -> bool:
    site = headers.get("sec-fetch-site")
    # Programs send neither; old browsers send the cookie alone.
    return "cookie" in headers if site is None else site not in _OWN_SITES


def _accepts_gzip(text: str) -> bool:
    for choice in text.lower().split(","):
        name, _, weight = choice.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
