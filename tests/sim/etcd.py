"""A model of etcd, and its host: linearizable, durable, and sometimes slow or without an answer.

A change is durable before it is answered, as etcd syncs its log; so a kill, a power cut and a
restart forget nothing. Leases begin again with a restart, and their time runs by the clock of the
host. With ``is_lossy`` connections end at random, before a request is served or after it, and some
requests are served late, when no client waits for the answer any more.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import h11
import msgspec

from reput.controller.etcd_client import Compare, Operation, Transaction
from sim.loop import Loop, spawn
from sim.node import Host

LOSS = 0.2
"""Part of the requests that get no answer if it is lossy; as many others are served late."""
LATE_S = 12.0
"""Longest time until a late request is served."""


class Value(NamedTuple):
    """A key's value."""

    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


class EtcdModel:
    """The keys and leases. Times are arguments, in seconds."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Value] = {}
        self._revision = 1
        self._leases: dict[int, tuple[int, float]] = {}
        self._last_lease = 1000

    def restart(self, now_s: float) -> None:
        """Let all leases begin again."""
        self._leases = {key: (ttl, now_s + ttl) for key, (ttl, _) in self._leases.items()}

    def serve(self, path: str, message: dict[str, Any], now_s: float) -> dict[str, Any]:
        """Return the answer to a request."""
        for lease in [key for key, (_, end_s) in self._leases.items() if end_s <= now_s]:
            self._revoke(lease)
        if path == "/v3/lease/grant":
            self._last_lease += 1
            self._leases[self._last_lease] = message["TTL"], now_s + message["TTL"]
            return {"ID": str(self._last_lease), "TTL": str(message["TTL"])}
        if path == "/v3/lease/keepalive":
            lease = message["ID"]
            if lease not in self._leases:
                return {"result": {"ID": str(lease)}}
            ttl = self._leases[lease][0]
            self._leases[lease] = ttl, now_s + ttl
            return {"result": {"ID": str(lease), "TTL": str(ttl)}}
        if path == "/v3/lease/revoke":
            self._revoke(message["ID"])
            return {}
        if path == "/v3/kv/range":
            return self._range(message["key"], message["range_end"])
        assert path == "/v3/kv/txn", path
        request = msgspec.convert(message, Transaction)
        is_so = all(map(self._holds, request.compare))
        steps = request.success if is_so else request.failure
        leases = {step.request_put.lease for step in steps if step.request_put is not None}
        if leases - self._leases.keys() - {0}:
            return {"error": "etcdserver: requested lease not found", "code": 5}
        if any(step.request_range is None for step in steps):
            self._revision += 1
        responses = [self._do(step) for step in steps]
        return {**self._header(), "succeeded": is_so, "responses": responses}

    def _header(self) -> dict[str, Any]:
        return {"header": {"revision": str(self._revision)}}

    def _holds(self, condition: Compare) -> bool:
        known = self.keys.get(condition.key)
        if condition.target == "MOD":
            return (known.mod_revision if known else 0) == condition.mod_revision
        return (known.create_revision if known else 0) == condition.create_revision

    def _do(self, step: Operation) -> dict[str, Any]:
        if step.request_range is not None:
            return {
                "response_range": self._range(step.request_range.key, step.request_range.range_end)
            }
        if step.request_delete_range is not None:
            self.keys.pop(step.request_delete_range.key, None)
        put = step.request_put
        if put is not None:
            known = self.keys.get(put.key)
            created = self._revision if known is None else known.create_revision
            self.keys[put.key] = Value(put.value, created, self._revision, put.lease)
        return {}

    def _range(self, key: bytes, range_end: bytes) -> dict[str, Any]:
        kvs = [
            {
                "key": name,
                "value": known.value,
                "create_revision": str(known.create_revision),
                "mod_revision": str(known.mod_revision),
                "lease": str(known.lease),
            }
            for name, known in sorted(self.keys.items())
            if (key <= name < range_end if range_end else name == key)
        ]
        return {**self._header(), "kvs": kvs}

    def _revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            self._revision += 1
            self.keys = {key: known for key, known in self.keys.items() if known.lease != lease}


class EtcdHost(Host):
    """A host with an etcd, which speaks its JSON gateway.

    Args:
        loop: The loop.
        name: Its name in scenarios.
        ip: Its address.
        drift: Relative error of its clock.
        chance: Source of lost answers.
        see: Gets each value that is put: key, value, address of the client.
    """

    port = 2379

    def __init__(
        self,
        loop: Loop,
        name: str,
        ip: str,
        drift: float,
        chance: random.Random,
        see: Callable[[bytes, bytes, str], object],
    ) -> None:
        super().__init__(loop, name, ip, drift)
        self.model = EtcdModel()
        self.is_lossy = False
        self.is_late = False
        """True if most transactions are served late."""
        self._chance = chance
        self._see = see

    async def start(self) -> None:
        """Start it."""
        process = self._begin()
        self.model.restart(self._now_s())
        await spawn(self.loop, process, self._listen(), self.name)

    def kill(self) -> None:
        """End it as ``kill -9`` would."""
        self.end()

    async def power_cut(self, chance: random.Random) -> None:
        """End it by a power cut."""
        self.end(is_silent=True)

    def _now_s(self) -> float:
        return self.clock.monotonic_ms() / 1000

    async def _listen(self) -> None:
        def accept() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(
                asyncio.StreamReader(loop=self.loop), self._serve, loop=self.loop
            )

        assert self.process is not None
        self.process.kept.append(self.loop.network.serve(self.process, accept, self.port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        client = writer.get_extra_info("peername")[0]
        path, body = "", b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = await reader.read(65_536)
                except OSError:
                    data = b""
                if not data:
                    break
                http.receive_data(data)
            elif isinstance(event, h11.Request):
                path, body = event.target.decode(), b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                late = LOSS if self.is_lossy else 0.0
                if self.is_late and path == "/v3/kv/txn":
                    late = 0.7
                if self._chance.random() < late:
                    await asyncio.sleep(self._chance.uniform(0, LATE_S))
                answer = self._answer(path, body, client)
                if answer is None:
                    break
                status = 404 if answer.startswith(b'{"error"') else 200
                head = h11.Response(
                    status_code=status, headers=[("Content-Length", str(len(answer)))]
                )
                for part in (head, h11.Data(data=answer), h11.EndOfMessage()):
                    writer.write(http.send(part) or b"")
                http.start_next_cycle()
        writer.close()

    def _answer(self, path: str, body: bytes, client: str) -> bytes | None:
        """Return an answer; None if it is lost."""
        fate = self._chance.random() if self.is_lossy else 1.0
        if fate < LOSS / 2:
            return None
        message = _decoded(msgspec.json.decode(body))
        before = dict(self.model.keys)
        answer = msgspec.json.encode(self.model.serve(path, message, self._now_s()))
        for key, known in self.model.keys.items():
            if before.get(key) != known:
                self._see(key, known.value, client)
        return None if fate < LOSS else answer


_BYTES = {"key", "range_end", "value"}


def _decoded(message: Any) -> Any:
    """Return a message whose texts of base64 are bytes."""
    if isinstance(message, list):
        return [_decoded(part) for part in message]
    if not isinstance(message, dict):
        return message
    return {
        name: msgspec.convert(part, bytes) if name in _BYTES else _decoded(part)
        for name, part in message.items()
    }
