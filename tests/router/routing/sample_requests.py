"""Sample requests: with fields in range, with fields out of range, and arbitrary messages."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import strategies as st

from octet.clock import Clock, ManualClock
from octet.config.ensemble import SpecialistConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.request import Request, RoutingDecision, Tracer
from router.routing.policy import build_replica_request
from router.routing.validation import RequestValidator

DEFAULT_TIMEOUT = 120.0
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = st.from_regex(r"[a-z0-9._-]{1,12}", fullmatch=True)
INT64 = st.integers(-(2**63), 2**63 - 1)
DOUBLE = st.floats(allow_nan=True, allow_infinity=True)
SAMPLING_NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"
)  # fmt: skip


def new_validator(clock: Clock | None = None) -> RequestValidator:
    """Return a validator whose ids and traces count up instead of being random."""
    ids, draws = count(1), count(1)
    tracer = Tracer(lambda num_bytes: next(draws).to_bytes(num_bytes, "big"))
    return RequestValidator(
        clock or ManualClock(), lambda: f"made-{next(ids)}", tracer, default_timeout=DEFAULT_TIMEOUT
    )


def validated_request(**fields: Any) -> Request:
    fields.setdefault("prompt", "" if "messages" in fields else "sort a vector of pairs")
    return new_validator().validate(wire.InferRequest(**fields), None, None)


def replica_request(
    request: Request,
    decision: RoutingDecision,
    specialist: SpecialistConfig,
    adapters: Sequence[str],
    seconds_left: float,
) -> specialist_wire.GenerateRequest:
    request.decision = decision
    return build_replica_request(request, specialist, adapters, seconds_left)


def _message(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=fields).map(lambda chosen: kind(**chosen))


def _numbers(fields: tuple[str, ...], values: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(fields, values)


STRUCTURES = (
    wire.Structure(json_object=True),
    wire.Structure(json_schema='{"type": "object"}'),
    wire.Structure(regex="a+"),
    wire.Structure(choice=wire.Choices(choices=["yes", "no"])),
)

anything = _message(
    wire.InferRequest,
    request_id=TEXT,
    prompt=TEXT,
    template=TEXT | st.just("{prompt} {body}"),
    body=TEXT,
    messages=st.lists(_message(wire.Message, role=st.sampled_from(["user", "tool"]) | TEXT, content=TEXT), max_size=4),
    intent=TEXT | NAMES,
    force_specialists=st.lists(NAMES | TEXT, max_size=3),
    exclude_specialists=st.lists(NAMES | TEXT, max_size=3),
    adapters=st.lists(NAMES | TEXT, max_size=6),
    sampling=_message(
        wire.Sampling,
        top_k=INT64,
        num_logprobs=INT64 | st.integers(0, 20),
        logit_bias=st.lists(_message(wire.LogitBias, token=INT64 | st.integers(0, 9), bias=DOUBLE), max_size=3),
        **_numbers(SAMPLING_NUMBERS, DOUBLE | st.floats(0, 2)),
    ),
    stop=st.lists(TEXT, max_size=3),
    ignore_eos=st.booleans(),
    structure=_message(
        wire.Structure,
        json_object=st.booleans(),
        json_schema=TEXT,
        regex=TEXT,
        choice=_message(wire.Choices, choices=st.lists(TEXT, max_size=3)),
    ),
    session_id=TEXT,
    user_id=TEXT,
    metadata=st.dictionaries(TEXT | st.just("session_id"), TEXT, max_size=4),
    tenant_salt=st.binary(max_size=80),
    **_numbers(
        ("max_experts", "seed", "max_tokens", "min_tokens", "context_size", "draft_window", "priority", "timeout_ms"),
        INT64 | st.integers(0, 300_000),
    ),
)  # fmt: skip
"""Requests whose fields are mostly out of range."""

PROMPTS = st.sampled_from(
    [
        "Write a thread pool.",
        "undefined reference to `foo()'",
        "==1==ERROR: AddressSanitizer: heap-use-after-free on 0x1",
        "please review my allocator",
        "answer as JSON: which header has std::span?",
        "yes",
    ]
)


def sensible(specialists: tuple[str, ...], intents: tuple[str, ...] = ()) -> st.SearchStrategy[wire.InferRequest]:
    """Draw requests with every field in range and only names of the given ensemble."""
    roles = st.sampled_from(["user", "assistant", "system"])
    talk = st.lists(st.builds(wire.Message, role=roles, content=PROMPTS | TEXT), max_size=3)
    asked = PROMPTS.map(lambda text: wire.Message(role="user", content=text))
    prompts = PROMPTS | TEXT.filter(lambda text: bool(text.strip()))
    said = prompts.map(lambda text: {"prompt": text}) | st.builds(
        lambda old, new: {"messages": [*old, new]}, talk, asked
    )
    split = st.permutations(specialists).flatmap(
        lambda names: st.builds(
            lambda force, exclude: {
                "force_specialists": names[:force],
                "exclude_specialists": names[force : force + exclude],
            },
            st.sampled_from([0, 0, 0, 1, 2, 3]),
            st.integers(0, len(names)),
        )
    )
    options = st.fixed_dictionaries(
        {},
        optional={
            "intent": st.sampled_from(("", *intents)),
            "adapters": st.lists(NAMES, max_size=4, unique=True),
            "sampling": _message(
                wire.Sampling,
                temperature=st.just(0.0) | st.floats(0.001, 2),
                top_p=st.floats(0.01, 1),
                repetition_penalty=st.floats(1, 2),
                logit_bias=st.lists(
                    _message(wire.LogitBias, token=st.integers(1, 2**31 - 1), bias=st.floats(-100, 100)),
                    max_size=3,
                    unique_by=lambda bias: bias.token,
                ),
            ),
            "stop": st.lists(TEXT.filter(bool), max_size=3),
            "structure": st.sampled_from(STRUCTURES),
            "priority": st.integers(0, 9),
            "max_experts": st.integers(1, 10),
            "max_tokens": st.integers(100, 200_000),
            "min_tokens": st.integers(0, 100),
            "seed": INT64,
        },
    )
    return st.builds(
        lambda *parts: wire.InferRequest(**{k: v for part in parts for k, v in part.items()}), said, split, options
    )
