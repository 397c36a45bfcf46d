"""Record ``tests/data/grpc/replies.json``: ``python -m interop.record_replies``, in ``tests/``.

The official proxy 5.5.0, in cluster mode, answers the requests that the file has; what the file
says about our replies is kept.
"""

import tempfile
from pathlib import Path

import grpc_requests
from interop.clusters import until
from interop.java_cluster import JavaCluster
from interop.java_proxy import JavaProxy

SETTINGS = {
    "autoCreateSubscriptionGroup": True,
    "enableMixedMessageType": True,
    "enableLmq": True,
    "enableMultiDispatch": True,
}


def main() -> None:
    """Record."""
    entries = grpc_requests.cases()
    with (
        tempfile.TemporaryDirectory() as folder,
        JavaCluster("5.5.0", Path(folder), SETTINGS) as cluster,
        JavaProxy(cluster) as proxy,
    ):
        grpc_requests.prepare(cluster.namesrv)
        with grpc_requests.RequestClient(proxy.endpoint) as request_client:
            normal = {"client": "stranger", "method": "QueryRoute", "name": "ready"}
            ready = {**normal, "request": {"topic": {"name": "Normal"}}}
            until(lambda: request_client.ask(ready)["code"] == 20_000, 60)
            for entry in entries:
                entry["java"] = request_client.ask(entry)
    grpc_requests.write(entries)


if __name__ == "__main__":
    main()
