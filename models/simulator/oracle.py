"""The one policy that may see what no router can: for an upper mark, in the simulator only."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from kvferry.models.simulator.world import World
from kvferry.policy.base import Policy, make
from kvferry.policy.cluster import Cluster
from kvferry.policy.expected_loss import ExpectedLoss
from kvferry.policy.request import Request


@dataclass(frozen=True)
class Oracle(ExpectedLoss):
    """kvferry's own rule on perfect knowledge of outputs, speeds, bandwidths and loads. Still greedy: it
    decides one request at a time, so that it is an upper mark for predictions and not for plans."""

    @property
    def name(self) -> str:
        return "oracle"


def make_policy(spec: str) -> Policy:
    """As `policy.base.make`, with `oracle` beside the policies that can be served."""
    return Oracle() if spec.strip() == "oracle" else make(spec)


class Foresight:
    """Replaces what a router believes by what is true."""

    def __init__(self, world: World) -> None:
        self._world = world

    def look(self, request: Request, cluster: Cluster, output_tokens: int) -> tuple[Request, Cluster]:
        world, table, state = self._world, cluster.candidates, cluster.state
        places = [world.index[worker.id] for worker in table.workers]
        pace = np.array([1.0 / world.speeds[place] for place in places])
        engines = [world.engines[place] for place in places]
        loads = [engine.loads() for engine in engines]
        slowness = np.ones(len(state.link_slowness))
        for row in range(table.colocated_count, len(table.plans)):
            ends = (places[table.pre[row]], places[table.dec[row]])
            worst = max(world.slowness(place) for place in ends)
            slowness[table.link_index[row]] = max(slowness[table.link_index[row]], worst)
        state = dataclasses.replace(
            state,
            foreign_prefill_tokens=np.array(
                [
                    float(load["num_waiting_uncached_tokens"] + engine.computing_tokens)
                    for load, engine in zip(loads, engines, strict=True)
                ]
            ),
            foreign_decodes=np.array(
                [
                    float(load["num_running_reqs"] + load["disaggregation"]["decode_transfer_queue_reqs"])
                    for load in loads
                ]
            ),
            foreign_context_tokens=np.array([float(load["num_used_tokens"]) for load in loads]),
            own_prefill_tokens=np.zeros(len(places)),
            own_prefill_s=np.zeros(len(places)),
            own_decodes=np.zeros(len(places)),
            own_context_tokens=np.zeros(len(places)),
            **{
                name: getattr(state, name) * pace
                for name in (
                    "prefill_base_s",
                    "prefill_s_per_token",
                    "prefill_s_per_token2",
                    "decode_base_s",
                    "decode_s_per_sequence",
                    "decode_s_per_context_token",
                )
            },
        )
        state = dataclasses.replace(state, link_slowness=slowness)
        truth = float(output_tokens)
        request = dataclasses.replace(request, expected_output_tokens=truth, expected_output_tokens_p90=truth)
        return request, dataclasses.replace(cluster, state=state)
