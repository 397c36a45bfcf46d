"""Access control of 5.x clients, at a broker's own port and at a proxy before it.

Codes and texts are those of rocketmq-proxy 5.5.0.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from access_broker import ROOT, ROOT_PASSWORD, access_broker, client_of
from grpc_client import OK, GrpcClient, message, signed
from proxied_broker import ProxiedBroker
from raw_grpc import RawGrpc
from reput.broker.access.rules import AccessRefused
from reput.client.blocking import Admin
from reput.format.access import UserStatus
from reput.format.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from reput.grpc.access import CODES, credentials_of
from reput.secret import Secret
from reput.testing import LocalBroker

WRITER, READER, STRANGER = "writer", "reader", "nobody"
UNAUTHORIZED = 40_100
_SUPER = json.dumps({"username": ROOT, "password": ROOT_PASSWORD})
_INNER = json.dumps({"accessKey": ROOT, "secretKey": ROOT_PASSWORD})


class SecuredProxy(ProxiedBroker):
    proxy_settings = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "inner_client_authentication_credentials": Secret(_INNER),
    }


@pytest.fixture(scope="module", params=[LocalBroker, SecuredProxy], ids=["broker", "proxy"])
def broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": _SUPER,
        "innerClientAuthenticationCredentials": _INNER,
    }
    with request.param(topics=("Open", "Closed"), settings=settings) as running:
        with Admin(client=client_of(running, ROOT, ROOT_PASSWORD)) as admin:
            allow(admin, WRITER, {"Topic:Open": "Pub"})
            allow(admin, READER, {"Topic:Open": "Sub", "Group:readers": "Sub"})
            admin.create_user(STRANGER, Secret(password(STRANGER)))
        yield running


def password(user: str) -> str:
    return f"word of {user}"


def allow(admin: Admin, user: str, rules: dict[str, str]) -> None:
    admin.create_user(user, Secret(password(user)))
    entries = [
        PolicyEntryInfo(resource=name, actions=[action], decision="Allow")
        for name, action in rules.items()
    ]
    policies = [PolicyInfo(policy_type="Custom", entries=entries)]
    admin.create_acl(AclInfo(subject=f"User:{user}", policies=policies))


def client(broker: LocalBroker, user: str, word: str | None = None) -> GrpcClient:
    return GrpcClient(broker.grpc_endpoint, f"of-{user}", (user, word or password(user)))


def test_a_user_with_rules_sends_and_another_one_receives(broker: LocalBroker) -> None:
    with client(broker, WRITER) as writer, client(broker, READER) as reader:
        assert writer.produce("Open")["status"]["code"] == OK
        assert reader.consume("readers", "Open")["status"]["code"] == OK
        sent = writer.call("SendMessage", messages=[message("Open", b"for readers")])
        assert sent["status"]["code"] == OK
        (item,) = reader.messages("readers", "Open")
        assert item["body"] == b"for readers"
        handle = item["system_properties"]["receipt_handle"]
        acked = reader.call(
            "AckMessage",
            group={"name": "readers"},
            topic={"name": "Open"},
            entries=[{"message_id": "01", "receipt_handle": handle}],
        )
        assert acked["status"]["code"] == OK


def test_a_call_needs_a_known_user_with_the_right_secret(broker: LocalBroker) -> None:
    route = {"topic": {"name": "Open"}}
    with GrpcClient(broker.grpc_endpoint, "unsigned") as unsigned:
        status = unsigned.call("QueryRoute", **route)["status"]
    assert (status["code"], status["message"]) == (UNAUTHORIZED, "username cannot be null.")
    with client(broker, WRITER, "another word") as wrong:
        status = wrong.call("QueryRoute", **route)["status"]
        assert (status["code"], status["message"]) == (UNAUTHORIZED, "check signature failed.")
        sent = wrong.call("SendMessage", messages=[message("Open")])
        assert sent["status"]["code"] == UNAUTHORIZED
        assert wrong.produce("Open") == {"status": status}
    with client(broker, "stranger") as stranger:
        status = stranger.call("QueryRoute", **route)["status"]
    assert (status["code"], status["message"]) == (UNAUTHORIZED, "User:stranger is not found.")


def test_the_user_is_checked_before_the_message_is_read(broker: LocalBroker) -> None:
    damaged = b"\xff\xff"
    calls = [(name, damaged) for name in CODES if name != "Telemetry"]
    with RawGrpc(broker.grpc_endpoint, "unsigned") as unsigned:
        for (name, _), replies in zip(calls, unsigned.calls(*calls), strict=True):
            status = replies[0]["status"]
            assert (status["code"], status["message"]) == (
                UNAUTHORIZED,
                "username cannot be null.",
            ), name
    with GrpcClient(broker.grpc_endpoint, "unsigned") as unsigned:
        answer = unsigned.telemetry(client_properties={"": "no settings of either kind"})
        assert answer["status"]["code"] == UNAUTHORIZED


def test_a_call_without_a_rule_for_it_is_refused(broker: LocalBroker) -> None:
    where = "from 127.0.0.1, no matched policies."
    with client(broker, WRITER) as writer:
        status = writer.call("SendMessage", messages=[message("Closed")])["status"]
        text = f"User:{WRITER} has no permission to access Topic:Closed {where}"
        assert (status["code"], status["message"]) == (UNAUTHORIZED, text)
        assert writer.call("QueryRoute", topic={"name": "Open"})["status"]["code"] == OK
        replies = writer.receive(
            group={"name": "readers"}, message_queue={"topic": {"name": "Open"}, "id": -1}
        )
        text = f"User:{WRITER} has no permission to access Group:readers {where}"
        assert replies[0]["status"] == {"code": UNAUTHORIZED, "message": text}
    with client(broker, READER) as reader:
        assert reader.call("QueryRoute", topic={"name": "Open"})["status"]["code"] == OK
        status = reader.call("SendMessage", messages=[message("Open")])["status"]
        assert status["code"] == UNAUTHORIZED
        assert reader.consume("others", "Open")["status"]["code"] == UNAUTHORIZED
    with client(broker, STRANGER) as stranger:
        status = stranger.call("QueryRoute", topic={"name": "Open"})["status"]
        text = f"User:{STRANGER} has no permission to access Topic:Open {where}"
        assert (status["code"], status["message"]) == (UNAUTHORIZED, text)


def test_a_handle_gives_no_message_that_its_user_may_not_read(broker: LocalBroker) -> None:
    with client(broker, ROOT, ROOT_PASSWORD) as root, client(broker, READER) as reader:
        reader.consume("readers", "Open")
        root.consume("roots", "Closed")
        root.call("SendMessage", messages=[message("Closed", b"secret")])
        root.call("SendMessage", messages=[message("Open", b"open")])
        (secret,) = root.messages("roots", "Closed")
        (item,) = reader.messages("readers", "Open")
        handle = item["system_properties"]["receipt_handle"].split(" ")
        handle[8] = secret["system_properties"]["receipt_handle"].split(" ")[8]
        reply = reader.call(
            "ForwardMessageToDeadLetterQueue",
            group={"name": "readers"},
            topic={"name": "Open"},
            receipt_handle=" ".join(handle),
            message_id="01",
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        assert reply["status"]["code"] in (UNAUTHORIZED, 40_013)
    assert broker.messages("%DLQ%readers") == []


def test_a_super_user_may_do_everything(broker: LocalBroker) -> None:
    with client(broker, ROOT, ROOT_PASSWORD) as root:
        for topic in ("Open", "Closed"):
            root.produce(topic)
            sent = root.call("SendMessage", messages=[message(topic)])
            assert sent["status"]["code"] == OK


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("MQv2-HMAC-SHA1", "authentication header is incorrect."),
        ("MQv2-HMAC-SHA1 Credential", "keyValues length is incorrect"),
        ("MQv2-HMAC-SHA1 Credential=a, Signature=xyz", "create authentication context error."),
    ],
)
def test_a_header_of_another_form_is_refused(header: str, text: str) -> None:
    with pytest.raises(AccessRefused, match=text):
        credentials_of(header)


def test_a_header_is_read_as_the_sdks_write_it() -> None:
    # HMAC-SHA1 of the date with the secret, by OpenSSL.
    ((_, date), (_, header)) = signed("key", "secret", "20240101T000000Z")
    assert date == "20240101T000000Z"
    name, signature = credentials_of(header)
    assert name == "key"
    assert signature.hex() == "2e5621239cbfdccc449dbd2e028cf60e7c6a592d"
    assert credentials_of(header.replace("key,", "key/region/service,")) == (name, signature)
    assert credentials_of("") == ("", b"")


def test_accounts_of_access_control_1_0_are_checked_by_their_rules(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/plain_acl.yml").write_text(
        "accounts:\n"
        "- {accessKey: some-writer, secretKey: some-secret, admin: false, whiteRemoteAddress: '',\n"
        "   defaultTopicPerm: DENY, defaultGroupPerm: DENY, topicPerms: ['Open=PUB']}\n"
    )
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path)}
    with LocalBroker(topics=("Open", "Closed"), settings=settings) as running:
        user = ("some-writer", "some-secret")
        with GrpcClient(running.grpc_endpoint, "writer", user) as writer:
            assert writer.produce("Open")["status"]["code"] == OK
            sent = writer.call("SendMessage", messages=[message("Open")])
            assert sent["status"]["code"] == OK
            status = writer.call("SendMessage", messages=[message("Closed")])["status"]
            assert status["code"] == UNAUTHORIZED
            assert "No default permission for topic:Closed" in status["message"]
        with GrpcClient(running.grpc_endpoint, "wrong", ("some-writer", "other")) as wrong:
            status = wrong.call("QueryRoute", topic={"name": "Open"})["status"]
            assert status["code"] == UNAUTHORIZED


def test_a_changed_password_and_a_disabled_user_have_their_effect_at_once() -> None:
    with (
        access_broker("Open") as running,
        Admin(client=client_of(running, ROOT, ROOT_PASSWORD)) as admin,
    ):
        admin.create_user("alice", Secret("first"))
        with GrpcClient(running.grpc_endpoint, "same", ("alice", "first")) as first:
            assert first.produce("Open")["status"]["code"] == OK
            admin.update_user("alice", password=Secret("second"))
            assert first.call("SendMessage", messages=[message("Open")])["status"]["code"] == (
                UNAUTHORIZED
            )
            with GrpcClient(running.grpc_endpoint, "same", ("alice", "second")) as second:
                assert second.produce("Open")["status"]["code"] == OK
                sent = second.call("SendMessage", messages=[message("Open")])
                assert sent["status"]["code"] == OK
                admin.update_user("alice", status=UserStatus.DISABLE)
                status = second.call("SendMessage", messages=[message("Open")])["status"]
                assert status == {"code": UNAUTHORIZED, "message": "User:alice is disabled."}


def test_a_whitelist_has_the_names_of_requests() -> None:
    settings = {
        "authenticationWhitelist": "apache.rocketmq.v2.QueryRouteRequest",
        "authorizationEnabled": "true",
        "authorizationWhitelist": "apache.rocketmq.v2.QueryRouteRequest",
    }
    with access_broker("Open", **settings) as running, GrpcClient(running.grpc_endpoint) as client:
        assert client.call("QueryRoute", topic={"name": "Open"})["status"]["code"] == OK
        sent = client.call("SendMessage", messages=[message("Open")])
        assert sent["status"]["code"] == UNAUTHORIZED
