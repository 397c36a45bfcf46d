"""A broker with access control 1.0: requests 50 to 54, held requests, and changed files."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import world
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import BrokerConfig
from reput.broker.settings.live import LiveConfig
from reput.errors import InvalidOption
from reput.format import headers
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.secret import Secret
from reput.store.config import StoreConfig
from world import Subject, pull_header, until

ACCOUNTS = """\
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- {accessKey: some-user, secretKey: user-secret, topicPerms: [T=PUB|SUB], groupPerms: [g=SUB]}
"""
SIGNERS = {
    name: Signer(Credentials(name, Secret(secret)))
    for name, secret in (("the-admin", "admin-secret"), ("some-user", "user-secret"))
}
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
HEADER = pull_header("T", consumer_group="g", sys_flag=6, suspend_timeout_millis=600_000)


class Owned:
    """A broker, and its file of accounts."""

    def __init__(self, subject: Subject, path: Path) -> None:
        self.subject = subject
        self.path = path

    async def ask(self, name: str, code: int, **fields: str) -> Command:
        request = SIGNERS[name].sign(Command(code, ext_fields=fields))
        return await self.subject.client.invoke(self.subject.address, request)

    async def pull(self, name: str = "some-user") -> "asyncio.Task[Command]":
        """Return a pull that is held."""
        fields = headers.encode(HEADER)
        asking = asyncio.create_task(self.ask(name, Code.PULL_MESSAGE, **fields))
        await until(lambda: len(self.subject.parts.held_pulls))
        return asking

    async def reload(self) -> None:
        control = self.subject.parts.plain_control
        assert control is not None
        await control.reload(self.subject.parts.clock.monotonic_ms() + 60_000)


@pytest.fixture
async def owned(tmp_path: Path) -> AsyncIterator[Owned]:
    path = tmp_path / "conf/plain_acl.yml"
    path.parent.mkdir()
    path.write_text(ACCOUNTS)
    settings = {"acl_enable": True, "rocketmq_home": str(tmp_path)}
    async with world.broker(tmp_path / "store", **settings) as subject:
        owned = Owned(subject, path)
        await owned.ask(
            "the-admin", Code.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums="1",
            writeQueueNums="1", perm="6", topicFilterType="SINGLE_TAG", defaultTopic="TBW102",
            order="false",
        )  # fmt: skip
        yield owned


async def test_accounts_are_created_changed_and_deleted(owned: Owned) -> None:
    new = {"accessKey": "new-user", "secretKey": "new-secret", "topicPerms": "T=PUB,U=DENY"}
    created = await owned.ask("the-admin", Code.UPDATE_AND_CREATE_ACL_CONFIG, **new)
    assert (created.code, created.remark) == (0, None)
    signer = Signer(Credentials("new-user", Secret("new-secret")))
    request = signer.sign(Command(Code.GET_ALL_TOPIC_CONFIG))
    invoke, address = owned.subject.client.invoke, owned.subject.address
    assert (await invoke(address, request)).code == 0
    assert "T=PUB" in owned.path.read_text()
    deleted = await owned.ask("the-admin", Code.DELETE_ACL_CONFIG, accessKey="new-user")
    assert deleted.code == 0
    refused = await invoke(address, request)
    assert (refused.code, refused.remark) == (1, f"{EXCEPTION}No acl config for new-user")
    again = await owned.ask("the-admin", Code.DELETE_ACL_CONFIG, accessKey="new-user")
    text = "The accesskey[new-user] corresponding to accessConfig has been deleted failed."
    assert (again.code, again.remark) == (210, text)


async def test_white_addresses_are_changed(owned: Owned) -> None:
    invoke, address = owned.subject.client.invoke, owned.subject.address
    unsigned = Command(Code.GET_ALL_TOPIC_CONFIG)
    assert (await invoke(address, unsigned)).code == 1
    change = Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    white = await owned.ask("the-admin", change, globalWhiteAddrs="127.0.0.*,10.0.3.7")
    assert white.code == 0
    assert (await invoke(address, unsigned)).code == 0
    still_signed = Command(change, ext_fields={"globalWhiteAddrs": "*"})
    assert (await invoke(address, still_signed)).code == 1
    wrong = await owned.ask("the-admin", change, globalWhiteAddrs="127.0.0.1,10.0.3")
    assert wrong.code == 211
    assert "10.0.3'" in str(wrong.remark)
    elsewhere = {"globalWhiteAddrs": "*", "aclFileFullPath": str(owned.path.parent / "x.yml")}
    refused = await owned.ask("the-admin", change, **elsewhere)
    text = "The globalWhiteAddresses[*] has been updated failed."
    assert (refused.code, refused.remark) == (211, text)


async def test_versions_of_all_files_are_shown(owned: Owned) -> None:
    await owned.ask("the-admin", Code.DELETE_ACL_CONFIG, accessKey="some-user")
    reply = await owned.ask("the-admin", Code.GET_BROKER_CLUSTER_ACL_INFO)
    assert reply.ext_fields is not None
    version = json.loads(reply.ext_fields["version"])
    assert version["counter"] == 1
    assert json.loads(reply.ext_fields["allAclFileVersion"]) == {str(owned.path): version}
    assert reply.ext_fields["brokerName"] == "broker-a"
    assert reply.ext_fields["brokerAddr"] == owned.subject.address


CODES = (50, 51, 52, 53, 54)


async def test_only_admins_change_accounts(owned: Owned) -> None:
    for code in CODES:
        reply = await owned.ask("some-user", code, accessKey="the-admin", globalWhiteAddrs="*")
        text = f"Need admin permission for request code={code}, but accessKey=some-user is not"
        assert (reply.code, reply.remark) == (1, EXCEPTION + text)
    assert owned.path.read_text() == ACCOUNTS


async def test_secrets_are_never_returned(owned: Owned) -> None:
    reply = await owned.ask("the-admin", Code.GET_BROKER_CLUSTER_ACL_CONFIG)
    assert (reply.code, reply.body) == (3, b"")
    short = {"accessKey": "new-user", "secretKey": "brief"}
    refused = await owned.ask("the-admin", Code.UPDATE_AND_CREATE_ACL_CONFIG, **short)
    assert refused.code == 209
    assert "brief" not in str(refused.remark)


async def test_wrong_permissions_are_refused(owned: Owned) -> None:
    for perms, text in (
        ("T", "Parse Resource format error for T."),
        ("T=PUB,U=X", "Parse resource permission error for U=X."),
    ):
        fields = {"accessKey": "new-user", "secretKey": "new-secret", "groupPerms": perms}
        reply = await owned.ask("the-admin", Code.UPDATE_AND_CREATE_ACL_CONFIG, **fields)
        assert reply.code == 209, perms
        assert str(reply.remark).startswith(text)


async def test_without_access_control_the_requests_are_unknown(subject: Subject) -> None:
    for code in CODES:
        reply = await subject.client.invoke(subject.address, Command(code))
        assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


async def test_the_held_pull_of_a_deleted_account_ends(owned: Owned) -> None:
    pulling = await owned.pull()
    await owned.ask("the-admin", Code.DELETE_ACL_CONFIG, accessKey="some-user")
    reply = await asyncio.wait_for(pulling, 20)
    assert (reply.code, reply.remark) == (1, f"{EXCEPTION}No acl config for some-user")
    assert not len(owned.subject.parts.held_pulls)


async def test_the_held_pulls_that_stay_allowed_stay_held(owned: Owned) -> None:
    pulling = await owned.pull("the-admin")
    await owned.ask("the-admin", Code.DELETE_ACL_CONFIG, accessKey="some-user")
    assert len(owned.subject.parts.held_pulls) == 1
    pulling.cancel()


async def test_changed_files_count_for_held_and_later_requests(owned: Owned) -> None:
    pulling = await owned.pull()
    owned.path.write_text(ACCOUNTS.replace("T=PUB|SUB", "T=PUB"))
    await owned.reload()
    reply = await asyncio.wait_for(pulling, 20)
    denied = (1, f"{EXCEPTION}No default permission for topic:T")
    assert (reply.code, reply.remark) == denied
    later = await owned.ask("some-user", Code.PULL_MESSAGE, **headers.encode(HEADER))
    assert (later.code, later.remark) == denied
    owned.path.write_text("accounts: [}")
    os.utime(owned.path, ns=(1, 1))
    await owned.reload()
    assert (await owned.ask("the-admin", Code.GET_BROKER_CLUSTER_ACL_INFO)).code == 0


async def test_a_start_without_a_readable_file_is_refused(tmp_path: Path) -> None:
    settings = {"acl_enable": True, "rocketmq_home": str(tmp_path)}
    with pytest.raises(InvalidOption, match=r"conf/plain_acl\.yml.*existing file"):
        async with world.broker(tmp_path / "store", **settings):
            pass


def test_both_access_controls_are_refused(tmp_path: Path) -> None:
    broker = BrokerConfig(acl_enable=True, rocketmq_home=str(tmp_path))
    with pytest.raises(InvalidOption, match=r"aclEnable.*1\.0 or 2\.0, not both"):
        LiveConfig(broker, StoreConfig(), access=AccessSettings(authentication_enabled=True))
