"""A required structure reaches the replica through the router. If the replica refuses the structure, the caller gets
that refusal unchanged."""

import json

import grpc

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import infer_request, running_router
from tests.specialist.server.harness import QUICK, running_replica, sim


async def test_a_routed_answer_has_its_structure() -> None:
    async with running_replica(sim(QUICK)) as served, running_router({"writer": [served.address]}) as routed:
        schema = json.dumps({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3})
        for seed in range(5):
            structure = wire.Structure(json_schema=schema)
            result = await routed.ask(infer_request("why?", max_tokens=100, seed=seed, structure=structure))
            found = json.loads(result.text)
            assert result.code is grpc.StatusCode.OK and all(type(each) is bool for each in found)
            assert 2 <= len(found) <= 3
            yes_no = wire.Structure(choice=wire.Choices(choices=["yes", "no"]))
            whole = await routed.call("Infer", infer_request("why?", seed=seed, structure=yes_no), wire.InferResponse)
            assert whole.text in ("yes", "no")


async def test_a_structure_refused_by_the_replica_names_its_field() -> None:
    async with running_replica(sim(QUICK)) as served, running_router({"writer": [served.address]}) as routed:
        result = await routed.ask(infer_request("why?", structure=wire.Structure(regex="(")))
        assert result.code is grpc.StatusCode.INVALID_ARGUMENT
        assert result.error is not None
        assert (result.error.reason, result.error.field) == (
            error_pb2.ERROR_REASON_INVALID_FIELD,
            "structure.regex",
        )
