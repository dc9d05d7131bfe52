"""From a decision to what a replica is asked."""

from collections.abc import Sequence
from math import floor

from octet.config.ensemble import SpecialistConfig
from octet.v1 import specialist_pb2 as wire
from router.decide.decision import Decision
from router.reception.ask import Ask, Turn

SYSTEM = "system"


def replica_request(
    ask: Ask, decision: Decision, specialist: SpecialistConfig, adapters: Sequence[str], seconds_left: float
) -> wire.GenerateRequest:
    """`specialist` is whoever is asked, which brings its own system prompt; `adapters` as its replicas call them."""
    longest = _longest(ask, decision, specialist)
    return wire.GenerateRequest(
        request_id=ask.request_id,
        chat=wire.Chat(
            messages=[_message(turn) for turn in _turns(ask, specialist)],
            tools=ask.tools,
            tool_choice=ask.tool_choice,
        ),
        adapters=adapters,
        sampling=decision.sampling,
        seed=ask.seed,
        max_tokens=longest,
        min_tokens=None if ask.min_tokens is None else min(ask.min_tokens, longest),
        stop=ask.stop,
        ignore_eos=ask.ignore_eos,
        priority=ask.priority,
        timeout_ms=max(1, floor(seconds_left * 1000)),
        first_token_timeout_ms=_first_token_ms(ask, seconds_left),
        tenant_salt=ask.tenant_salt,
        context_size=ask.context_size,
        session_key=ask.session.key,
        structure=ask.structure,
    )


def _first_token_ms(ask: Ask, seconds_left: float) -> int | None:
    if ask.first_deadline is None:
        return None
    return max(1, floor((seconds_left - (ask.deadline - ask.first_deadline)) * 1000))


def _message(turn: Turn) -> wire.Message:
    return wire.Message(
        role=turn.role, content=turn.content, tool_calls=turn.tool_calls, tool_call_id=turn.tool_call_id
    )


def _longest(ask: Ask, decision: Decision, specialist: SpecialistConfig) -> int:
    longest = decision.max_tokens
    if ask.max_tokens is None:
        longest = min(longest, max(specialist.max_tokens, ask.min_tokens or 0))
    return longest if specialist.context is None else min(longest, specialist.context)


def _turns(ask: Ask, specialist: SpecialistConfig) -> list[Turn]:
    """The specialist's system prompt first. A caller's own at the beginning follows it in the same message: many chat
    templates take one system message and no more, and neither may silently lose its word."""
    turns = list(ask.turns)
    if not specialist.system:
        return turns
    if turns[0].role == SYSTEM:
        return [Turn(SYSTEM, f"{specialist.system}\n\n{turns[0].content}"), *turns[1:]]
    return [Turn(SYSTEM, specialist.system), *turns]
