"""Sends with TLS to the official broker and ours, beside the same without it.

Both make a certificate for tests: the official one RSA, ours P-256. That matters for the handshake
alone, which is not measured.
"""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_tls"
QUESTION = "sends/s and broker CPU a message with TLS; the official 4.9.7 broker beside ours"

CASES: dict[str, dict[str, object]] = {
    f"window_{window}_{name}{suffix}": {"window": window, "body_bytes": body_bytes, "tls": is_tls}
    for window in (64, 1)
    for name, body_bytes in (("128_b", 128), ("1_kib", 1024))
    for suffix, is_tls in (("", True), ("_plain", False))
}
QUICK = ("window_64_128_b", "window_64_128_b_plain")


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure each case; quick: one case with and without TLS, once, about 30 s."""
    repeats, seconds = (1, 1.5) if quick else (3, 2.5)
    cases = {name: CASES[name] for name in QUICK} if quick else CASES
    results: dict[str, object] = {}
    with targets.brokers(folder / NAME, accepts_tls=True) as brokers:
        targets.warm_up(brokers, 3.0 if quick else 7.0)
        for target in brokers if not quick else ():
            targets.load(target, "closed", tls=True, warm_up_s=5.0, seconds=0.5)
        for name, spec in cases.items():
            results[name] = targets.compare(brokers, repeats, "closed", seconds=seconds, **spec)
    return results
