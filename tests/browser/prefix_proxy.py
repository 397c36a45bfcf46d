"""A proxy that serves a server below a path, as nginx does with ``location /mq/``."""

import contextlib
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextlib.contextmanager
def prefix_proxy(url: str, prefix: str) -> Iterator[str]:
    """Serve the pages of a URL below a prefix, and nothing beside them; yield the new URL.

    Args:
        url: URL of the server, which ends with ``/``.
        prefix: Path as ``/mq``, which requests to the server do not have.
    """
    target = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with (
                contextlib.closing(HTTPConnection(target, timeout=60)) as server,
                contextlib.suppress(OSError),  # the browser has left a stream
            ):
                path = self.path.removeprefix(prefix)
                server.request(self.command, path, body, dict(self.headers.items()))
                response = server.getresponse()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()  # the end of the connection, of HTTP/1.0, is that of the body
                while data := response.read1(1 << 16):
                    self.wfile.write(data)

        do_GET = do_POST = forward

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}{prefix}/"
        finally:
            proxy.shutdown()
            thread.join()
