"""What an arm is judged by: whether a request missed its objectives."""

from kvferry.integrations.log.record import Outcome, RequestFacts


def missed(request: RequestFacts, outcome: Outcome) -> bool | None:
    """Whether it failed, or missed its TTFT or its ITL. None: nothing can be said.

    Without a stream nobody sees a first token, and whether the router learns when it was depends on the plan:
    there the whole answer must not take longer than both objectives allow for its tokens. A client that left
    says nothing, but where its first token was overdue already.
    """
    slo = request.slo
    if outcome.status == "rejected":
        return None
    if outcome.status == "failed":
        return True
    if outcome.status == "cancelled":
        waited_s = outcome.e2e_s if outcome.ttft_s is None else outcome.ttft_s
        return True if request.stream and waited_s is not None and waited_s > slo.ttft_s else None
    if request.stream:
        if outcome.ttft_s is None:
            return None
        return outcome.ttft_s > slo.ttft_s or (outcome.itl_s or 0.0) > slo.itl_s
    if outcome.e2e_s is None:
        return None
    tokens = (outcome.output_tokens or 1) / max(1, request.sequences)
    return outcome.e2e_s > slo.ttft_s + slo.itl_s * max(0.0, tokens - 1.0)
