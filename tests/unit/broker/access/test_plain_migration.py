"""Accounts of access control 1.0 that become users and rules of 2.0."""

from pathlib import Path

import pytest

import world
from reput.broker.access.access import Access
from reput.broker.access.plain_accounts import merge, parse
from reput.broker.access.plain_rules import PlainRules
from reput.broker.access.rules import AccessRefused, Account, Need
from reput.broker.access.user_rules import UserRules
from reput.broker.server import Broker
from reput.broker.settings.access import AccessSettings
from reput.errors import InvalidOption
from reput.format.access import Action, ResourceType
from reput.format.command import Command
from reput.secret import Secret

ACCOUNTS = """\
globalWhiteRemoteAddresses: ["*"]
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- {accessKey: existing, secretKey: other-secret, admin: true}
- accessKey: some-user
  secretKey: user-secret
  defaultTopicPerm: SUB
  topicPerms: [A=PUB|SUB, D=DENY, P=PUB, "w*=PUB", "%RETRY%h=SUB"]
  groupPerms: [g=SUB, d=DENY]
"""
SETTINGS = AccessSettings(
    authentication_enabled=True,
    authorization_enabled=True,
    migrate_auth_from_v1_enabled=True,
    init_authentication_user=Secret('{"username":"existing","password":"its-password"}'),
)
SENDER = Account("some-user", is_super=False)
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def broker(home: Path) -> Broker:
    config = world.broker_config(rocketmq_home=str(home))
    store = world.store_config(home / "store")
    return Broker(config, store, access=SETTINGS)


def rules_of(running: Broker) -> UserRules:
    access = running.parts.access
    assert isinstance(access, Access)
    assert isinstance(access.rules, UserRules)
    return access.rules


async def test_accounts_become_users_once(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/plain_acl.yml").write_text(ACCOUNTS)
    async with broker(tmp_path) as running:
        users = rules_of(running).users
        assert [(user.name, user.password.reveal(), user.is_super) for user in users.all()] == [
            ("existing", "its-password", True),
            ("some-user", "user-secret", False),
            ("the-admin", "admin-secret", True),
        ]
        users.delete("the-admin")
        users.put(users.all()[1]._replace(password=Secret("changed")))
    (tmp_path / "conf/plain_acl.yml").unlink()
    async with broker(tmp_path) as running:
        names = {user.name: user.password.reveal() for user in rules_of(running).users.all()}
        assert names == {"existing": "its-password", "some-user": "changed"}


async def test_rules_decide_as_the_permissions_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/plain_acl.yml").write_text(ACCOUNTS)
    needs = [
        Need(kind, name, frozenset({action}))
        for kind, names in ((TOPIC, ("A", "D", "P", "w", "wx", "Other")), (GROUP, "gdhx"))
        for name in names
        for action in (Action.PUB, Action.SUB, Action.CREATE)
    ]
    without_white = ACCOUNTS.replace('"*"', "").encode()
    plain = PlainRules(merge([parse(without_white, "plain_acl.yml")]))
    async with broker(tmp_path) as running:
        for need in needs:
            verdicts = []
            for rules in (plain, rules_of(running)):
                try:
                    rules.authorize(SENDER, Command(10), [need], "10.0.0.1")
                    verdicts.append(True)
                except AccessRefused:
                    verdicts.append(False)
            # As in Java: the default permission adds to an own one, except to a denial.
            is_added = need == Need(TOPIC, "P", frozenset({Action.SUB}))
            assert (verdicts[0] != verdicts[1]) == is_added, need
    assert caplog.text.count("may also Sub Topic 'P'") == 1


def test_a_migration_needs_the_home(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"migrateAuthFromV1Enabled.*rocketmqHome"):
        Broker(
            world.broker_config(rocketmq_home=""),
            world.store_config(tmp_path),
            access=SETTINGS,
        )
