"""Users and rules on a slave: those of its master, also once it has become master."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from certificates import Authority
from reput.broker.access.user_rules import UserRules
from reput.broker.replication import follower, metadata
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.master_tables import acls, users
from reput.broker.settings.access import AccessSettings
from reput.format.codes import RequestCode as Code, ResponseCode
from reput.format.command import Command
from reput.remoting.client import RemotingClient
from reput.remoting.tls_settings import TlsSettings
from reput.secret import Secret
from reput.store.config import BrokerRole
from world import Pair, Subject, signer, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "INTERVAL_MS", 50)
    monkeypatch.setattr(follower, "RETRY_MS", 50)


def settings(password: str = "word-of-brokers") -> AccessSettings:
    own = Secret(json.dumps({"accessKey": "brokers", "secretKey": password}))
    return world.access_settings(inner_client_authentication_credentials=own)


def rules_of(subject: Subject) -> UserRules:
    access = subject.parts.access
    assert access is not None
    assert isinstance(access.rules, UserRules)
    return access.rules


def is_copied(master: Subject, slave: Subject) -> bool:
    theirs, ours = rules_of(master), rules_of(slave)
    return ours.users.all() == theirs.users.all() and ours.acls.all() == theirs.acls.all()


async def change(subject: Subject, code: Code, fields: dict[str, str], **body: Any) -> None:
    reply = await subject.client.invoke(
        subject.address,
        Command(code, ext_fields=fields, body=json.dumps(body).encode()),
        world.TIMEOUT_MS,
    )
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def make(subject: Subject, name: str, *resources: str) -> None:
    """Make a user that may send to topics."""
    await change(subject, Code.AUTH_CREATE_USER, {"username": name}, password=f"{name}-pw")
    entries = [
        {"resource": resource, "actions": ["Pub"], "decision": "Allow"} for resource in resources
    ]
    if entries:
        policies = [{"policyType": "Custom", "entries": entries}]
        subject_fields = {"subject": f"User:{name}"}
        await change(subject, Code.AUTH_CREATE_ACL, subject_fields, policies=policies)


@contextlib.asynccontextmanager
async def pair(
    root: Path, *, tls: TlsSettings | None = None, of_slave: AccessSettings | None = None
) -> AsyncIterator[Pair]:
    """Run a master that waits for its slave, and the slave."""
    async with world.pair(
        root,
        role=BrokerRole.SYNC_MASTER,
        follows=True,
        store={"ha_send_heartbeat_interval": 200, "ha_tls_enable": tls is not None},
        of_slave={"access": of_slave or settings()},
        access=settings(),
        signer=signer(),
        tls=tls,
    ) as running:
        yield running


async def verdicts(subject: Subject, topic: str) -> list[tuple[str, int, int, str | None]]:
    """Return what each user is answered."""
    answers = []
    people = [(name, f"{name}-pw") for name in ("ann", "ben", "cid", "dan")]
    for name, password in [*people, ("ann", "wrong"), ("eve", "x")]:
        async with RemotingClient(signer=signer(name, password)) as client:
            for code, fields in (
                (Code.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}),
                (Code.GET_BROKER_CONFIG, {}),
                (Code.AUTH_CREATE_USER, {"username": "eve"}),
            ):
                reply = await client.invoke(
                    subject.address, Command(code, ext_fields=fields), world.TIMEOUT_MS
                )
                answers.append((name, int(code), reply.code, reply.remark))
            sender = Subject(subject.broker, client, [])
            reply = await sender.send(topic, b"of " + name.encode())
            answers.append((name, int(Code.SEND_MESSAGE_V2), reply.code, reply.remark))
    return answers


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
async def test_a_promoted_slave_refuses_what_its_master_refused(
    tmp_path: Path, is_encrypted: bool
) -> None:
    tls = None
    if is_encrypted:
        authority = Authority(tmp_path / "tls")
        own = authority.issue("broker")
        tls = TlsSettings(
            tls_enable=True,
            tls_server_cert_path=own.certificate,
            tls_server_key_path=own.key,
            tls_client_auth_server=True,
            tls_client_trust_cert_path=authority.path,
        )
    async with pair(tmp_path, tls=tls) as running:
        master, slave = running.master, running.slave
        for name, resources in (("ann", ["Topic:T"]), ("ben", []), ("cid", ["*"]), ("dan", ["*"])):
            await make(master, name, *resources)
        await until(lambda: is_copied(master, slave))
        await change(master, Code.AUTH_UPDATE_USER, {"username": "dan"}, userStatus="disable")
        await change(master, Code.AUTH_DELETE_USER, {"username": "cid"})
        while (await master.send("Early", b"")).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.005)  # the slave does not count yet
        slaves = master.parts.replication.slave_port
        # From here on the master counts it as available.
        await until(lambda: any(link.replica.acked_offset is not None for link in slaves.slaves))
        assert (await master.send("T", b"first")).code == ResponseCode.SUCCESS
        await until(lambda: is_copied(master, slave))
        expected = await verdicts(master, "T")
        codes = {name: code for name, request, code, _ in expected if request == 310}
        # A master that waits for its slave has stored nothing of a refused message.
        assert codes["ben"] == codes["cid"] == codes["dan"] == codes["eve"] == 16
        await running.promote()
        assert await verdicts(slave, "T") == expected
        held = (await slave.pull("T")).body
        bodies = [message.body for message in world.messages_in(held)]
        assert bodies == [b"first", b"of ann", b"of ann"]


async def test_what_the_master_lacks_goes_and_held_requests_end(tmp_path: Path) -> None:
    async with pair(tmp_path) as running:
        master, slave = running.master, running.slave
        await until(lambda: is_copied(master, slave))
        ended: list[bool] = []
        copy = slave.parts.replication.metadata._users_copy
        assert copy is not None
        end_revoked, copy._end_revoked = copy._end_revoked, lambda: ended.append(True)
        metadata = slave.parts.replication.metadata
        await metadata.stop()  # a round between both changes would remove the user at once
        await make(slave, "of-the-slave", "Topic:*")
        await metadata.start()
        await until(lambda: is_copied(master, slave))
        assert ended
        copy._end_revoked = end_revoked
        folder = tmp_path / "slave" / "config"
        await until(lambda: "of-the-slave" not in (folder / "users.json").read_text())
        await until(lambda: "of-the-slave" not in (folder / "acls.json").read_text())
        assert (folder / "users.json").stat().st_mode & 0o077 == 0


async def test_a_master_that_hides_passwords_changes_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as running:
        master, slave = running.master, running.slave
        await until(lambda: is_copied(master, slave))
        await slave.parts.replication.metadata.stop()
        await make(master, "clerk")
        entries = [{"resource": "*", "actions": ["Get", "List"], "decision": "Allow"}]
        policies = [{"policyType": "Custom", "entries": entries}]
        subject = {"subject": "User:clerk"}
        await change(master, Code.AUTH_CREATE_ACL, subject, policies=policies)
        copy = slave.parts.replication.metadata._users_copy
        assert copy is not None
        known = rules_of(slave).users.all()
        async with RemotingClient(signer=signer("clerk", "clerk-pw")) as client:
            with pytest.raises(Unanswered, match="innerClientAuthenticationCredentials"):
                await copy.copy(MasterRequests(client, master.address))
        assert rules_of(slave).users.all() == known


async def test_a_slave_that_the_master_does_not_know_does_not_follow(tmp_path: Path) -> None:
    async with pair(tmp_path, of_slave=settings("another-word")) as running:
        slave = running.slave
        status = slave.parts.replication.follower.status
        await until(lambda: "check signature failed." in status.reason)
        assert "another-word" not in status.reason
        assert status.received_bytes == 0
        assert rules_of(slave).users.get("brokers") is not None


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([], "there are none"),
        ([{"username": "ann", "password": ""}], "super users only"),
        ([{"password": "hidden"}], "no name"),
        ([{"username": "ann", "password": 7}], "password"),
        ([{"username": "ann", "password": "hidden", "userType": "King"}], "userType|King"),
    ],
)
def test_replies_that_are_no_users(entries: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        users(entries)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"subject": "User:ann"},
        {"subject": "User:ann", "policies": [{"policyType": "Custom"}]},
        {"subject": "User:ann", "policies": "text"},
    ],
)
def test_replies_that_are_no_rules(entry: Any) -> None:
    with pytest.raises(ValueError, match="rules"):
        acls([entry])
