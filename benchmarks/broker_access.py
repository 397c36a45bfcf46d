"""Sends and pulls with access control: the cost of a signature and of the rules."""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_access"
QUESTION = "broker CPU a message with access control on and off; the official 4.9.7 beside ours"

USER, SECRET = "benchuser", "bench-secret"
PLAIN_ACL = f"""\
accounts:
- accessKey: {USER}
  secretKey: {SECRET}
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
OF_JAVA: targets.Settings = {"aclEnable": True}
OF_REPUT: targets.Settings = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{SECRET}"}}',
}
CASES: dict[str, dict[str, object]] = {
    "send_128_b": {"kind": "send"},
    "send_1_kib": {"kind": "send", "body_bytes": 1024},
    "pull_of_32": {"kind": "pull", "window": 8},
}


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure each case with access control on and off; quick: once, about 60 s."""
    repeats, seconds = (1, 1.5) if quick else (3, 2.5)
    results: dict[str, object] = {}
    for is_on in (True, False):
        settings = {}
        signed = {}
        if is_on:
            settings = {
                "of_java": OF_JAVA,
                "of_reput": OF_REPUT,
                "files_of_java": {"conf/plain_acl.yml": PLAIN_ACL},
            }
            signed = {"access_key": USER, "secret_key": SECRET}
        state = "on" if is_on else "off"
        with targets.brokers(folder / f"{NAME}_{state}", **settings) as brokers:
            for target in brokers:
                warm_s = 1.0
                if target.name == targets.JAVA:
                    warm_s = 3.0 if quick else 7.0
                targets.load(target, "repeated", warm_up_s=warm_s, seconds=0.1, **signed)
            for name, spec in CASES.items():
                results[f"{name}_{state}"] = targets.compare(
                    brokers,
                    repeats,
                    "repeated",
                    seconds=seconds,
                    topic=f"bench-{name.replace('_', '-')}",
                    **spec,
                    **signed,
                )
    return results
