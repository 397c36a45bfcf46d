"""The keys of access control in broker.conf."""

import pytest

from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import load
from reput.errors import InvalidOption
from reput.secret import Secret

LOCAL = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
FIRST = '{"username":"root","password":"hidden-word"}'


def test_everything_is_off_by_default() -> None:
    access = load({}).access
    assert not access.authentication_enabled
    assert not access.authorization_enabled
    assert access.first_users == {}
    assert access.own_credentials is None


def test_keys_of_java() -> None:
    access = load(
        {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationMetadataProvider": LOCAL,
            "authorizationWhitelist": "105, 35,apache.rocketmq.v2.HeartbeatRequest",
            "initAuthenticationUser": FIRST,
            "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"s"}',
        }
    ).access
    assert access.first_users == {"root": Secret("hidden-word"), "inner": Secret("s")}
    assert access.own_credentials is not None
    assert access.unruled_codes == {35, 105}
    assert access.unruled_methods == {"Heartbeat"}
    assert "hidden-word" not in repr(access)
    assert access.warnings == (
        "authorizationWhitelist=35, 105, Heartbeat: these requests are served unchecked",
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"authorizationEnabled": "true"}, "authenticationEnabled=true"),
        ({"authenticationProvider": "com.example.Mine"}, "DefaultAuthenticationProvider"),
        ({"authorizationMetadataProvider": LOCAL}, "LocalAuthorizationMetadataProvider"),
        ({"authenticationWhitelist": "10,25"}, "no 25"),
        ({"authorizationWhitelist": "26"}, "no 26"),
        ({"authorizationWhitelist": "3001,3010"}, "no 3001, 3010"),
        ({"authorizationWhitelist": "ten"}, "request codes"),
        ({"initAuthenticationUser": "root:hidden-word"}, '"username"'),
        ({"initAuthenticationUser": '{"username":"root"}'}, '"password"'),
        ({"initAuthenticationUser": '{"username":"hidden-word","password":" "}'}, "not empty"),
        ({"innerClientAuthenticationCredentials": "hidden-word"}, '"accessKey"'),
        ({"aclEnable": "true"}, "with rocketmqHome"),
    ],
)
def test_what_refuses_the_start(settings: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text) as refusal:
        load(settings)
    assert "hidden-word" not in str(refusal.value)


def test_stateful_strategies_are_accepted() -> None:
    name = "org.apache.rocketmq.auth.authorization.strategy.StatefulAuthorizationStrategy"
    assert AccessSettings(authorization_strategy=name).authorization_strategy == name
