"""The fixtures, in a separate pytest process."""

import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = """
import pytest

from reput.client import Message
from reput.client.blocking import Producer

folders = []


def send(mq):
    with Producer("P", namesrv=mq.namesrv_addr) as producer:
        return producer.send(Message("Orders", b"one"))


@pytest.mark.parametrize("round_number", range(3))
def test_each_begins_with_nothing(rocketmq, round_number):
    folders.append(rocketmq.store_folder)
    assert send(rocketmq).queue_offset == 0
    assert [one.body for one in rocketmq.messages("Orders")] == [b"one"]


@pytest.mark.rocketmq(brokerName="other", flushDiskType="SYNC_FLUSH")
def test_one_of_its_own(rocketmq):
    assert send(rocketmq).queue.broker_name == "other"
    assert rocketmq.store_folder not in folders
    assert len(set(folders)) == 1


def test_the_shared_one(rocketmq, rocketmq_of_session):
    assert rocketmq is rocketmq_of_session
    assert rocketmq.store_folder in folders
"""


def test_the_fixtures(tmp_path: Path) -> None:
    tmp_path.joinpath("test_it.py").write_text(textwrap.dedent(TESTS))
    # Also with the plugin installed, and then under its entry point's name.
    loaded = ("-p", "no:reput", "-p", "reput.testing.pytest_plugin")
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-W", "error", *loaded]
    without = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio")
    done = subprocess.run(
        [*command, *without, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_the_plugin_does_not_slow_down_pytest() -> None:
    code = "import sys, reput.testing.pytest_plugin; print('reput.broker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
