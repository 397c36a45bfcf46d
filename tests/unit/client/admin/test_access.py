"""``Admin``: users and rules, with a broker that has access control 2.0."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from access_broker import ROOT, ROOT_PASSWORD, access_broker, client_of
from reput.client.admin import AccessUser, Admin, PartlyDone
from reput.errors import AccessRefused
from reput.format.access import PolicyType, UserStatus, UserType
from reput.format.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from reput.secret import Secret
from reput.testing.local_broker import LocalBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """Start a broker for all tests of this module."""
    with access_broker() as running:
        yield running


@pytest_asyncio.fixture
async def admin(broker: LocalBroker) -> AsyncIterator[Admin]:
    async with Admin(client=client_of(broker, ROOT, ROOT_PASSWORD)) as started:
        yield started


def rules(user: str, *entries: PolicyEntryInfo, policy: str = "Custom") -> AclInfo:
    policies = [PolicyInfo(policy_type=policy, entries=list(entries))]
    return AclInfo(subject=f"User:{user}", policies=policies)


def rule(resource: str, *actions: str) -> PolicyEntryInfo:
    return PolicyEntryInfo(resource=resource, actions=list(actions), decision="Allow")


async def test_users(broker: LocalBroker, admin: Admin) -> None:
    assert await admin.user("ann") is None
    assert await admin.create_user("ann", Secret("w1")) == [broker.broker_addr]
    ann = AccessUser("ann", UserType.NORMAL, UserStatus.ENABLE, Secret("w1"))
    assert await admin.user("ann") == ann
    with pytest.raises(PartlyDone, match="existed"):
        await admin.create_user("ann", Secret("w2"), broker=broker.broker_addr)
    await admin.update_user("ann", status=UserStatus.DISABLE)
    assert await admin.user("ann") == ann._replace(status=UserStatus.DISABLE)
    await admin.update_user("ann", password=Secret("w3"), user_type=UserType.SUPER)
    changed = AccessUser("ann", UserType.SUPER, UserStatus.DISABLE, Secret("w3"))
    assert await admin.users("an") == {"ann": changed}
    assert set(await admin.users()) == {"ann", ROOT}
    assert await admin.users("none") == {}
    assert "w3" not in repr(changed)
    await admin.delete_user("ann")
    assert await admin.user("ann", broker="broker-a") is None


async def test_rules(admin: Admin) -> None:
    await admin.create_user("ben", Secret("w"))
    assert await admin.acl("User:ben") is None
    first, second = rule("Topic:a", "Pub"), rule("Group:g*", "Sub")
    await admin.create_acl(rules("ben", first, second))
    await admin.create_acl(rules("ben", first, policy="Default"))
    await admin.update_acl(rules("ben", rule("Topic:a", "Sub")))
    known = await admin.acl("User:ben")
    assert known is not None
    assert known.subject == "User:ben"
    custom, default = known.policies or ()
    assert [(entry.resource, entry.actions) for entry in custom.entries or ()] == [
        ("Topic:a", ["Sub"]),
        ("Group:g*", ["Sub"]),
    ]
    assert (default.policy_type, len(default.entries or ())) == ("Default", 1)
    assert set(await admin.acls("be", "Group")) == {"User:ben"}
    assert await admin.acls("be", "none") == {}
    await admin.delete_acl("User:ben", "Topic:a", policy=PolicyType.DEFAULT)
    assert [policy.policy_type for policy in (await admin.acls())["User:ben"].policies or ()] == [
        "Custom"
    ]
    await admin.delete_acl("User:ben")
    assert await admin.acl("User:ben") is None


async def test_with_authentication_alone_users_administer_all_but_settings_and_users(
    broker: LocalBroker, admin: Admin
) -> None:
    await admin.create_user("cid", Secret("w"))
    async with Admin(client=client_of(broker, "cid", "w")) as of_cid:
        await of_cid.create_topic("OfCid")
        await of_cid.create_group("of-cid")
        await of_cid.delete_topic("OfCid")
        with pytest.raises(AccessRefused):
            await of_cid.update_broker_config("broker-a", {"maxMessageSize": "1000000"})
        with pytest.raises(AccessRefused):
            await of_cid.users()
        with pytest.raises(AccessRefused):
            await of_cid.acl("User:cid")
        with pytest.raises(PartlyDone, match="no permission"):
            await of_cid.update_user("cid", password=Secret("w2"))
