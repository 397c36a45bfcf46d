"""White addresses and files of access control 1.0: read as by Java, or refused."""

import pytest

import seeds
from interop.java_oracle import ClusterOracle, Oracle
from interop.recorded_oracle import oracle_fixture
from reput.broker.access import plain_accounts
from reput.broker.access.plain_addresses import parse_pattern
from reput.errors import InvalidOption

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rocketmq-4.9.7")]

ADDRESSES = (
    "10.0.3.7",
    "10.0.3.0",
    "10.0.3.255",
    "10.0.4.7",
    "10.1.3.7",
    "1.10.0.3",
    "11.0.3.7",
    "127.0.0.1",
    "::1",
    "fd00::7",
    "FD00:0:0:0:0:0:0:A",
    "fd00::a:7",
    "fd00::a:ffff",
    "2::ac5:78:1:0",
    "2::ac5:78:200:ffff",
    "2::ac5:78:201:1",
    "2:0:0:0:0:0:0:5",
    "2:0:7::5",
)
PATTERNS = (
    "",
    "  ",
    "*",
    "*.*.*.*",
    "*:*:*:*:*:*:*:*",
    "10.0.3.7",
    "10.0.3.7,10.0.4.7",
    "10.0.3.7,",
    "10.0.3.{7,9}",
    "10.0.3.{7}",
    "10.0.3.*",
    "10.0.3.0-7",
    "10.0.3-4.*",
    "10.0.3-4.9",
    "10.*.3.4",
    "10.0-1.*.*",
    "10. 0. 3.*",
    "fd00::7",
    "fd00:0::7",
    "fd00::7,fd00::a,10.0.3.7",
    "fd00::{7,a}",
    "FD00::A:*",
    "fd00::a:7-ffff",
    "2::ac5:78:1-200:*",
    "fd00:0:*",
    "fd00:0-5",
    "fd00:0-5:*",
)
"""Patterns that are read as by Java."""

REFUSED = (
    "10.0.3",
    "10.0.3.256",
    "10.0.3.07",
    "10.0.3.*.1",
    "10.0.3.{7,9",
    "10.0.{3,4}.7",
    "10.0.3.{}x}",
    "10.0.3.7-3",
    "10.0.3.1-256",
    "10.0.3.-5",
    "10.0.3.5-",
    "10.0.3.7, 10.0.4.7",
    "10.0.*",
    "localhost",
    "::*x",
    "fd00::g",
    "fd00::*:1",
    "fd00:5-1:*:*",
    "fd00::5-1",
    "fd00::1-10000",
    "{",
    "}",
)
"""Patterns that Java refuses as well."""

STRICTER = (
    "*.0.3.7",
    "*.*.3.7",
    "10.0.3*.7",
    "10.0.3.0-0",
    "::*",
    "abc.*.1.1",
    "10.0.999.*",
    "1-5.0.3.7",
    "fd00::7/64",
    "fd00::7%eth0",
)
"""Patterns that Java accepts, although they never match, or not what they show."""


class PlainAclOracle(ClusterOracle):
    """Running ``PlainAclOracle.java``."""

    main_class = "PlainAclOracle"


java = oracle_fixture(PlainAclOracle, ["4.9.7"])


def ours(pattern: str) -> list[bool] | None:
    try:
        addresses = parse_pattern(pattern, "a pattern")
    except InvalidOption:
        return None
    return [addresses.contains(address) for address in ADDRESSES]


FILE = """\
globalWhiteRemoteAddresses:
- 10.0.3.*
accounts:
- accessKey: some-user
  secretKey: 'a: secret, with #signs'
  whiteRemoteAddress:
  admin: no
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm:
  topicPerms:
  - TopicA=PUB|SUB
  - TopicB = PUB
  - TopicB=SUB
  - " %RETRY%group-b = DENY "
  groupPerms: [group-a=SUB|PUB, group-b==SUB]
- {accessKey: 12345678, secretKey: 0123456712, admin: True}
- {accessKey: 0x1234567, secretKey: 012345678, admin: "false", topicPerms: }
- accessKey: 1_234_567
  secretKey: "0123456\\u0041"
  whiteRemoteAddress: 10.0.3.{7,9}
- accessKey: 12:30:45:59
  secretKey: 0b1111111111111111111111
  defaultGroupPerm: " SUB "
- accessKey: "true or false"
  secretKey: |
    more
    lines
"""
SECRETS = ("12345e78", "+12345e78", "123456e+1", "2026-11-23", ".1234567", "1.0e+100")
"""Texts that Java does not take for a text, and whose form there is another."""


def test_accounts_are_read_as_by_java(java: Oracle) -> None:
    (theirs,) = java.ask("accounts", [(FILE,)])
    ours = [
        {
            "accessKey": account.access_key,
            "secretKey": account.secret_key.reveal(),
            "whiteRemoteAddress": account.white_text or None,
            "admin": account.is_admin,
            "topic": int(account.default_topic),
            "group": int(account.default_group),
            "permissions": {name: int(value) for name, value in account.permissions.items()},
        }
        for account in plain_accounts.parse(FILE.encode(), "plain_acl.yml").accounts
    ]
    assert ours == theirs


def test_secrets_that_java_changes_are_refused(java: Oracle) -> None:
    files = [f"accounts: [{{accessKey: some-user, secretKey: {text}}}]" for text in SECRETS]
    theirs = java.ask("accounts", [(file,) for file in files])
    for text, accounts, file in zip(SECRETS, theirs, files, strict=True):
        assert accounts[0]["secretKey"] != text
        with pytest.raises(InvalidOption, match=r"line 1: secretKey.*in quotes") as refused:
            plain_accounts.parse(file.encode(), "plain_acl.yml")
        assert text not in str(refused.value)


def test_java_reads_what_an_update_writes(java: Oracle) -> None:
    odd = ("012345678", "yes or no", "~~~~~~~", "=======", "a: b #c", "'\"\\é and more")
    for text in (*SECRETS, *odd):
        content = {"accounts": [{"accessKey": text, "secretKey": text}]}
        written = plain_accounts.dump_yaml(content)
        (account,) = java.ask_one("accounts", written.decode())
        assert account["accessKey"] == account["secretKey"] == text
        (own,) = plain_accounts.parse(written, "plain_acl.yml").accounts
        assert own.access_key == own.secret_key.reveal() == text


def test_patterns_match_as_in_java(java: Oracle) -> None:
    theirs = java.ask("match", [(pattern, *ADDRESSES) for pattern in PATTERNS])
    assert None not in theirs
    assert {pattern: ours(pattern) for pattern in PATTERNS} == dict(
        zip(PATTERNS, theirs, strict=True)
    )


def test_patterns_that_java_refuses_are_refused(java: Oracle) -> None:
    theirs = java.ask("match", [(pattern, *ADDRESSES) for pattern in REFUSED])
    assert dict(zip(REFUSED, theirs, strict=True)) == dict.fromkeys(REFUSED)
    assert {pattern: ours(pattern) for pattern in REFUSED} == dict.fromkeys(REFUSED)


def test_patterns_that_mean_nothing_in_java_are_refused(java: Oracle) -> None:
    theirs = java.ask("match", [(pattern, *ADDRESSES) for pattern in STRICTER])
    nothing = [False] * len(ADDRESSES)
    assert dict(zip(STRICTER, theirs, strict=True)) == dict.fromkeys(STRICTER, nothing)
    assert {pattern: ours(pattern) for pattern in STRICTER} == dict.fromkeys(STRICTER)


@pytest.mark.parametrize(
    ("pattern", "shown", "meant"),
    [("2::1-200", "2::5", "2:0:5::"), ("2::1-200:*", "2::5:1", "2:0:5::")],
)
def test_patterns_that_java_reads_as_others_are_refused(
    java: Oracle, pattern: str, shown: str, meant: str
) -> None:
    assert java.ask("match", [(pattern, shown, meant)]) == [[False, True]]
    assert ours(pattern) is None


def test_no_pattern_matches_more_than_in_java(java: Oracle) -> None:
    random = seeds.random("plain acl", 497)
    pieces = ["10", "0", "3", "7", "3-4", "0-255", "*", "{3,7}", "fd00", "a", "2", "", "1-200"]
    patterns = []
    for _ in range(java.size(4000, 2500)):
        separator, count = random.choice(((".", 4), (":", 3), (":", 5), (":", 8)))
        patterns.append(separator.join(random.choices(pieces, k=count)))
    theirs = java.ask("match", [(pattern, *ADDRESSES) for pattern in patterns])
    known = 0
    for pattern, matches in zip(patterns, theirs, strict=True):
        read = ours(pattern)
        if read is not None and pattern.strip():
            assert matches is not None, pattern
            assert all(also or not own for own, also in zip(read, matches, strict=True)), pattern
            known += any(read)
    assert known > 10
