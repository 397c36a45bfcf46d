"""Requests to a controller, one after another, and what it answers: Java's, recorded, and ours.

``interop.record_controller`` writes the answers of Java 5.5.0 to ``tests/data/controller``.
"""

import asyncio
from typing import Any

import replica_requests as requests
from reput.format import fastjson
from reput.format.command import Command
from reput.remoting.client import RemotingClient

FIRST, SECOND, THIRD = "127.0.0.1:19011", "127.0.0.1:19012", "127.0.0.1:19013"
HEARTBEATS_S = 0.3
"""Time in which one-way requests and ends of connections are noticed."""

Step = tuple[str, int, Command | None]
"""Name, connection, and request; None closes the connection."""


def steps() -> list[Step]:
    """Return the requests; each connection is that of a broker, 0 that of mqadmin."""
    r = requests
    return [
        ("an unknown group has the first id", 0, r.next_id()),
        ("an unknown group has no info", 0, r.replica_info()),
        ("an unknown group is not registered", 1, r.register(1, FIRST)),
        ("an unknown group has no election", 1, r.elect(1)),
        ("an unknown group has no set", 1, r.alter(1, 1, [1], 1)),
        ("an unknown group is not cleaned", 0, r.clean("1")),
        ("the first id must be 1", 1, r.apply_id(2, f"{FIRST};1")),
        ("the first id", 1, r.apply_id(1, f"{FIRST};1")),
        ("the first id again", 1, r.apply_id(1, f"{FIRST};1")),
        ("an id that another broker has", 2, r.apply_id(1, f"{SECOND};1")),
        ("the next id", 2, r.next_id()),
        ("a second id", 2, r.apply_id(2, f"{SECOND};1")),
        ("a third id", 3, r.apply_id(3, f"{THIRD};1")),
        ("registered without a master", 1, r.register(1, FIRST)),
        ("an unknown id", 1, r.register(9, FIRST)),
        ("a heartbeat", 1, r.heartbeat(1, FIRST)),
        ("a heartbeat without an id", 1, r.heartbeat(None, FIRST)),
        ("the first election", 1, r.elect(1)),
        ("the election again", 1, r.elect(1)),
        ("registered with a master", 2, r.register(2, SECOND)),
        ("a heartbeat of the second", 2, r.heartbeat(2, SECOND, 1, 100)),
        ("registered as the third", 3, r.register(3, THIRD)),
        ("info of the group", 2, r.replica_info()),
        ("the set grows", 1, r.alter(1, 1, [1, 2], 1)),
        ("the same set", 1, r.alter(1, 1, [1, 2], 2)),
        ("a set of another master", 2, r.alter(2, 1, [2], 2)),
        ("a set of another epoch", 1, r.alter(1, 7, [1], 2)),
        ("a set with another epoch of the set", 1, r.alter(1, 1, [1], 7)),
        ("a set with an unknown replica", 1, r.alter(1, 1, [1, 9], 2)),
        ("a set with a dead replica", 1, r.alter(1, 1, [1, 3], 2)),
        ("a set without the master", 1, r.alter(1, 1, [2], 2)),
        ("all replicas", 0, r.in_sync_data()),
        ("replicas of an unknown group", 0, r.in_sync_data(["unknown"])),
        ("replicas of no group", 0, r.in_sync_data([])),
        ("an operator elects one that is not in sync", 0, r.elect(3, designate=True)),
        ("an operator elects an unknown one", 0, r.elect(8, designate=True)),
        ("an operator elects the master", 0, r.elect(1, designate=True)),
        ("an operator elects the second", 0, r.elect(2, designate=True)),
        ("info after the election", 1, r.replica_info()),
        ("living brokers are not cleaned", 0, r.clean("2")),
        ("a living group is not cleaned", 0, r.clean()),
        ("ids that are none", 0, r.clean("2;x")),
        ("a dead one is cleaned", 0, r.clean("3")),
        ("replicas after cleaning", 0, r.in_sync_data()),
        ("the end of the master", 2, None),
        ("no replica in sync is elected", 1, r.elect(1)),
        ("the whole living group is cleaned", 0, r.clean(living=True)),
        ("info after cleaning", 0, r.replica_info()),
        ("a request of the log of Raft", 0, Command(1014, ext_fields={})),
    ]


async def play(address: str) -> dict[str, Any]:
    """Return the answer to each step, by its name."""
    clients = [RemotingClient() for _ in range(4)]
    answers: dict[str, Any] = {}
    try:
        for name, number, request in steps():
            if request is None:
                await clients[number].close()
                await asyncio.sleep(HEARTBEATS_S)
                continue
            reply = await clients[number].invoke(address, request, 10_000)
            body = fastjson.parse(reply.body.decode()) if reply.body else None
            answers[name] = {
                "code": reply.code,
                "remark": reply.remark,
                "fields": dict(sorted((reply.ext_fields or {}).items())),
                "body": body,
            }
    finally:
        for client in clients:
            await client.close()
    return answers


async def first_answer(address: str) -> Command:
    """Return the answer to the first request, which changes nothing."""
    async with RemotingClient() as client:
        return await client.invoke(address, requests.next_id(), 3_000)
