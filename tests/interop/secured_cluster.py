"""Official brokers with access control: settings and files for ``JavaCluster``.

Each has an account that may do everything, one for two topics and a group, and one without any
permission. Names and secrets are the same in both versions.
"""

from collections.abc import Mapping
from typing import Any

from interop.java_cluster import Settings
from reput.client import Admin
from reput.client.config import ClientConfig
from reput.format.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from reput.secret import Secret

ADMIN, ADMIN_SECRET = "the-admin", "admin=secret%1"
USER, USER_SECRET = "some-user", "user/secret+2"
TOPIC, GROUP = "Allowed", "allowed-group"
OTHER_TOPIC = "Forbidden"


def plain_acl(topics: Mapping[str, str], groups: Mapping[str, str]) -> str:
    """Return a ``plain_acl.yml`` of access control 1.0 with the permissions of ``USER``."""

    def row(permissions: Mapping[str, str]) -> str:
        return ", ".join(f"{name}={value}" for name, value in permissions.items())

    return f"""\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {ADMIN}
  secretKey: {ADMIN_SECRET}
  admin: true
- accessKey: {USER}
  secretKey: {USER_SECRET}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [{row(topics)}]
  groupPerms: [{row(groups)}]
"""


async def create_user(admin: Admin, topics: Mapping[str, str], groups: Mapping[str, str]) -> None:
    """Create ``USER`` of access control 2.0 with the permissions that ``plain_acl`` writes."""
    await admin.create_user(USER, Secret(USER_SECRET))
    named = {f"Topic:{name}": value for name, value in topics.items()}
    named |= {f"Group:{name}": value for name, value in groups.items()}
    entries = [
        PolicyEntryInfo(
            resource=name,
            actions=[action.capitalize() for action in value.split("|")],
            decision="Allow",
        )
        for name, value in named.items()
        if value != "DENY"
    ]
    policies = [PolicyInfo(policy_type="Custom", entries=entries)]
    await admin.create_acl(AclInfo(subject=f"User:{USER}", policies=policies))


PLAIN_ACL = plain_acl({TOPIC: "PUB|SUB"}, {GROUP: "PUB|SUB"})

SETTINGS: dict[str, Settings] = {
    "4.9.7": {"aclEnable": True},
    "5.5.0": {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "authenticationMetadataProvider": (
            "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
        ),
        "authorizationMetadataProvider": (
            "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
        ),
        "initAuthenticationUser": f'{{"username":"{ADMIN}","password":"{ADMIN_SECRET}"}}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    },
}
FILES = {"4.9.7": {"conf/plain_acl.yml": PLAIN_ACL}, "5.5.0": {}}


def config_of(namesrv: str, access_key: str, secret_key: str, **more: Any) -> ClientConfig:
    """Return the settings of clients of an account."""
    secret = Secret(secret_key)
    return ClientConfig(
        request_timeout_ms=30_000,  # Java's first answers are slow on a busy machine
        namesrv_addr=namesrv,
        access_key=access_key,
        secret_key=secret,
        **more,
    )
