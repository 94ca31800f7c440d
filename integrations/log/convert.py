"""From a decision in memory to its record."""

import math
from itertools import islice
from typing import Literal

import msgspec

from kvferry.integrations.log.record import (
    NEVER_S,
    Alternative,
    Chosen,
    DecisionRecord,
    Outcome,
    Picture,
    Propensity,
    RequestFacts,
    Slo,
    Term,
    Terms,
)
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.decision import Decision
from kvferry.policy.features import FEATURE_SET
from kvferry.policy.plan import Plan, Split
from kvferry.policy.request import Request

ALTERNATIVES = 3
REASONS_AGAINST = 256  # a record stays small on a cluster with thousands of candidates


def record_of(
    request: Request,
    decision: Decision,
    *,
    time_s: float,
    router: str,
    decide_us: float = 0.0,
    view_age_s: float | None = None,
    endpoint: str = "",
    stream: bool = False,
    on_decode: bool = False,
    mode: Literal["live", "canary", "shadow"] = "live",
    arm: str = "",
    outcome: Outcome | None = None,
    picture: Picture | None = None,
) -> DecisionRecord:
    """The record of one decision. `time_s`: Unix seconds; `view_age_s` defaults to the decision's own;
    `on_decode`: a colocated plan's worker is a decode worker.

    Seconds are rounded to a microsecond, and a prediction that is not finite becomes `NEVER_S`.
    """
    costs = decision.costs
    chosen = _chosen(decision.plan, costs, on_decode)
    return DecisionRecord(
        id=request.id,
        time=round(time_s, 6),
        router=router,
        policy=decision.policy,
        model_version=decision.model_version,
        mode=mode,
        request=RequestFacts(
            model=request.model,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.held_tokens.get(chosen.prefill, 0),
            max_new_tokens=request.max_new_tokens,
            expected_output_tokens=_number(request.expected_output_tokens),
            expected_output_tokens_p90=_number(request.expected_output_tokens_p90),
            sequences=request.sequences,
            priority=request.priority,
            slo=Slo(_number(request.slo.ttft_s), _number(request.slo.itl_s)),
            endpoint=endpoint,
            stream=stream,
            seed=request.seed,
            tenant=request.tenant,
            family=request.family,
        ),
        chosen=chosen,
        reason=str(decision.reason),
        reasons_against={k: str(v) for k, v in islice(decision.reasons_against.items(), REASONS_AGAINST)},
        terms=terms_of(costs),
        alternatives=tuple(_alternative(plan, c) for plan, c in decision.alternatives[:ALTERNATIVES]),
        propensity=Propensity(decision.propensity_mode, decision.propensity_plan),
        safe_rule=decision.safe_rule,
        deadline_s=_number(decision.deadline_s),
        view_age_s=_number(decision.view_age_s if view_age_s is None else view_age_s),
        decide_us=_number(decide_us),
        structured_ttft_s=_number(costs.structured_ttft_s),
        structured_itl_s=_number(costs.structured_itl_s),
        catalogue_transfer_s=_number(costs.catalogue_transfer_s),
        fallback=costs.fallback,
        features=costs.features,
        feature_set=FEATURE_SET if costs.features else "",
        explored=decision.explored,
        arm=arm,
        picture=picture,
        outcome=outcome,
    )


def joined(record: DecisionRecord, outcome: Outcome) -> DecisionRecord:
    """The same record with its outcome."""
    return msgspec.structs.replace(record, outcome=outcome)


def terms_of(costs: Costs) -> Terms:
    """The costs of a plan as the record spells them."""
    return Terms(
        queue_s=_term(costs.queue_s),
        prefill_s=_term(costs.prefill_s),
        transfer_s=_term(costs.transfer_s),
        repack_s=_term(costs.repack_s),
        admission_s=_term(costs.admission_s),
        ttft_s=_term(costs.ttft_s),
        itl_s=_term(costs.itl_s),
        harm_s=_term(costs.harm_s),
    )


def _chosen(plan: Plan, costs: Costs, on_decode: bool) -> Chosen:
    split = isinstance(plan, Split)
    return Chosen(
        plan=plan.key,
        mode="split" if split else "colocated",
        prefill=plan.prefill if isinstance(plan, Split) else plan.worker,
        decode=plan.decode if isinstance(plan, Split) else plan.worker,
        transport=plan.transport if isinstance(plan, Split) else None,
        relation=costs.relation,
        path_class=costs.path_class,
        moved_bytes=int(costs.moved_bytes),
        descriptors=int(costs.descriptors),
        score=_number(costs.score),
        on_decode=on_decode and not split,
    )


def _alternative(plan: Plan, costs: Costs) -> Alternative:
    return Alternative(
        plan=plan.key,
        terms=terms_of(costs),
        score=_number(costs.score),
        relation=costs.relation,
        moved_bytes=int(costs.moved_bytes),
        descriptors=int(costs.descriptors),
    )


def _term(estimate: Estimate) -> Term:
    return Term(_number(estimate.p50), _number(estimate.p90), _number(estimate.p99))


def _number(value: float) -> float:
    # float() also turns a numpy scalar, which JSON encoders refuse, into a plain one
    value = float(value)
    return round(value, 6) if math.isfinite(value) else NEVER_S
