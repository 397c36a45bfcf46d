"""Requests of access control 2.0 in order, with senders; and the replies that a broker gives.

The same requests go to official brokers and to ours; ``tests/data/access`` has Java's replies.
"""

import json
from pathlib import Path
from typing import Any

from interop.secured_cluster import ADMIN, ADMIN_SECRET
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.remoting.client import RemotingClient
from reput.secret import Secret

RECORDED = Path(__file__).parent / "data/access/replies-5.5.0.json"
"""Replies of Java 5.5.0 to ``SCRIPT``: sender, code and fields of each request with its reply."""
TIMEOUT_MS = 10_000
NO_REMARK = (None, "not set any response code")
"""Remarks of a success: Java leaves that of the empty reply."""

Asked = tuple[str, int, dict[str, str], Any]


def entry(resource: str, *actions: str, decision: str = "Allow", ips: tuple[str, ...] = ()) -> Any:
    return {
        "resource": resource, "actions": actions, "sourceIps": ips, "decision": decision
    }  # fmt: skip


def rules(subject: str, *entries: Any, kind: str = "Custom") -> Any:
    return {"subject": subject, "policies": [{"policyType": kind, "entries": entries}]}


ANN = {"username": "ann"}
OF_ANN = {"subject": "User:ann"}
QUEUE = {"topic": "none", "queueId": "0"}
BAD_RULES: tuple[list[Any], ...] = (
    [entry("Topic:a", "Any")],
    [entry("Topic:a")],
    [entry("Topic:a", "Pub", ips=("x.y",))],
    [entry("Topic:a", "Pub", ips=("300.1.1.1",))],
    [entry("Topic:a", "Pub", ips=("",))],
    [],
)
SCRIPT: tuple[Asked, ...] = (
    # users
    ("admin", 3001, ANN, {"username": "zz", "password": "ann-pw", "userType": "Normal"}),
    ("admin", 3001, ANN, {"password": "ann-pw"}),
    ("admin", 3001, {"username": "ben"}, {"password": "ben-pw"}),
    ("admin", 3001, {"username": "cid"}, {}),
    ("admin", 3001, {}, {"password": "x"}),
    ("admin", 3001, {"username": " "}, {"password": "x"}),
    ("admin", 3001, {"username": "dan"}, {"password": "x", "userStatus": "disable"}),
    ("admin", 3002, {"username": "none"}, {"password": "x"}),
    ("admin", 3002, {}, {"password": "x"}),
    ("admin", 3002, {"username": "dan"}, {"password": "y"}),
    ("admin", 3002, {"username": "dan"}, {}),
    ("admin", 3003, {"username": "none"}, None),
    ("admin", 3003, {}, None),
    *(("admin", 3004, {"username": name}, None) for name in ("ann", "dan", "none", "")),
    *(("admin", 3005, {"filter": text}, None) for text in ("", "an", "none")),
    # rules
    ("admin", 3009, OF_ANN, None),
    ("admin", 3006, OF_ANN, rules("User:ann", entry("Topic:a", "Pub"))),
    (
        "admin", 3006, OF_ANN,
        rules(
            "User:ann",
            entry("Topic:b*", "pub", "SUB", decision="deny", ips=("10.0.0.0/8", "1.2.3.4")),
            entry("Group:*", "All"), entry("cluster:C", "List"),
        ),
    ),
    ("admin", 3007, OF_ANN,
     rules("User:ann", entry("Topic:a", "Sub"), entry("Namespace:n", "Get"))),
    ("admin", 3007, OF_ANN, rules("User:ann", entry("Topic:d", "Sub"), kind="Default")),
    ("admin", 3009, OF_ANN, None),
    *(("admin", 3010, {"subjectFilter": text}, None) for text in ("", "nn", "none")),
    *(("admin", 3010, {"resourceFilter": text}, None) for text in ("b", "none")),
    ("admin", 3007, OF_ANN, rules("User:none", entry("Topic:a", "Pub"))),
    *(("admin", 3007, OF_ANN, rules("User:ann", *entries)) for entries in BAD_RULES),
    *(("admin", code, {"subject": "User:none"}, None) for code in (3008, 3009)),
    *(("admin", code, {}, None) for code in (3008, 3009)),
    # who may
    *(
        (name, code, fields, None)
        for name in ("nobody", "wrong", "unknown")
        for code, fields in ((3004, ANN), (26, {}), (30, QUEUE), (31_337, {"a": "b"}))
    ),
    ("ben", 3001, {"username": "eve"}, {"password": "x"}),
    ("ben", 202, {"topic": "none"}, None),
    ("admin", 3006, {"subject": "User:ben"}, rules(
        "User:ben", entry("Cluster:*", "All"), entry("Topic:no*", "Get"),
        entry("Topic:none", "Get", decision="Deny"), entry("Topic:n*", "Get"),
    )),
    ("ben", 202, {"topic": "none"}, None),
    ("ben", 202, {"topic": "never"}, None),
    ("ben", 3001, {"username": "eve"}, {"password": "x", "userType": "Super"}),
    ("ben", 3002, {"username": "dan"}, {"userType": "Super"}),
    ("ben", 3002, {"username": ADMIN}, {"password": "x"}),
    ("ben", 3003, {"username": ADMIN}, None),
    ("admin", 3008, {"subject": "User:ben"}, None),
    ("admin", 3008, {"subject": "User:ben"}, None),
    ("ben", 3004, ANN, None),
    ("admin", 3002, {"username": "ben"}, {"userStatus": "disable"}),
    ("ben", 202, {"topic": "none"}, None),
    *(("admin", 3003, {"username": name}, None) for name in ("ann", "ben", "dan")),
    ("admin", 3009, OF_ANN, None),
)  # fmt: skip
"""Sender, code, fields and body of requests, in order."""

PASSWORDS = {
    "admin": (ADMIN, ADMIN_SECRET), "ben": ("ben", "ben-pw"), "wrong": (ADMIN, "wrong"),
    "unknown": ("unknown", "wrong"),
}  # fmt: skip


async def replies(address: str) -> list[tuple[Asked, int, str | None, Any]]:
    """Send the requests; return the replies."""
    clients: dict[str, RemotingClient] = {"nobody": RemotingClient()}
    for who, (name, password) in PASSWORDS.items():
        clients[who] = RemotingClient(signer=Signer(Credentials(name, Secret(password))))
    results = []
    for asked in SCRIPT:
        who, code, fields, body = asked
        data = b"" if body is None else json.dumps(body).encode()
        request = Command(code, ext_fields=dict(fields), body=data)
        reply = await clients[who].invoke(address, request, TIMEOUT_MS)
        remark = None if reply.remark in NO_REMARK else reply.remark
        content = json.loads(reply.body) if reply.body and code >= 3000 else None
        results.append((asked, reply.code, remark, content))
    for client in clients.values():
        await client.close()
    return results


def as_json(results: list[tuple[Asked, int, str | None, Any]]) -> list[dict[str, Any]]:
    """Return the replies in the form of the file."""
    return [
        {"asked": list(asked[:3]), "code": code, "remark": remark, "body": body}
        for asked, code, remark, body in results
    ]


def write(results: list[tuple[Asked, int, str | None, Any]]) -> None:
    """Write the replies of an official broker, one a line."""
    lines = [json.dumps(entry, sort_keys=True) for entry in as_json(results)]
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="ascii")
