"""The feature's hooks on a scheduler of plain objects, up to the records that would be sent."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvferry.integrations.sglang.plugin.settings import WorkerSettings
from kvferry.integrations.sglang.plugin.telemetry import feature as feature_module
from kvferry.integrations.sglang.plugin.telemetry.feature import Telemetry
from kvferry.integrations.sglang.plugin.telemetry.loads import LoadWatch
from kvferry.integrations.sglang.plugin.telemetry.worker_record import transports_of, worker_record
from kvferry.integrations.sglang.plugin.wire import LocalLoad, Queues, RequestRecord, decode, encode

SECRET_WORDS = [7001, 7002, 7003]


class Disagg(msgspec.Struct, frozen=True):
    """One section of SGLang's LoadSnapshot."""

    mode: str = "decode"
    decode_prealloc_queue_reqs: int = 4


class Snapshot(msgspec.Struct):
    """As much of SGLang's LoadSnapshot as shows every kind of field."""

    timestamp: float = 123.5
    num_running_reqs: int = 2
    decode_moments: list[float] | None = None
    disaggregation: Disagg | None = Disagg()


def scheduler_of(mode: str) -> Any:
    stats = SimpleNamespace(get_kv_token_stats=lambda: (55, 0.5))
    return SimpleNamespace(
        disaggregation_mode=SimpleNamespace(value=mode),
        waiting_queue=[1, 2],
        running_batch=SimpleNamespace(reqs=[1]),
        pool_stats_observer=SimpleNamespace(get_pool_stats=lambda: stats),
        disagg_prefill_bootstrap_queue=SimpleNamespace(queue=[1] * 3),
        disagg_prefill_inflight_queue=[1] * 4,
        disagg_decode_prealloc_queue=SimpleNamespace(queue=[1] * 5, retracted_queue=[1] * 6),
        disagg_decode_transfer_queue=SimpleNamespace(queue=[1] * 7),
        load_inquirer=SimpleNamespace(get_loads=Snapshot),
        server_args=SimpleNamespace(
            host="10.0.0.5", port=30000, ssl_certfile=None, served_model_name="m", model_path="p", tp_size=2,
            pp_size=1, dp_size=1, disaggregation_bootstrap_port=8998, disaggregation_transfer_backend="nixl",
        ),
        model_config=SimpleNamespace(
            num_hidden_layers=9,
            head_dim=64,
            v_head_dim=32,
            vocab_size=32_000,
            get_total_num_kv_heads=lambda: 8,
        ),
        token_to_kv_pool_allocator=SimpleNamespace(
            get_kvcache=lambda: SimpleNamespace(
                layer_num=4, dtype="torch.bfloat16", get_contiguous_buf_infos=lambda: ([], [], [1024] * 8)
            )
        ),
        page_size=16,
        max_total_num_tokens=1000,
    )  # fmt: skip


def request_of(**changed: Any) -> Any:
    now = time.perf_counter()
    marks = dict.fromkeys(
        (
            "prefill_bootstrap_queue_entry_time", "bootstrap_done_time", "decode_prealloc_queue_entry_time",
            "decode_transfer_queue_entry_time", "decode_prebuilt_finish_time", "completion_time",
            "prefill_finished_time", "queue_duration_s",
        ),
        0.0,
    )  # fmt: skip
    marks |= {
        "scheduler_recv_time": now - 5, "wait_queue_entry_time": now - 4, "forward_entry_time": now - 3,
        "last_forward_entry_time": now - 3,
    }  # fmt: skip
    known = {
        "rid": "r1", "bootstrap_host": None, "bootstrap_room": None, "origin_input_ids": SECRET_WORDS,
        "output_ids": [7004], "cached_tokens": 2, "retraction_count": 0, "prefill_attempt_count": 0,
        "finished_reason": None, "time_stats": SimpleNamespace(**marks),
    }  # fmt: skip
    return SimpleNamespace(**known | changed)


class FINISH_LENGTH:
    """SGLang's reasons are known by the names of their classes."""


class FINISH_MATCHED_TOKEN:
    pass


class FINISH_ABORT:
    def __init__(self, status_code: int | None = None) -> None:
        self.status_code = status_code


class Worker:
    """A started feature; its hooks by the end of their target."""

    def __init__(self, mode: str, monkeypatch: pytest.MonkeyPatch, **ranks: int) -> None:
        parallel = {"attn_tp_rank": 0, "pp_rank": 0, "attn_cp_rank": 0, "attn_tp_size": 2, "pp_size": 1}
        context = SimpleNamespace(get_parallel=lambda: SimpleNamespace(**parallel | ranks))
        monkeypatch.setattr(feature_module.importlib, "import_module", lambda name: context)
        settings = WorkerSettings.load({"KVFERRY_REDIS": "unix:///nowhere/at/all"})
        self.feature = Telemetry(settings)
        self.feature.instance = "i1"
        self.scheduler = scheduler_of(mode)
        self.refused = self.feature.start(self.scheduler)

    def hook(self, name: str) -> Callable[..., Any]:
        return next(hook.function for hook in self.feature.hooks() if hook.target.endswith(name))

    def enter(self, request: Any, **more: Any) -> None:
        self.hook("._add_request_to_queue")(self.scheduler, request, **more)

    def stream(self, *requests: Any) -> None:
        self.hook(".stream_output")(None, list(requests), False)

    def records(self) -> list[RequestRecord]:
        sink = self.feature.sink
        assert sink is not None
        with sink._lock:
            waiting = list(sink._queue)
        found = [decode(encode(build())) for build in waiting]  # type: ignore[arg-type]
        assert all(isinstance(record, RequestRecord) for record in found)
        return found  # type: ignore[return-value]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(mode: str, **ranks: int) -> Worker:
        made.append(Worker(mode, monkeypatch, **ranks))
        return made[-1]

    yield make
    for one in made:
        one.feature.failed("the test is over")


def test_one_record_at_the_end_and_nothing_of_the_prompt(worker: Callable[..., Worker]) -> None:
    here = worker("null")
    request = request_of()
    here.enter(request)
    here.stream(request, request_of(rid="other"))
    assert here.records() == []  # it goes on
    request.finished_reason = FINISH_LENGTH()
    here.stream(request)
    here.stream(request)  # the overlapped loop does it twice
    (record,) = here.records()
    assert (record.worker, record.role, record.rid, record.finish) == ("i1", "colocated", "r1", "length")
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (3, 1, 2)
    assert record.at_enqueue == Queues(waiting=2, running=1, used_tokens=55)
    assert abs(record.ended_s - time.time()) < 60
    assert record.ended_s - record.received_s == pytest.approx(record.wall_s, abs=1e-5)
    text = encode(record).decode()
    assert not any(str(word) in text for word in [*SECRET_WORDS, 7004])
    assert here.feature.describe()["requests"] == 1


def test_what_a_request_found_by_role(worker: Callable[..., Worker]) -> None:
    found = {}
    for mode in ("prefill", "decode"):
        here = worker(mode)
        request = request_of(bootstrap_room=9, finished_reason=FINISH_MATCHED_TOKEN())
        here.enter(request)
        here.stream(request)
        (record,) = here.records()
        assert (record.role, record.room, record.finish) == (mode, 9, "stop")
        found[mode] = record.at_enqueue
    rest = {"waiting": 2, "running": 1, "used_tokens": 55}
    assert found["prefill"] == Queues(bootstrap=3, inflight=4, **rest)
    assert found["decode"] == Queues(prealloc=5, retracted=6, transfer=7, **rest)


def test_local_work_on_a_decode_worker(worker: Callable[..., Worker]) -> None:
    here = worker("decode")
    here.scheduler.kvferry_local_prefill = SimpleNamespace(local_load=lambda: LocalLoad(queue=8))
    request = request_of(kvferry_local=True, finished_reason=FINISH_LENGTH())
    here.enter(request)
    here.stream(request)
    (record,) = here.records()
    assert record.role == "local"
    assert record.at_enqueue.local == 8
    assert record.stages.queue_s is not None
    assert record.stages.transfer_s is None


def test_what_the_plugin_and_sglang_send_themselves_is_left_out(worker: Callable[..., Worker]) -> None:
    here = worker("prefill")
    for probe in (request_of(bootstrap_host="2.2.2.2"), request_of(rid="HEALTH_CHECK_1")):
        here.enter(probe)
        probe.finished_reason = FINISH_LENGTH()
        here.stream(probe)
    assert here.records() == []


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FINISH_ABORT(), "abort"), (FINISH_ABORT(499), "abort"), (FINISH_ABORT(500), "error"), (None, "abort")],
)
def test_ends_that_never_reach_the_stream(worker: Callable[..., Worker], reason: Any, word: str) -> None:
    here = worker("decode")
    request = request_of(finished_reason=reason)
    here.hook(".send_abort_output")(here.scheduler, None, request)
    here.hook(".send_abort_output")(here.scheduler, None, request)
    (record,) = here.records()
    assert record.finish == word
    assert record.at_enqueue == Queues()  # it was never let in


def test_a_request_that_a_full_queue_refused(worker: Callable[..., Worker]) -> None:
    here = worker("null")
    told = SimpleNamespace(finished_reason={"type": "abort", "status_code": 503})
    here.hook(".send_abort_output")(here.scheduler, told, request_of())
    (record,) = here.records()
    assert record.finish == "error"


def test_a_client_cannot_fill_the_store_with_an_id(worker: Callable[..., Worker]) -> None:
    here = worker("null")
    here.hook(".send_abort_output")(here.scheduler, None, request_of(rid="x" * 4_000_000))
    (record,) = here.records()
    assert len(encode(record)) < 2000


class Received(msgspec.Struct):
    """As much of SGLang's TokenizedGenerateReqInput as matters: nothing can be hung on it."""

    rid: str = "r1"
    bootstrap_host: str | None = None
    bootstrap_room: int | None = None


def test_what_is_refused_as_it_comes_in_is_passed_over(worker: Callable[..., Worker]) -> None:
    here = worker("decode")
    for _ in range(3):
        here.hook(".send_abort_output")(here.scheduler, None, Received())
    assert not here.records()


def test_the_first_wait_survives_a_retraction(worker: Callable[..., Worker]) -> None:
    here = worker("decode")
    request = request_of()
    marks = request.time_stats
    here.enter(request)
    waited_s = marks.wait_queue_entry_time
    for _ in range(2):
        here.enter(request, is_retracted=True)
        marks.wait_queue_entry_time += 1.5
        marks.last_forward_entry_time = marks.wait_queue_entry_time
    marks.queue_duration_s = 1.0 + 0.25
    request.finished_reason, request.retraction_count = FINISH_LENGTH(), 2
    here.stream(request)
    (record,) = here.records()
    assert record.retractions == 2
    assert record.stages.transfer_s == pytest.approx(waited_s - marks.scheduler_recv_time, abs=1e-5)
    assert record.stages.requeue_s == pytest.approx(0.25, abs=1e-5)


def test_only_the_first_rank_speaks(worker: Callable[..., Worker]) -> None:
    for ranks in ({"attn_tp_rank": 1}, {"pp_rank": 1}, {"attn_cp_rank": 1}):
        here = worker("null", **ranks)
        assert here.refused is None
        request = request_of(finished_reason=FINISH_LENGTH())
        here.enter(request)
        here.stream(request)
        here.hook(".publish_load_snapshot")(None, here.scheduler)
        assert here.feature.sink is None
        assert here.feature.describe() == {"silent": "the first rank speaks for this one"}


def test_says_what_it_lacks() -> None:
    def missing(**env: str) -> str:
        return str(Telemetry(WorkerSettings.load(env)).missing())

    assert missing() == "no KVFERRY_REDIS: nowhere to send records"
    wrong = missing(KVFERRY_REDIS="http://ferry:s3cret@host")
    assert "KVFERRY_REDIS" in wrong
    assert "s3cret" not in wrong
    assert missing(KVFERRY_REDIS="redis://host") == "None"


def test_hooks_of_a_transport_that_cannot_be_imported_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(feature_module.sys.modules, "sglang.srt.managers.scheduler", SimpleNamespace())

    def found(*absent: str) -> str:
        def import_module(name: str) -> None:
            if any(part in name for part in absent):
                raise ImportError(name)

        monkeypatch.setattr(feature_module.importlib, "import_module", import_module)
        targets = [hook.target for hook in Telemetry(WorkerSettings.load({})).hooks()]
        return " ".join(targets)

    both, one, none = found(), found("nixl"), found("nixl", "mooncake")
    assert "Nixl" in both
    assert "Mooncake" in both
    assert "Nixl" not in one
    assert "Mooncake" in one
    assert "FastQueue" in one
    assert "FastQueue" not in none
    assert "stream_output" in none


def test_load_is_taken_when_due_on_the_schedulers_thread() -> None:
    taken = []

    def get_loads() -> Snapshot:
        taken.append(threading.get_ident())
        return Snapshot()

    scheduler = scheduler_of("decode")
    scheduler.load_inquirer.get_loads = get_loads
    scheduler.kvferry_local_prefill = SimpleNamespace(local_load=lambda: LocalLoad(queue=3))
    watch = LoadWatch(scheduler, 3600.0)
    for _ in range(5):
        watch.published(None)  # SGLang was throttled
    assert taken == [watch.thread]
    record = watch.record("w", sent=1)
    assert record.load == {"num_running_reqs": 2.0, "disaggregation.decode_prealloc_queue_reqs": 4.0}
    assert (record.taken_s, record.sent, record.local) == (123.5, 1, LocalLoad(queue=3))
    watch.published(Snapshot(num_running_reqs=9))  # SGLang's own is as good
    assert watch.record("w").load["num_running_reqs"] == 9.0


def test_what_a_worker_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib as real

    version = SimpleNamespace(__version__="0.5.23")
    monkeypatch.setattr(real, "import_module", lambda name: version)
    scheduler = scheduler_of("prefill")
    record = worker_record(scheduler, "i1", transports_of(scheduler), local=False)
    assert (record.url, record.role, record.dtype) == ("http://10.0.0.5:30000", "prefill", "bfloat16")
    assert (record.layers, record.kv_heads, record.head_dim, record.v_head_dim) == (4, 8, 64, 32)
    assert record.vocab_tokens == 32_000
    assert record.bytes_per_token == 8 * 1024 // 16
    assert (record.tp, record.page_size, record.max_total_tokens) == (2, 16, 1000)
    assert record.transports == {"nixl": 8998}
    assert transports_of(scheduler_of("decode")) == {"nixl": None}
    assert transports_of(scheduler_of("null")) == {}
    scheduler.kvferry_transports = {"mooncake": 1, "nixl": 2}
    assert transports_of(scheduler) == {"mooncake": 1, "nixl": 2}
    scheduler.server_args.host = "0.0.0.0"
    assert "0.0.0.0" not in worker_record(scheduler, "i1", {}, local=False).url


def test_a_kv_pool_that_cannot_be_moved_has_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib as real

    monkeypatch.setattr(real, "import_module", lambda name: SimpleNamespace(__version__="x"))
    scheduler = scheduler_of("null")
    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()

    def refuses() -> None:
        raise NotImplementedError

    pool.get_contiguous_buf_infos = refuses
    scheduler.token_to_kv_pool_allocator.get_kvcache = lambda: pool
    assert worker_record(scheduler, "i1", {}, local=False).bytes_per_token == 0
