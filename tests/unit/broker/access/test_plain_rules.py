"""Rules of access control 1.0: order of evaluation, needs, and texts."""

import pytest
from hypothesis import given, strategies as st

from reput.broker.access.needs import Facts, needs_of
from reput.broker.access.plain_accounts import Permission, PlainAccount, merge, parse
from reput.broker.access.plain_rules import ALWAYS_CHECKED, PlainRules
from reput.broker.access.rules import SUPER_NEED, AccessRefused, Need
from reput.format import signing
from reput.format.access import Action, ResourceType
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.secret import Secret

FILE = b"""\
globalWhiteRemoteAddresses: [10.0.3.*]
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true, topicPerms: [A=DENY]}
- accessKey: some-user
  secretKey: user-secret
  whiteRemoteAddress: 10.0.4.7
  defaultTopicPerm: SUB
  topicPerms: [A=PUB|SUB, D=DENY, P=PUB]
  groupPerms: [g=SUB]
"""
SIGNERS = {
    name: Signer(Credentials(name, Secret(secret)))
    for name, secret in (
        ("the-admin", "admin-secret"),
        ("some-user", "user-secret"),
        ("a-stranger", "user-secret"),
    )
}
FACTS = Facts("C", record_at=lambda _: None, half_at=lambda _: None)
FAR = "192.0.2.1"
SEND = {"producerGroup": "p", "defaultTopic": "d", "defaultTopicQueueNums": "1", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "0", "flag": "0"}  # fmt: skip
PREFIX = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
def rules() -> PlainRules:
    return PlainRules(merge([parse(FILE, "f.yml")]))


def signed(name: str, code: int, **fields: str) -> Command:
    return SIGNERS[name].sign(Command(code, ext_fields=fields, body=b"body"))


def refusal(rules: PlainRules, request: Command, address: str = FAR) -> str:
    """Return why a request is refused; "" if it is served."""
    try:
        account = rules.authenticate(request, address)
        rules.authorize(account, request, needs_of(FACTS, request), address)
    except AccessRefused as error:
        assert error.response_code == 1  # noqa: PT017 - it may be raised
        return str(error).removeprefix(PREFIX)
    return ""


def test_who_is_not_verified_is_refused(rules: PlainRules) -> None:
    unsigned = Command(10, ext_fields={**SEND, "topic": "A"})
    assert refusal(rules, unsigned) == "No accessKey is configured"
    assert refusal(rules, Command(10)) == "No accessKey is configured"
    stranger = signed("a-stranger", 10, **SEND, topic="A")
    assert refusal(rules, stranger) == "No acl config for a-stranger"
    request = signed("some-user", 10, **SEND, topic="A")
    assert request.ext_fields is not None
    assert refusal(rules, request) == ""
    wrong = "Check signature failed for accessKey=some-user"
    signature = request.ext_fields["Signature"]
    for other in ("", signature[:-1], signature + " ", signature.swapcase(), "é" * 28):
        request.ext_fields["Signature"] = other
        assert refusal(rules, request) == wrong
    del request.ext_fields["Signature"]
    assert refusal(rules, request) == wrong
    request = signed("some-user", 10, **SEND, topic="A")
    request.has_repeats = True
    assert refusal(rules, request) == wrong


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (10, {**SEND, "topic": "A"}, ""),
        (10, {**SEND, "topic": "P"}, ""),
        (10, {**SEND, "topic": "D"}, "No default permission for topic:D"),
        (10, {**SEND, "topic": "Other"}, "No default permission for topic:Other"),
        (10, {**SEND, "topic": "RMQ_SYS_TRACE_TOPIC"}, ""),
        (10, {**SEND, "topic": "%RETRY%g"}, ""),
        (10, {**SEND, "topic": "%RETRY%h"}, "No default permission for group:h"),
        (320, {**SEND, "topic": "D"}, "No default permission for topic:D"),
        (30, {"topic": "Other", "queueId": "0"}, ""),
        (30, {"topic": "P", "queueId": "0"}, "No default permission for topic:P"),
        (38, {"consumerGroup": "g"}, ""),
        (38, {"consumerGroup": "h"}, "No default permission for group:h"),
        (26, {}, "Need admin permission for request code=26, but accessKey=some-user is not"),
        (25, {}, "Need admin permission for request code=25, but accessKey=some-user is not"),
        (52, {}, "Need admin permission for request code=52, but accessKey=some-user is not"),
        (54, {}, "Need admin permission for request code=54, but accessKey=some-user is not"),
        (999, {}, "Need admin permission for request code=999, but accessKey=some-user is not"),
        (215, {"topic": "A"},
         "Need admin permission for request code=215, but accessKey=some-user is not"),
        (21, {}, ""),
        (28, {}, ""),
    ],
)  # fmt: skip
def test_permissions_of_a_user(
    rules: PlainRules, code: int, fields: dict[str, str], text: str
) -> None:
    assert refusal(rules, signed("some-user", code, **fields)) == text
    assert refusal(rules, signed("the-admin", code, **fields)) == ""


def test_white_addresses_skip_everything_but_changes_of_accounts(rules: PlainRules) -> None:
    unsigned = Command(10, ext_fields={**SEND, "topic": "D"})
    named = Command(215, ext_fields={"topic": "D", "AccessKey": "some-user"})
    assert refusal(rules, unsigned, "10.0.3.9") == ""
    assert refusal(rules, Command(26), "10.0.3.9") == ""
    assert refusal(rules, named, "10.0.4.7") == ""
    assert refusal(rules, unsigned, "10.0.4.7") == "No accessKey is configured"
    for code in sorted(ALWAYS_CHECKED):
        request = Command(code, ext_fields={"AccessKey": "the-admin"})
        for address in ("10.0.3.9", "10.0.4.7"):
            wrong = "Check signature failed for accessKey=the-admin"
            assert refusal(rules, request, address) == wrong
            assert refusal(rules, Command(code), address) == "No accessKey is configured"


def test_white_addresses_can_be_needed_besides_the_signature() -> None:
    rules = PlainRules(merge([parse(FILE, "f.yml")]), skips_signature=False)
    request = signed("some-user", 10, **SEND, topic="A")
    admin = signed("the-admin", 26)
    assert refusal(rules, Command(26), "10.0.3.9") == "No accessKey is configured"
    for address in ("10.0.3.9", "10.0.4.7"):
        assert refusal(rules, request, address) == ""
    assert refusal(rules, request) == f"{FAR} is no white address for accessKey=some-user"
    assert (
        refusal(rules, admin, "10.0.4.7") == "10.0.4.7 is no white address for accessKey=the-admin"
    )


def test_addresses_that_skip_the_signature_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    accounts = merge([parse(FILE, "f.yml")])
    PlainRules(accounts, skips_signature=False)
    PlainRules(merge([parse(b"accounts: []", "f.yml")]))
    assert caplog.messages == []
    rules = PlainRules(accounts)
    (text,) = caplog.messages
    assert text.endswith(": 10.0.3.*, 10.0.4.7 (account 'some-user' only)")
    rules.replace(merge([parse(FILE.replace(b"admin-secret", b"other-secret"), "f.yml")]))
    assert caplog.messages == [text]
    rules.replace(merge([parse(FILE.replace(b"10.0.3.*", b"10.0.5.*"), "f.yml")]))
    assert caplog.messages == [text, text.replace("10.0.3.*", "10.0.5.*")]


def test_a_query_is_verified_with_and_without_its_unsigned_field(rules: PlainRules) -> None:
    fields = {"topic": "A", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "0"}
    for later in (False, True):
        marked = {**fields, **({} if later else {"_UNIQUE_KEY_QUERY": "true"})}
        signed_fields = dict(fields) if later else marked
        signer = SIGNERS["some-user"]
        content = {**signed_fields, "AccessKey": "some-user"}
        signature = signer.signature(signing.content(content, b""))
        sent = {**content, "_UNIQUE_KEY_QUERY": "true", "Signature": signature}
        assert refusal(rules, Command(12, ext_fields=sent)) == ""
        other = {**sent, "_UNIQUE_KEY_QUERY": "false"}
        assert (refusal(rules, Command(12, ext_fields=other)) == "") == later


def test_new_rules_count_at_once(rules: PlainRules) -> None:
    request = signed("some-user", 10, **SEND, topic="A")
    account = rules.authenticate(request, FAR)
    before = rules.epoch
    rules.replace(merge([parse(FILE.replace(b"user-secret", b"other-secret"), "f.yml")]))
    assert rules.epoch > before
    assert refusal(rules, request) == "Check signature failed for accessKey=some-user"
    rules.replace(merge([parse(FILE.replace(b"some-user", b"same-user"), "f.yml")]))
    with pytest.raises(AccessRefused, match="No acl config for some-user"):
        rules.authorize(account, request, needs_of(FACTS, request), FAR)
    assert [row.access_key for row in rules.rows()] == ["the-admin", "same-user"]


def test_a_peer_that_is_white_no_more_is_refused(rules: PlainRules) -> None:
    request = Command(10, ext_fields={**SEND, "topic": "A"})
    account = rules.authenticate(request, "10.0.3.9")
    rules.replace(merge([parse(FILE.replace(b"10.0.3.*", b"10.0.5.*"), "f.yml")]))
    with pytest.raises(AccessRefused, match="No accessKey is configured"):
        rules.authorize(account, request, needs_of(FACTS, request), "10.0.3.9")


PERMISSIONS = st.sampled_from(
    [Permission.DENY, Permission.PUB, Permission.SUB, Permission.PUB | Permission.SUB]
)
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER])
ACTIONS = st.frozensets(st.sampled_from([action for action in Action if action > Action.ANY]))


@given(TYPES, ACTIONS, PERMISSIONS, PERMISSIONS, st.booleans(), st.booleans())
def test_needs_of_a_model(
    kind: ResourceType,
    actions: frozenset[Action],
    own: Permission,
    default: Permission,
    is_named: bool,
    is_admin: bool,
) -> None:
    """A topic or group needs its own permission, or else the default one."""
    others = Permission.DENY if kind is ResourceType.GROUP else default
    account = PlainAccount(
        "some-user",
        Secret("user-secret"),
        is_admin,
        default_topic=others,
        default_group=default if kind is ResourceType.GROUP else Permission.DENY,
        permissions={("%RETRY%" if kind is ResourceType.GROUP else "") + "x": own}
        if is_named
        else {},
    )
    rules = PlainRules(merge([]))
    rules.accounts = merge([parse(FILE, "f.yml")])
    rules.accounts.accounts["some-user"] = account  # type: ignore[index]
    texts = {action.name for action in actions}
    owned = own if is_named else default
    if is_admin:
        is_allowed = True
    elif kind is ResourceType.CLUSTER:
        is_allowed = bool(texts & {"GET", "LIST"})
    else:
        can = {name for name in ("PUB", "SUB") if Permission[name] in owned}
        wants = {"SUB" if name == "GET" else name for name in texts}
        is_allowed = bool(wants & can)
    sender = rules.authenticate(signed("some-user", 10), FAR)
    try:
        rules.authorize(sender, Command(10), [Need(kind, "x", actions)], FAR)
    except AccessRefused:
        assert not is_allowed
    else:
        assert is_allowed
    if not is_admin:
        with pytest.raises(AccessRefused, match="Need admin permission"):
            rules.authorize(sender, Command(10), [SUPER_NEED], FAR)
