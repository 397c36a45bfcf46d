"""Signed requests of several senders, for brokers with access control: see ``broker_paths``.

The requests are those of ``request_streams``, and some others. Each is signed by a sender who may
send it, or may not; or its signature is of another form. All follow from a ``Random``.
"""

from collections.abc import Sequence
from random import Random

from fuzz import request_streams as streams
from fuzz.gate_world import (
    binary_header,
    frame_of,
    json_header,
    json_text,
    signature_of,
)
from reput.broker.access.acls import AclTable, subject_of
from reput.broker.access.policy import Acl, Rule
from reput.broker.access.users import User, UserTable
from reput.errors import NotAFrame
from reput.format import batch, command as commands
from reput.format.access import Action, Decision, UserStatus, UserType, parse_resource
from reput.format.codes import RequestCode as Code
from reput.format.command import Command, Serialization
from reput.secret import Secret

ROOT = "rocketmq2"
SECRETS = {
    ROOT: "12345678",
    "writer1": "x" * 65,
    "reader1": "schlüssel",
    "everybody": "y" * 64,
    "nothing": "12345678",
    "switched-off": "12345678",
    "from-elsewhere": "12345678",
    "schlüssel-ä": "long secret",
}
"""Access key -> secret key of the known senders. Accounts of 1.0 need more than six letters."""
SENDERS = [*SECRETS, *["everybody"] * 12, *["writer1", "reader1", "schlüssel-ä"] * 2, "unknown", ""]
CHANGE = Code.GET_BROKER_CONFIG
"""Code of a request of ROOT that changes rules, by its field ``change``."""
PEERS = [("192.0.2.7", 4711)] * 6 + [
    ("192.0.2.8", 1),
    ("198.51.100.1", 2),
    ("2001:db8::7", 3),
    ("::ffff:192.0.2.7", 4),
]
VALUES = ("", "é", "\U0001f600", "a\tb", '"\\', "日本" * 9, "x" * 40, "\x7f", "\x00", "%41")


# --- access control 2.0 ------------------------------------------------------------------

NEAR, FAR = ("192.0.2.0/24", "2001:db8::/32"), ("203.0.113.0/24",)


def rule(text: str, *actions: Action, is_denied: bool = False, ips: Sequence[str] = ()) -> Rule:
    decision = Decision.DENY if is_denied else Decision.ALLOW
    return Rule(parse_resource(text), frozenset(actions), decision, tuple(ips))


ACLS = {
    "writer1": (rule("Topic:T", Action.PUB), rule("Topic:Order*", Action.PUB, ips=NEAR)),
    "reader1": (
        rule("Topic:*", Action.SUB, ips=NEAR),
        rule("Group:group", Action.SUB),
        rule("Topic:U", Action.ALL, is_denied=True),
    ),
    "everybody": (rule("Topic:*", Action.ALL), rule("Group:*", Action.ALL)),
    "switched-off": (rule("*", Action.ALL),),
    "from-elsewhere": (rule("*", Action.ALL, ips=FAR),),
    "schlüssel-ä": (rule("*", Action.PUB, Action.SUB),),
}


def user(name: str, *, secret: str = "", status: UserStatus = UserStatus.ENABLE) -> User:
    kind = UserType.SUPER if name == ROOT else UserType.NORMAL
    return User(name, Secret(secret or SECRETS[name]), kind, status)


def set_users(users: UserTable, acls: AclTable) -> None:
    """Make the users and rules as they are at the beginning."""
    for name in SECRETS:
        users.put(user(name))
        acls.put(subject_of(name), Acl(ACLS.get(name, ())))
    users.put(user("switched-off", status=UserStatus.DISABLE))


def change_users(users: UserTable, acls: AclTable, number: int) -> None:
    """Change one of the rules, or undo all changes."""
    if number == 0:
        users.put(user("everybody", status=UserStatus.DISABLE))
    elif number == 1:
        users.put(user("everybody", secret="another"))
    elif number == 2:
        users.delete("everybody")
    elif number == 3:
        acls.put(subject_of("everybody"), Acl((rule("Topic:T", Action.PUB),)))
    elif number == 4:
        acls.delete(subject_of("schlüssel-ä"))
    elif number == 5:
        denied = rule("Topic:T", Action.PUB, Action.SUB, is_denied=True)
        acls.put(subject_of("everybody"), Acl((*ACLS["everybody"], denied)))
    else:
        set_users(users, acls)


CHANGE_COUNT = 8
"""Number of changes; the last ones undo all others."""

# --- access control 1.0 ------------------------------------------------------------------

ACCOUNTS = f"""\
globalWhiteRemoteAddresses: [198.51.100.*]
accounts:
- accessKey: {ROOT}
  secretKey: '{SECRETS[ROOT]}'
  admin: true
- accessKey: writer1
  secretKey: {SECRETS["writer1"]}
  topicPerms: [T=PUB, Orders=PUB|SUB]
- accessKey: reader1
  secretKey: {SECRETS["reader1"]}
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
  topicPerms: [U=DENY]
- accessKey: everybody
  secretKey: {SECRETS["everybody"]}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: nothing
  secretKey: '{SECRETS["nothing"]}'
- accessKey: from-elsewhere
  secretKey: '{SECRETS["from-elsewhere"]}'
  whiteRemoteAddress: 192.0.2.8
- accessKey: schlüssel-ä
  secretKey: {SECRETS["schlüssel-ä"]}
  defaultTopicPerm: PUB
  groupPerms: [group=PUB|SUB]
"""
ACCOUNT_CHANGES = (
    ("accessKey: everybody", "accessKey: another1"),
    (SECRETS["everybody"], "another secret"),
    ("defaultTopicPerm: PUB|SUB", "defaultTopicPerm: DENY"),
    ("defaultGroupPerm: SUB", "defaultGroupPerm: DENY"),
    ("198.51.100.*", "198.51.100.9"),
    ("T=PUB", "T=DENY"),
    ("", ""),
    ("", ""),
)


def accounts(number: int = -1) -> bytes:
    """Return the file of accounts, with a change."""
    return ACCOUNTS.replace(*ACCOUNT_CHANGES[number], 1).encode()


# --- requests ----------------------------------------------------------------------------


def change(number: int) -> Command:
    return Command(CHANGE, 5, ext_fields={"change": str(number)})


def some_question(random: Random) -> bytes:
    """Return a request that no shortcut serves."""
    topic, group = random.choice(streams.TOPICS), random.choice(streams.GROUPS)
    queue_id = random.choice(["0", "1"])
    both = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
    flag = 0
    body = b""
    code, fields = random.choice(
        [
            (Code.UPDATE_CONSUMER_OFFSET, {**both, "commitOffset": str(random.randrange(9))}),
            (Code.QUERY_CONSUMER_OFFSET, both),
            (Code.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id}),
            (Code.GET_MIN_OFFSET, {"topic": topic, "queueId": queue_id}),
            (Code.QUERY_MESSAGE, {"topic": topic, "key": "k1", "maxNum": "3",
                                  "beginTimestamp": "0", "endTimestamp": str(1 << 50),
                                  "_UNIQUE_KEY_QUERY": random.choice(["true", "false"])}),
            (Code.VIEW_MESSAGE_BY_ID, {"offset": str(random.choice([0, 0, 77]))}),
            (Code.UNREGISTER_CLIENT, {"clientID": "me", "consumerGroup": group}),
            (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}),
            (Code.SEND_BATCH_MESSAGE, {**streams.send_fields(random), "b": topic, "m": "true"}),
            (Code.GET_TOPIC_STATS_INFO, {"topic": topic}),
            (Code.AUTH_GET_USER, {"username": "nothing"}),
            (random.choice([1, 999, 30_000]), {}),
        ]
    )  # fmt: skip
    if code == Code.SEND_BATCH_MESSAGE:
        body = batch.encode([batch.InnerMessage(0, b"one", b"K\x01V\x02")] * random.choice([1, 3]))
    elif code == Code.UPDATE_CONSUMER_OFFSET:
        flag = random.choice([0, 2])
    return commands.encode(Command(code, 9, flag, ext_fields=fields, body=body))


# --- signatures --------------------------------------------------------------------------


def signed(random: Random, odd: float, frame: bytes, sender: str | None = None) -> bytes:
    """Return a request with a signature, in the form of some client.

    Args:
        random: Makes the choices.
        odd: How many requests differ from those of a client, 0 to 1.
        frame: A frame; one that is no request, or a refused one, stays as it is.
        sender: Access key of the sender; None: any.
    """
    try:
        request = commands.decode(frame[4:])
    except NotAFrame:
        return frame
    if request.is_reply or request.refusal is not None:
        return frame
    sender = random.choice(SENDERS) if sender is None else sender
    fields = {**(request.ext_fields or {}), **some_added(random, odd), "AccessKey": sender}
    if random.random() < 0.1 * odd:
        wanted = random.choice([63, 64, 65, 66, 127, 128, 129])
        for number in range(wanted - len(fields) - 1):
            fields[f"f{number}"] = random.choice(["v", "v", *VALUES])
    again = None
    if random.random() < 0.15 * odd:
        name = random.choice([*fields, "AccessKey", "b", "topic"])
        again = name, random.choice(["T", "Orders", "everybody", *VALUES])
    values = dict([*fields.items(), again]) if again and random.random() < 0.5 else dict(fields)
    if random.random() < 0.5:
        values.pop("_UNIQUE_KEY_QUERY", None)  # some clients do not sign it
    signature = signature_of(SECRETS.get(values["AccessKey"], "?"), values, request.body)
    if random.random() < 0.1 * odd:
        signature = damaged_signature(random, signature)
    fields["Signature"] = signature
    if random.random() < 0.05 * odd:
        del fields[random.choice(["AccessKey", "Signature"])]
    body = request.body
    if random.random() < 0.05 * odd:
        body += b"x"
    if random.random() < 0.4 and again is None:
        request.ext_fields, request.body = fields, body
        return commands.encode(request)
    pairs = list(fields.items())
    if random.random() < 0.5:
        random.shuffle(pairs)
    if again is not None:
        pairs.insert(random.choice([0, len(pairs)]), again)
    return in_form(random, request, pairs, body)


def some_added(random: Random, odd: float) -> dict[str, str]:
    """Return fields that clients add, or others."""
    added = {}
    if random.random() < 0.2:
        added |= random.choice(
            [{"SecurityToken": "token"}, {"ns": "space", "nsd": "true"}, {"OnsChannel": "ALIYUN"}]
        )
    if random.random() < 0.15 * odd:
        added[random.choice(["own", "n", "zz", "_x", "a/b", "é", "i"])] = random.choice(VALUES)
    return added


def damaged_signature(random: Random, signature: str) -> str:
    position = random.randrange(28)
    changed = signature[:position] + random.choice("Aa0+=/ é") + signature[position + 1 :]
    return random.choice(
        [changed, changed, "", "=", signature[:27], signature + "=", signature.lower()]
    )


def in_form(random: Random, request: Command, pairs: list[tuple[str, str]], body: bytes) -> bytes:
    """Return the frame of a request with these fields, of which one may be there twice."""
    is_binary = request.code < 1 << 15 and random.random() < 0.5
    if is_binary:
        header = binary_header(random, request.code, request.flag, pairs)
        return frame_of(header, body, Serialization.ROCKETMQ)
    if random.random() < 0.5:
        return frame_of(json_header(random, request.code, request.flag, pairs), body)
    texts = ",".join(
        f"{json_text(random, name)}:{json_text(random, value)}" for name, value in pairs
    )
    header = (
        f'{{"code":{request.code},"flag":{request.flag},"language":"JAVA","opaque":3,'
        f'"serializeTypeCurrentRPC":"JSON","version":407,"extFields":{{{texts}}}}}'
    )
    return frame_of(header.encode(), body)
