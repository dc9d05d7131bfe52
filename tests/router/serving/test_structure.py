"""A structure goes through the router to the replica, and a refusal comes back as it was."""

import json

import grpc

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import asking, routing
from tests.specialist.server.harness import QUICK, serving, sim


async def test_an_answer_through_the_router_has_its_form() -> None:
    async with serving(sim(QUICK)) as served, routing({"writer": [served.address]}) as routed:
        schema = json.dumps({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3})
        for seed in range(5):
            structure = wire.Structure(json_schema=schema)
            heard = await routed.ask(asking("why?", max_tokens=100, seed=seed, structure=structure))
            found = json.loads(heard.text)
            assert heard.code is grpc.StatusCode.OK and all(type(each) is bool for each in found)
            assert 2 <= len(found) <= 3
            yes_no = wire.Structure(choice=wire.Choices(choices=["yes", "no"]))
            whole = await routed.call("Infer", asking("why?", seed=seed, structure=yes_no), wire.InferResponse)
            assert whole.text in ("yes", "no")


async def test_what_only_a_replica_can_tell_is_refused_as_it_says() -> None:
    async with serving(sim(QUICK)) as served, routing({"writer": [served.address]}) as routed:
        heard = await routed.ask(asking("why?", structure=wire.Structure(regex="(")))
        assert heard.code is grpc.StatusCode.INVALID_ARGUMENT
        assert heard.error is not None
        assert (heard.error.reason, heard.error.field) == (
            error_pb2.ERROR_REASON_INVALID_FIELD,
            "structure.regex",
        )
