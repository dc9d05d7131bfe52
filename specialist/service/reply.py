"""What the service says, in the words of the wire."""

from collections.abc import Callable, Mapping

from admission.forecast import Admit, EstimateErrors, Refuse
from admission.forecast.verdict import Deadline
from octet.identity import Lane
from octet.rpc.refusal import (
    Refusal,
    cancelled,
    deadline_unreachable,
    engine_failed,
    invalid,
    past_deadline,
    past_first_token,
    queue_full,
    shed,
    would_delay_others,
)
from octet.v1 import specialist_pb2 as wire
from specialist.conversations import MissReason
from specialist.request import FinishReason
from specialist.sampling import TokenLogprobs
from specialist.service.answer import Piece
from specialist.service.job import Job, Usage, Verdict
from specialist.service.load import DeskLoad, Load, Seats

_REASONS: dict[FinishReason, wire.FinishReason] = {
    "stop": wire.FINISH_REASON_STOP,
    "length": wire.FINISH_REASON_LENGTH,
    "cancelled": wire.FINISH_REASON_CANCELLED,
    "deadline": wire.FINISH_REASON_DEADLINE,
    "error": wire.FINISH_REASON_ERROR,
    "shed": wire.FINISH_REASON_SHED,
}

_TIMEOUTS: dict[Deadline, str] = {"end": "timeout_ms", "first": "first_token_timeout_ms"}

_MISSES: dict[MissReason, wire.MissReason] = {
    "": wire.MISS_REASON_UNSPECIFIED,
    "first_time": wire.MISS_REASON_FIRST_TIME,
    "evicted": wire.MISS_REASON_EVICTED,
    "other_adapter": wire.MISS_REASON_OTHER_ADAPTER,
    "diverged": wire.MISS_REASON_DIVERGED,
    "cache_off": wire.MISS_REASON_CACHE_OFF,
    "no_session": wire.MISS_REASON_NO_SESSION,
    "no_boundary": wire.MISS_REASON_NO_BOUNDARY,
}


def event_of(job: Job, news: Verdict | Piece | Usage) -> wire.GenerateEvent:
    if isinstance(news, Verdict):
        return wire.GenerateEvent(accepted=_accepted(job, news))
    if isinstance(news, Piece):
        return wire.GenerateEvent(chunk=_chunk(news, job.answer.spell))
    return wire.GenerateEvent(usage=_usage(news))


def refusal_of(refuse: Refuse, max_waiting: int) -> Refusal:
    match refuse.reason:
        case "deadline_unreachable":
            return deadline_unreachable(_TIMEOUTS[refuse.deadline], refuse.limit, refuse.arithmetic, refuse.retry_after)
        case "would_delay_others":
            return would_delay_others(refuse.limit, refuse.arithmetic, refuse.retry_after)
        case "queue_full":
            return queue_full("waiting", max_waiting, refuse.retry_after)


def failure_of(job: Job, usage: Usage, retry_after: Callable[[], float | None]) -> Refusal | None:
    """The status behind the usage; None for OK."""
    match usage.reason:
        case "stop" | "length":
            return None
        case "deadline":
            return past_first_token() if _had_no_token(job, usage) else past_deadline()
        case "cancelled":
            return cancelled()
        case "error":
            return _lost_form(job) if usage.has_lost_form else engine_failed(job.public_id)
        case "shed":
            return shed(retry_after())


def _had_no_token(job: Job, usage: Usage) -> bool:
    """Whether it ended because its first token did not come in time."""
    request = job.request
    return not usage.completion_tokens and request.first_deadline == request.nearest_deadline is not None


def _lost_form(job: Job) -> Refusal:
    """The caller's own doing: no other replica would do better, and this one is well."""
    field = "tools" if job.answer.reads_calls else "structure"
    return invalid(field, "a form that can be followed to its end at little cost", "one that became too costly")


def lane_of(lane: Lane) -> wire.Lane:
    return wire.Lane(specialist=lane.specialist, revision=lane.revision, adapter_digests=lane.adapters)


def residents_of(names: Mapping[str, str]) -> list[wire.ResidentAdapter]:
    return [wire.ResidentAdapter(name=name, digest=digest) for name, digest in sorted(names.items())]


def report_of(
    load: Load, names: Mapping[str, str], seats: Seats, desk: DeskLoad, *, preempting: bool, draining: bool
) -> wire.LoadReport:
    return wire.LoadReport(
        refusing=desk.refusing,
        shadows=desk.shadows,
        usual_wait=desk.usual_wait,
        estimate_error=None if desk.errors is None else _errors(desk.errors),
        waiting=load.waiting,
        running=load.running,
        blocks=wire.Blocks(
            total=load.total_blocks, free=load.free_blocks, cached=load.cached_blocks, used=load.used_blocks
        ),
        preempting=preempting,
        times_preempted=load.times_preempted,
        prefill_rate=load.rates.prefill,
        decode_rate=load.rates.decode,
        drain_rate=load.rates.drain,
        adapters=residents_of(names),
        draining=draining,
        max_running=seats.running,
        max_waiting=seats.waiting,
        prompt_tokens=load.prompt_tokens,
        cache_hit_tokens=load.cache_hit_tokens,
        evicted_blocks=load.evicted_blocks,
    )


def _errors(errors: EstimateErrors) -> wire.EstimateError:
    return wire.EstimateError(
        step_p50=errors.step_p50,
        step_p90=errors.step_p90,
        total_p50=errors.total_p50,
        total_p90=errors.total_p90,
        num_requests=errors.num_requests,
    )


def _accepted(job: Job, verdict: Verdict) -> wire.Accepted:
    return wire.Accepted(
        request_id=job.public_id,
        lane=lane_of(job.request.lane),
        prompt_tokens=len(job.request.prompt),
        queue_position=verdict.queue_position,
        max_tokens=job.request.max_tokens,
        seed=job.request.seed,
        forecast=None if job.admit is None else _forecast(job.admit),
    )


def _forecast(admit: Admit) -> wire.Forecast | None:
    outlook = admit.outlook
    if outlook is None:
        return None
    return wire.Forecast(
        wait=outlook.wait,
        total=outlook.total,
        slack=outlook.slack,
        displaced=len(admit.displaced),
        set_aside=len(admit.aside),
    )


def _chunk(piece: Piece, spell: Callable[[int], bytes]) -> wire.Chunk:
    """Without log probabilities no token has to be spelled."""
    each = zip(piece.tokens, piece.logprobs, strict=False)
    logprobs = [_logprobs(token, likely, spell) for token, likely in each]
    calls = [
        wire.ToolCallPart(index=part.index, id=part.call_id, name=part.name, arguments=part.arguments)
        for part in piece.calls
    ]
    return wire.Chunk(text=piece.text, token_ids=piece.tokens, logprobs=logprobs, tool_calls=calls)


def _logprobs(chosen: int, logprobs: TokenLogprobs, spell: Callable[[int], bytes]) -> wire.TokenLogprobs:
    top = [wire.TokenLogprob(token=token, logprob=logprob, piece=spell(token)) for token, logprob in logprobs.top]
    return wire.TokenLogprobs(chosen=logprobs.chosen, top=top, piece=spell(chosen))


def _usage(usage: Usage) -> wire.Usage:
    return wire.Usage(
        finish_reason=_REASONS[usage.reason],
        stop_string=usage.stop_string,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cache_hit_tokens=usage.cache_hit_tokens,
        miss_reason=_MISSES[usage.miss_reason],
        times_preempted=usage.times_preempted,
        timings=wire.Timings(
            queued=usage.queued,
            prefill=usage.prefill,
            decode=usage.decode,
            total=usage.total,
            preempted=usage.preempted,
        ),
    )
