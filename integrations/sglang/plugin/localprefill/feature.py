"""A decode worker that prefills by itself the requests that ask for it, beside split ones."""

from collections.abc import Sequence
from typing import Any

from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.localprefill.abort import Aborts
from kvferry.integrations.sglang.plugin.localprefill.admission import Admission
from kvferry.integrations.sglang.plugin.localprefill.drain import close
from kvferry.integrations.sglang.plugin.localprefill.intake import Intake
from kvferry.integrations.sglang.plugin.localprefill.marker import translate
from kvferry.integrations.sglang.plugin.localprefill.refuse import unsupported
from kvferry.integrations.sglang.plugin.localprefill.report import Report
from kvferry.integrations.sglang.plugin.localprefill.schedule import Schedule
from kvferry.integrations.sglang.plugin.localprefill.state import State
from kvferry.integrations.sglang.plugin.settings import WorkerSettings
from kvferry.integrations.sglang.plugin.wire import LocalLoad

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_DECODE = "sglang.srt.disaggregation.decode"
_STEP = f"{_DECODE}.SchedulerDisaggregationDecodeMixin"
_PREALLOC = f"{_DECODE}.DecodePreallocQueue"
_PARTS = "sglang.srt.managers.scheduler_components"


class LocalPrefill(Feature):
    """A local request waits in a queue of its own, is prefilled in chunks between decode steps, joins the
    running batch and ends as on a colocated worker. While it is on, `scheduler.kvferry_local_prefill` is
    this object, and a local Req has `kvferry_local`."""

    name = "local_prefill"
    relies_on = (
        *(
            f"{_SCHEDULER}.{name}"
            for name in (
                "get_next_batch_to_run",
                "get_new_batch_prefill",
                "_get_new_batch_prefill_raw",
                "get_num_allocatable_reqs",
                "update_running_batch",
                "process_pending_chunked_abort",
                "stash_chunked_request",
                "retire_unadmitted_request",
                "_set_or_validate_priority",
                "_release_aborted_request",
                "send_abort_output",
                "pause_generation",
                "on_idle",
            )
        ),
        *(
            f"{_STEP}.{name}"
            for name in (
                "event_loop_normal_disagg_decode",
                "event_loop_overlap_disagg_decode",
                "_get_new_prebuilt_batch",
                "process_decode_queue",
            )
        ),
        *(
            f"{_PREALLOC}.{name}"
            for name in (
                "add",
                "resume_retracted_reqs",
                "_required_admission_tokens",
                "_prealloc_required_tokens",
            )
        ),
        f"{_PARTS}.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_prefill",
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_chunked_req",
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        "sglang.srt.managers.schedule_batch.release_req",
        "sglang.srt.managers.schedule_batch.ScheduleBatch.merge_batch",
        "sglang.srt.disaggregation.utils.is_unadmitted_reject",
    )

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.state = State(settings.local_prefill)
        self.report = Report(self.state)

    @property
    def enabled(self) -> bool:
        return self.settings.local_prefill.enabled

    def hooks(self) -> Sequence[Hook]:
        intake, aborts, admission = Intake(self.state), Aborts(self.state), Admission(self.state)
        schedule = Schedule(self.state, admission)
        return (
            Hook(
                "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request", "before", translate
            ),
            Hook(f"{_SCHEDULER}._handle_generate_request", "around", intake.handle),
            Hook(f"{_SCHEDULER}._create_generation_req", "around", intake.create),
            Hook(f"{_SCHEDULER}._add_request_to_queue", "around", intake.add),
            Hook(f"{_PREALLOC}.hold_rebootstrap", "around", intake.hold),
            Hook(f"{_SCHEDULER}.abort_request", "before", aborts.abort),
            Hook(f"{_SCHEDULER}._poll_timeout_aborts", "around", aborts.poll),
            Hook(f"{_SCHEDULER}.is_fully_idle", "after", aborts.idle),
            Hook(f"{_PREALLOC}._active_req_count", "after", admission.count_active),
            Hook(f"{_PREALLOC}._allocatable_token_budgets", "after", admission.budget),
            Hook(f"{_PREALLOC}.pop_preallocated", "after", admission.split_admitted),
            Hook(f"{_STEP}.get_next_disagg_decode_batch_to_run", "around", schedule.next_batch),
            Hook(f"{_SCHEDULER}.process_batch_result", "after", schedule.result),
            Hook(f"{_PARTS}.load_inquirer.SchedulerLoadInquirer.get_loads", "after", self.report.snapshot),
            Hook(
                f"{_PARTS}.output_streamer._GenerationStreamAccumulator.accept", "around", self.report.accept
            ),
        )

    def start(self, scheduler: Any) -> str | None:
        refused = unsupported(scheduler)
        if refused is None:
            self.state.begin(scheduler)
            scheduler.kvferry_local_prefill = self
        return refused

    def failed(self, why: str) -> None:
        if self.state.scheduler is not None:
            self.state.scheduler.kvferry_local_prefill = None
        close(self.state)

    def local_load(self) -> LocalLoad:
        """Queue and stalls, for the load record."""
        return self.report.load()

    def describe(self) -> dict[str, Any]:
        return self.report.describe() if self.state.scheduler is not None else {}
