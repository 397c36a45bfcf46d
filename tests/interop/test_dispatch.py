"""RocketMQ's own store opens queues and index written by the dispatch job."""

import shutil
from pathlib import Path

import pytest

from interop import same_puts
from interop.java_store import JavaStore
from interop.same_puts import StoreModel, assert_java_has, everything, settings_of
from interop.test_java_opens_ours import an_hour_ago, put_all
from reput import config
from reput.spark.jobs.dispatch import run_dispatch
from reput.store.config import StoreConfig
from reput.store.files import paths
from spark.dispatch_setting import Here

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


def test_java_reads_a_rebuilt_store_by_queue_and_by_key(
    java_store: JavaStore, tmp_path: Path
) -> None:
    version = java_store.version
    settings = settings_of(version)
    clock, model = an_hour_ago(), StoreModel()
    with same_puts.open_ours(tmp_path, settings, clock) as store:
        put_all(store, everything(version), clock, model)
        ends = (store.min_physical_offset, store.max_physical_offset)
    for family in (paths.CONSUME_QUEUE, paths.INDEX):
        shutil.rmtree(tmp_path / family)
    explicit = {"store_path_root_dir": str(tmp_path)}
    texts = {name: str(value) for name, value in settings.items()}
    made_with = config.load(StoreConfig, texts, environment={}, explicit=explicit).value
    result = run_dispatch(
        Here(), str(tmp_path), config=made_with, in_place=True, range_bytes=50_000
    )
    assert result.units == sum(map(len, model.queues.values()))

    view = same_puts.open_with_java(java_store, tmp_path, settings, model)
    assert_java_has(model, view, has_tags=False)
    assert (view.min_physical_offset, view.max_physical_offset) == ends
