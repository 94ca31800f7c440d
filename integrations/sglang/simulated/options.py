"""What all simulated workers of one process share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """`time_scale`: simulated seconds per real one; every duration, the timeouts too, is a simulated one.

    `stream_interval`: tokens per streamed event, as SGLang's flag of that name. `half_pair_timeout_s`: how
    long half a pair waits for the other (SGLang: 300 s). Where a request does not ignore the end of
    sequence, its output ends after a lognormal number of tokens of `output_median` and `output_sigma`,
    drawn from `seed` and its prompt. `redis`: URL of the store that is sent telemetry, if any.
    """

    host: str = "127.0.0.1"
    time_scale: float = 1.0
    stream_interval: int = 1
    half_pair_timeout_s: float = 300.0
    context_tokens: int = 131_072
    output_median: float = 200.0
    output_sigma: float = 0.8
    seed: int = 0
    redis: str = ""

    def __post_init__(self) -> None:
        for name in ("time_scale", "stream_interval", "half_pair_timeout_s", "output_median"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.output_sigma < 0:
            raise ValueError(f"output_sigma must be at least 0, not {self.output_sigma}")
