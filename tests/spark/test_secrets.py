"""Secrets in options of ``format("rocketmq")`` appear nowhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from certificates import Authority
from reput.client import blocking
from reput.client.message import Message
from reput.testing import LocalBroker

SECRETS = ("hunter2-secret-key", "hunter2-security-token", "hunter2-key-password")
PASSWORD = SECRETS[2]


@pytest.mark.soak  # it starts a separate JVM, to read all that it prints
def test_output_event_logs_plans_progress_and_checkpoints(tmp_path: Path) -> None:
    copy, work = tmp_path / "copy", tmp_path / "work"
    Authority(work).issue("client", password=PASSWORD)
    with (
        LocalBroker(topics={"Orders": 2, "Copies": 2}) as mq,
        blocking.Producer("p", namesrv=mq.namesrv_addr) as producer,
    ):
        producer.send_many(Message("Orders", b"%d" % i) for i in range(40))
        mq.messages("Orders", at_least=40)
        shutil.copytree(mq.store_folder, copy)
        script = Path(__file__).with_name("secret_session.py")
        ran = subprocess.run(
            [sys.executable, script, work, mq.namesrv_addr, copy, *SECRETS],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable},
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        copied = mq.messages("Copies")
    assert len(copied) == 41
    for part in ("rows 40", "rows of SQL", "written", "numInputRows", "no server", "compare"):
        assert part in ran.stdout
    for part in ("no server fails", "wrong fails", "folder fails", "unknown fails"):
        assert part in ran.stdout
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"events", "checkpoint"} <= {path.relative_to(work).parts[0] for path in work.rglob("*")}
    texts = {str(path): path.read_bytes() for path in written}
    texts |= {"stdout": ran.stdout.encode(), "stderr": ran.stderr.encode()}
    assert "INFO org.apache.spark" in ran.stderr
    for name, text in texts.items():
        for secret in SECRETS:
            assert secret.encode() not in text, (name, secret)
