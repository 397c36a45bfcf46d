"""Run workloads and print one JSON document: ``python -m benchmarks [name ...] [--quick]``.

Each workload is a module of this package with ``NAME``, ``QUESTION`` and ``run(folder, quick)``;
``run`` of some has a parameter ``count``, the number of messages.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = (
    *("kernels", "log_write", "store_put", "store_get", "store_open", "many_queues"),
    "store_rebuild",
    "sql_filter",
    "arrow_scan",
    *(
        "spark_scan",
        "spark_accelerator",
        "spark_stream",
        "spark_live",
        "spark_import",
        "spark_sink",
    ),
    *("spark_archive", "spark_memory"),
    *("spark_dispatch", "spark_jobs", "store_info", "start"),
    *(
        "broker_send",
        "broker_lookup",
        "broker_tls",
        "broker_pull",
        "broker_access",
        "broker_latency",
        "broker_idle",
    ),
    "broker_official",
    *("grpc_unary", "grpc_proxy"),
    *("broker_pop", "broker_transaction", "broker_delay", "broker_retry", "broker_replication"),
    "broker_failover",
    "broker_many_queues",
    "console",
    "broker_several",
)


def machine() -> dict[str, object]:
    """Return the machine, the versions and the commit, on which the results depend."""
    cpu = "unknown"
    if Path("/proc/cpuinfo").exists():
        models = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
        cpu = models[0].split(":")[1].strip() if models else cpu
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": commit.stdout.strip(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    """Run the workloads that the arguments name, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--messages", type=int, help="number of messages, for spark_scan")
    parser.add_argument("--folder", type=Path, help="keep the stores in this folder")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {sorted(unknown)}; there are {', '.join(WORKLOADS)}")
    results: dict[str, object] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or WORKLOADS:
            workload = importlib.import_module(f"benchmarks.{name}")
            print(f"{name}: {workload.QUESTION}", file=sys.stderr, flush=True)
            named = {"count": arguments.messages} if arguments.messages else {}
            results[name] = workload.run(folder, arguments.quick, **named)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
