from dataclasses import replace
from typing import Any

import pytest

from kvferry.integrations.sglang.describe import worker_of
from kvferry.integrations.sglang.plugin.wire import WorkerRecord
from kvferry.integrations.sglang.telemetry_shape import shape_told
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout
from kvferry.policy.worker import Worker

TOLD = WorkerRecord("i", layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", bytes_per_token=131_072)


@pytest.fixture
def guessed(fake: Any) -> Worker:
    """A worker of a model that nobody here knows."""
    info = {**fake.golden("prefill_server_info"), "served_model_name": "ours", "model_path": "/nowhere/ours"}
    loads = fake.golden("prefill_loads")
    loads["loads"][0]["memory"] = {"token_capacity": 1 << 20, "kv_cache_gb": 128.0}
    return worker_of("http://w:1", info, loads)


def test_a_guess_gives_way_to_what_the_worker_tells(guessed: Worker) -> None:
    shape = shape_told(guessed, TOLD)
    assert shape is not None
    assert (shape.layers, shape.kv_heads, shape.head_dim) == (32, 8, 128)
    assert shape.bytes_per_token("bfloat16") == TOLD.bytes_per_token
    assert shape_told(replace(guessed, shape=shape), TOLD) is None  # that is none any more


def test_a_stage_and_a_rank_tell_their_part(guessed: Worker) -> None:
    part = WorkerRecord(
        "i", layers=16, pp=2, tp=2, kv_heads=8, head_dim=128, dtype="bfloat16", bytes_per_token=32_768
    )
    shape = shape_told(replace(guessed, layout=KVLayout(tp=2, pp=2)), part)
    assert shape is not None
    assert shape.bytes_per_token("bfloat16") == 131_072


@pytest.mark.parametrize(
    "told",
    [
        WorkerRecord("i", layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", bytes_per_token=36_864),
        WorkerRecord("i", layers=32, kv_heads=8, head_dim=128, dtype="weird", bytes_per_token=131_072),
        WorkerRecord("i"),
    ],
    ids=["another pool", "unknown dtype", "nothing told"],
)
def test_what_does_not_fit_the_pool_is_not_believed(guessed: Worker, told: WorkerRecord) -> None:
    assert shape_told(guessed, told) is None


def test_a_known_shape_stays(guessed: Worker) -> None:
    assert shape_told(replace(guessed, shape=KVShape(1, 1, 64, name="known")), TOLD) is None
