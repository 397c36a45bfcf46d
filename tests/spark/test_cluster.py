"""A standalone cluster: ways to install the package on workers, and jobs under faults.

Executors are separate processes here, so tasks are retried or run twice (speculation), and
executors are lost, as in production.
"""

import json
import shutil
import sysconfig
import tarfile
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import golden
import reput
from reput.format import kernels
from reput.store.files import paths
from spark.jobs_setting import files_below
from spark.standalone import StandaloneCluster

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]

VERSION, NAME = "4.9.7", "clean"
TORN = "torn/log-missing"
TESTS = Path(__file__).parents[1]
PACKAGES = Path(reput.__file__).parents[1]

FACTS = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

def facts(number):
    import reput
    from reput.format import kernels
    return sys.executable, reput.__file__, kernels.engine()

found = spark.sparkContext.parallelize(range(4), 4).map(facts).collect()
frame = spark.read.format("rocketmq").option("readIsolation", "all").load(sys.argv[1])
print(json.dumps({"workers": sorted(set(found)), "rows": frame.count()}))
"""

JOBS = '''
import json, os, signal, sys, time
from pathlib import Path

tests, store, torn, out = sys.argv[1:]
sys.path.insert(0, tests)

from pyspark import TaskContext
from pyspark.sql import SparkSession
from reput.spark.jobs import running
from reput.spark.jobs.archive import archive, verify
from reput.spark.jobs.audit import audit
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.restore import restore
from reput.spark.jobs.salvage import salvage
from spark.jobs_setting import settings

spark = SparkSession.builder.getOrCreate()
run_stage = running.SparkRunner.__call__


def executor_of(pid):
    """Return the JVM of a Python worker."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def run_with_faults(self, stage, function, tasks):
    folder = Path(out, "faults", self.job, stage)
    folder.mkdir(parents=True, exist_ok=True)

    def run(numbered):
        number, task = numbered
        if TaskContext.get().attemptNumber() == 0:
            fault = ("raises", "dies after its work", "is slow", "loses its executor")[number % 4]
            # An executor is lost once a stage: its tasks are retried and count as failed, too.
            is_new = not (folder / fault).exists()
            (folder / fault).touch()
            if fault == "raises":
                raise OSError("a disk that fails")
            if fault == "dies after its work":
                function(task)
                os._exit(9)
            if fault == "is slow":
                time.sleep(5)
            if fault == "loses its executor" and is_new:
                os.kill(executor_of(os.getpid()), signal.SIGKILL)
        return function(task)

    return run_stage(self, stage, run, list(enumerate(tasks)))


running.SparkRunner.__call__ = run_with_faults
config = settings("4.9.7")
result = {}
dispatch(spark, store, config=config, target=f"{out}/dispatched", range_bytes=100_000)
result["audited"] = audit(spark, store, config=config, range_bytes=100_000).messages
archive(spark, store, f"{out}/archive", include_last=True)
result["is_whole"] = verify(spark, f"{out}/archive").is_whole
restore(spark, f"{out}/archive", f"{out}/restored")
salvage(spark, torn, f"{out}/salvaged", config=config, partition_bytes=100_000)

frame = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
frame = frame.option("maxOffsetsPerTrigger", 300).option("minPartitions", 3).load(store)
writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{out}/checkpoint")
writer.trigger(availableNow=True).start(f"{out}/streamed").awaitTermination()
streamed = spark.read.parquet(f"{out}/streamed").select("topic", "queue_id", "queue_offset")
streamed.coalesce(1).write.parquet(f"{out}/places")
print(json.dumps(result))
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=2) as started:
        yield started


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the dependencies of reput, without reput."""
    root = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(root, symlinks=True, with_pip=False)
    (site,) = root.glob("lib/python*/site-packages")
    # A folder named by a .pth is searched; its own .pth files, as of an editable reput, are not.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return root


def script(folder: Path, code: str) -> Path:
    path = folder / "job.py"
    path.write_text(code)
    return path


def copy_packages(target: Path) -> None:
    for name in ("reput", "pyspark_rocketmq"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGES / name, target / name, ignore=ignored)


def test_workers_get_the_package_as_a_zip(
    cluster: StandaloneCluster, bare: Path, tmp_path: Path
) -> None:
    copy_packages(tmp_path / "shipped")
    packed = shutil.make_archive(str(tmp_path / "reput"), "zip", tmp_path / "shipped")
    done = cluster.submit(
        script(tmp_path, FACTS),
        str(golden.unpack(VERSION, NAME)),
        options=["--py-files", packed],
        python=f"{bare}/bin/python",
    )
    output = json.loads(done)
    want = [f"{bare}/bin/python", "./reput.zip/reput/__init__.py", kernels.engine()]
    assert output == {"workers": [want], "rows": len(golden.messages(VERSION, NAME))}


def test_workers_get_the_package_in_a_packed_environment(
    cluster: StandaloneCluster, bare: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    shutil.copytree(bare, environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    copy_packages(site)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as packed:
        packed.add(environment, ".")
    shutil.rmtree(environment)
    done = cluster.submit(
        script(tmp_path, FACTS),
        str(golden.unpack(VERSION, NAME)),
        options=["--archives", f"{tmp_path}/environment.tar.gz#environment"],
        python="./environment/bin/python",
    )
    output = json.loads(done)
    assert output["rows"] == len(golden.messages(VERSION, NAME))
    for executable, file, engine in output["workers"]:
        assert executable.endswith("/environment/bin/python")
        assert "/environment/lib/" in file
        assert engine == kernels.engine()


def test_jobs_survive_failed_and_slow_tasks_and_lost_executors(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    store, torn = golden.unpack(VERSION, NAME), golden.unpack(VERSION, TORN)
    done = cluster.submit(
        script(tmp_path, JOBS),
        *(str(TESTS), str(store), str(torn), str(tmp_path)),
        conf={
            "spark.task.maxFailures": "8",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.4",
            "spark.speculation.multiplier": "1.2",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.excludeOnFailure.enabled": "false",
        },
    )
    messages = golden.messages(VERSION, NAME)
    assert json.loads(done) == {"audited": len(messages), "is_whole": True}
    jobs = {path.name for path in (tmp_path / "faults").iterdir()}
    assert jobs == {"dispatch", "audit", "archive", "restore", "salvage"}
    faults = Counter(path.name for path in (tmp_path / "faults").glob("*/*/*"))
    assert set(faults) == {"raises", "dies after its work", "is slow", "loses its executor"}

    queues = paths.CONSUME_QUEUE
    assert files_below(tmp_path / "dispatched" / queues) == files_below(store / queues)
    logs = {path.name: path.read_bytes() for path in golden.log_files(tmp_path / "restored")}
    java = {path.name: path.read_bytes() for path in golden.log_files(store)}
    assert logs == {name: java[name] for name in logs}
    assert not list(tmp_path.glob("**/.*.tmp"))

    from reput.spark.jobs.salvage import salvage
    from spark.in_process import InProcess
    from spark.jobs_setting import settings

    salvage(InProcess(), str(torn), str(tmp_path / "here"), config=settings(VERSION))
    for family in (paths.COMMIT_LOG, queues):
        assert files_below(tmp_path / "salvaged" / family) == files_below(
            tmp_path / "here" / family
        )

    (file,) = (tmp_path / "places").glob("*.parquet")
    places = Counter(tuple(row.values()) for row in pq.read_table(file).to_pylist())
    in_queues = Counter(
        (topic.name, int(queue.name), number)
        for topic in (store / queues).iterdir()
        for queue in topic.iterdir()
        for number in range(_length(queue))
        if topic.name not in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    )
    assert places == in_queues


def _length(queue: Path) -> int:
    """Return the number of units that Java wrote: those with a size."""
    data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    return sum(
        data[position + 8 : position + 12] != bytes(4) for position in range(0, len(data), 20)
    )
