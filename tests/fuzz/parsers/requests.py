"""gRPC messages from callers, replicas and routers."""

from google.protobuf.message import Message

from octet.rpc.handlers import parse_request
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2, jobs_pb2, operator_pb2, specialist_pb2
from router.routing.validation import REQUEST_BYTES as MAX_INFER_BYTES
from specialist.server.validation import REQUEST_BYTES, GenerateLimits, GenerateValidator
from tests.fuzz.parser import Parser
from tests.router.routing.sample_requests import new_validator

_TOOL = inference_pb2.Tool(name="look", description="Looks.", parameters='{"type": "object"}')
_CALL = inference_pb2.ToolCall(id="call_1", name="look", arguments='{"at": 1}')
INFER = (
    inference_pb2.InferRequest(prompt="sort a vector", max_tokens=8, seed=7, stop=["\n"], intent="build-fix"),
    inference_pb2.InferRequest(
        messages=[
            inference_pb2.Message(role="user", content="look there"),
            inference_pb2.Message(role="assistant", tool_calls=[_CALL]),
            inference_pb2.Message(role="tool", content="nothing", tool_call_id="call_1"),
        ],
        tools=[_TOOL],
        tool_choice=inference_pb2.ToolChoice(name="look"),
        sampling=inference_pb2.Sampling(
            temperature=0.5, top_k=4, logit_bias=[inference_pb2.LogitBias(token=3, bias=-1.0)]
        ),
        metadata={"session_id": "s"},
        force_specialists=["build"],
        priority=3,
        timeout_ms=1000,
    ),
    inference_pb2.InferRequest(
        prompt="x", template="{prompt}", structure=inference_pb2.Structure(json_schema='{"type": "object"}')
    ),
)
GENERATE = (
    specialist_pb2.GenerateRequest(request_id="r", text="hello", max_tokens=4, adapters=["a"], tenant_salt=b"salt"),
    specialist_pb2.GenerateRequest(
        request_id="r",
        tokens=specialist_pb2.TokenIds(ids=[1, 2, 3]),
        structure=specialist_pb2.Structure(choice=specialist_pb2.Choices(choices=["yes", "no"])),
    ),
    specialist_pb2.GenerateRequest(
        request_id="r",
        chat=specialist_pb2.Chat(
            messages=[specialist_pb2.Message(role="user", content="hi")],
            tools=[specialist_pb2.Tool(name="look", parameters="{}")],
        ),
        sampling=specialist_pb2.Sampling(temperature=1.0, top_p=0.9, num_logprobs=2),
        priority=3,
        timeout_ms=5000,
    ),
)
_OTHERS: tuple[Message, ...] = (
    inference_pb2.GetReceiptRequest(request_id="r"),
    inference_pb2.CancelRequest(request_id="r"),
    jobs_pb2.SubmitJobRequest(request=INFER[0], idempotency_key="k"),
    jobs_pb2.ListJobsRequest(),
    operator_pb2.SetKnobRequest(name="breaker.floor", value=0.5, change=operator_pb2.Change(who="ann", why="try")),
    operator_pb2.LoadLaneRequest(specialist="build", path="a/b", name="c"),
    operator_pb2.ListReceiptsRequest(most=5),
    specialist_pb2.LoadAdapterRequest(name="a", path="b"),
    specialist_pb2.WatchLoadRequest(min_interval_ms=50),
)
_LIMITS = GenerateLimits(context=512, vocab_size=1000)


def _received(raw: bytes) -> object:
    message = parse_request(raw, inference_pb2.InferRequest, MAX_INFER_BYTES)
    return new_validator().validate(message, None, None)


def _generated(raw: bytes) -> object:
    return GenerateValidator(_LIMITS).validate(parse_request(raw, specialist_pb2.GenerateRequest, REQUEST_BYTES))


def _one(example: Message) -> Parser:
    kind = type(example)
    raw = example.SerializeToString()
    return Parser(
        f"grpc.{kind.__name__}",
        lambda given: parse_request(given, kind, 1 << 20),
        (Refusal,),
        (raw,),
        message=kind,
        share=0.2,
    )


def _parsers() -> list[Parser]:
    others = [_one(example) for example in _OTHERS]
    infer = Parser(
        "grpc.InferRequest",
        _received,
        (Refusal,),
        tuple(each.SerializeToString() for each in INFER),
        message=inference_pb2.InferRequest,
    )
    generate = Parser(
        "grpc.GenerateRequest",
        _generated,
        (Refusal,),
        tuple(each.SerializeToString() for each in GENERATE),
        message=specialist_pb2.GenerateRequest,
    )
    return [infer, generate, *others]


PARSERS = _parsers()
