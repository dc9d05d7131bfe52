"""No message, answer, header, metric or dashboard has a latency of the whole ensemble. As a control, every search must
find such a latency when one is added."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from starlette.routing import Route

import octet.v1
from octet.v1 import slo_pb2
from router.quality.slo import SLO_HEADER
from tests.router.http.harness import HttpHarness
from tests.router.serving.harness import infer_request
from tests.router.slo.latency_search import (
    json_offenders,
    metric_offenders,
    queries_in,
    query_offenders,
    wire_offenders,
)
from tests.router.slo.test_published import door, every_dialect

MONITORING = Path(__file__).parents[3] / "helm" / "monitoring"
NO_ANSWER = ("/openapi.json", "/v1/overview/events")
"""Routes that are not searched: a document that describes answers, and an endless stream with the content of
/v1/overview."""


def all_messages() -> list[Descriptor]:
    found: list[Descriptor] = []
    for module in pkgutil.iter_modules(octet.v1.__path__):
        if module.name.endswith("_pb2"):
            found += importlib.import_module(f"octet.v1.{module.name}").DESCRIPTOR.message_types_by_name.values()
    return [*found, *(nested for message in found for nested in message.nested_types)]


def planted(fields: dict[str, str], name: str = "Offender") -> Descriptor:
    """Return a message type. `fields` maps each field name to its type: double, string or a message of slo.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"planted/{name}.proto", package="planted", syntax="proto3", dependency=["octet/v1/slo.proto"]
    )
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        added = message.field.add(name=field, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
        if kind in ("double", "string"):
            types = {"double": added.TYPE_DOUBLE, "string": added.TYPE_STRING}
            added.type = types[kind]
        else:
            added.type, added.type_name = added.TYPE_MESSAGE, f".octet.v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(slo_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    found: Descriptor = pool.FindMessageTypeByName(f"planted.{name}")
    return found


def test_no_message_has_a_latency_of_several_specialists() -> None:
    messages = all_messages()
    assert {"Slo", "Latency", "Receipt", "Overview"} <= {message.name for message in messages}
    assert wire_offenders(messages) == []


@pytest.mark.parametrize(
    ("fields", "is_found"),
    [
        ({"ttft_p95": "double"}, True),
        ({"latency": "Latency"}, True),
        ({"mean": "Latency"}, True),
        ({"ttft_p95": "double", "specialist": "string"}, False),
        ({"latency": "Latency", "specialist": "string"}, False),
        ({"requests": "double"}, False),
        ({"wait_seconds": "double"}, True),
        ({"queued": "double"}, True),
        ({"step_seconds": "double"}, True),
        ({"mean_ms": "double", "specialist": "string"}, False),
        ({"ended_unix_ms": "double", "timeout_ms": "double"}, False),
    ],
)
def test_a_planted_message_is_found(fields: dict[str, str], is_found: bool) -> None:
    """A latency is found even inside a nested message, unless the outer message names a specialist."""
    assert bool(wire_offenders([*all_messages(), planted(fields)])) == is_found


async def published(fronted: HttpHarness) -> dict[str, Any]:
    """Return the response of every GET route whose path has no parameter."""
    routes = [route for route in fronted.app.routes if isinstance(route, Route)]
    paths = [route.path for route in routes if "GET" in (route.methods or ()) and "{" not in route.path]
    return {path: await fronted.get(path) for path in paths if path not in NO_ANSWER}


async def test_no_answer_of_a_running_router_has_an_ensemble_latency() -> None:
    async with door() as fronted:
        for specialist in ("writer", "critic"):
            for _ in range(3):
                await fronted.routed.ask(infer_request(specialist=specialist, max_tokens=4))
        for response in await every_dialect(fronted):
            assert SLO_HEADER in response.headers and response.headers["x-octet-specialist"] == "writer"
        slos = fronted.routed.server.slos
        await fronted.routed.until(lambda: [each.ttft.samples for each in slos.all()] == [11, 3])
        answers = await published(fronted)
        assert [each["ttft"]["samples"] for each in answers["/v1/slo"].json["slos"]] == [11, 3]
        num_metrics = 0
        for path, response in answers.items():
            assert SLO_HEADER not in response.headers, f"{path} is about no single specialist"
            if response.headers.get("content-type", "").startswith("application/json"):
                assert list(json_offenders(response.json)) == [], path
            elif path.startswith("/metrics"):
                num_metrics += 1
                assert response.status == 200
                assert metric_offenders(response.body.decode()) == [], path
        assert num_metrics == sum(path.startswith("/metrics") for path in answers)


@pytest.mark.parametrize(
    ("answer", "num_found"),
    [
        ({"ttft": {"p95": 1.0}}, 2),
        ({"slos": [{"specialist": "a", "ttft": {"p95": 1.0}}]}, 0),
        ({"slos": [{"specialist": "", "itl": {"samples": 3}}]}, 1),
        ({"slos": [{"specialist": "a", "ttft": {"p95": 1.0}}], "latency": 0.3}, 1),
        ({"specialists": [{"name": "a", "points": [{"ttft_p95": 1.0}]}]}, 0),
        ({"totals": [{"name": "a", "points": [{"ttft_p95": 1.0}]}]}, 1),
        ({"summary": {"mean_latency": 0.1, "ttft_p99": None}}, 1),
        ({"wait_seconds": 1}, 1),
        ({"summary": {"response_time_ms": 3}}, 1),
        ({"summary": {"step_seconds": 3, "tokens_per_second": 4}}, 2),
        ({"replicas": [{"specialist": "a", "usual_wait": 1}, {"usual_wait": 1}]}, 1),
        ({"at_unix_ms": 1, "step_seconds": 10, "unrouted_per_second": 2, "error": {"retry_after_ms": 4}}, 0),
    ],
)
def test_a_planted_answer_is_found(answer: Any, num_found: int) -> None:
    assert len(list(json_offenders(answer))) == num_found


@pytest.mark.parametrize(
    ("exposition", "num_found"),
    [
        ('octet_ttft_seconds_bucket{le="1"} 3\n', 1),
        ('octet_ttft_seconds_bucket{le="1",specialist="debug"} 3\n', 0),
        ('# TYPE octet_itl_seconds histogram\noctet_itl_seconds_sum 3\noctet_itl_seconds_count{specialist="a"} 3\n', 1),
        ("gen_ai_server_time_to_first_token 3\n", 1),
        ('gen_ai_server_request_duration{specialist=""} 3\n', 1),
        ("octet_admission_to_first_token_seconds 3\n", 1),
        ("octet_queue_seconds 1\n", 1),
        ('octet_replica_step_seconds_bucket{le="1",replica="a-0"} 1\n', 1),
        ('octet_replica_usual_wait_seconds{replica="a-0",specialist="a"} 1\n', 0),
        ("octet_decode_tokens_per_second_sum 9\n", 1),
        ("process_cpu_seconds_total 9\nprocess_start_time_seconds 9\n", 0),
        ("octet_requests_total 3\n", 0),
    ],
)
def test_a_planted_metric_is_found(exposition: str, num_found: int) -> None:
    assert len(metric_offenders(exposition)) == num_found


def test_no_board_and_no_rule_mixes_specialists() -> None:
    boards = [json.loads(path.read_text()) for path in sorted(MONITORING.rglob("*.json"))]
    rules = [
        yaml.safe_load(path.read_text()) for path in sorted([*MONITORING.rglob("*.yml"), *MONITORING.rglob("*.yaml")])
    ]
    queries = [query for content in [*boards, *rules] for query in queries_in(content)]
    assert not boards or queries, "every dashboard must have queries"
    assert {query: found for query in queries if (found := query_offenders(query))} == {}


@pytest.mark.parametrize(
    "query",
    [
        "sum(rate(octet_ttft_seconds_bucket[5m]))",
        "histogram_quantile(0.95, sum by (le) (rate(octet_ttft_seconds_bucket[5m])))",
        'histogram_quantile(0.95, sum(rate(octet_itl_seconds_bucket{x="specialist"}[5m])) by (le))',
        "avg(octet_request_latency_seconds)",
        "max by (replica) (octet_ttft_p95)",
        "sum without (specialist, replica) (octet_itl_seconds_sum)",
        "sum by (specialist) (octet_requests_total) / sum(octet_request_duration_seconds_count)",
        "quantile(0.9, octet_ttft_seconds)",
        "histogram_quantile(0.95, sum by (le) (rate(octet_admission_to_first_token_seconds_bucket[5m])))",
        "max(octet_slo_admission_to_first_token_seconds)",
        "avg(rate(octet_prefill_seconds_sum[5m]))",
        "sum(rate(octet_replica_queue_seconds_sum[5m])) / sum(rate(octet_replica_queue_seconds_count[5m]))",
        "histogram_quantile(0.5, sum by (le, mode) (rate(octet_replica_step_seconds_bucket[5m])))",
        "max(octet_replica_usual_wait_seconds)",
        "max by (replica) (octet_verify_seconds_sum)",
        "avg(octet_decision_seconds_sum)",
        "sum(octet_replica_decode_tokens_per_second)",
        "sum by (le) (sum by (le, specialist) (rate(gen_ai_server_time_to_first_token_bucket[5m])))",
    ],
)
def test_a_planted_query_is_found(query: str) -> None:
    assert query_offenders(query)
    assert [each for board in ({"panels": [{"targets": [{"expr": query}]}]},) for each in queries_in(board)] == [query]


@pytest.mark.parametrize(
    "query",
    [
        "histogram_quantile(0.95, sum by (le, specialist) (rate(octet_ttft_seconds_bucket[5m])))",
        "sum(rate(octet_ttft_seconds_bucket[5m])) by (specialist,le)",
        "sum without (replica, le) (octet_itl_seconds_sum)",
        "topk(3, octet_ttft_p95)",
        "octet_ttft_seconds_count > 3",
        "sum(rate(octet_requests_total[5m]))",
        "sum by (instance) (rate(process_cpu_seconds_total[5m]))",
        "max by (specialist) (octet_replica_usual_wait_seconds)",
        'sum(rate(octet_requests_total{what="latency"}[5m]))',
        "max by (specialist) (avg_over_time(octet_request_latency_seconds[5m]))",
    ],
)
def test_a_query_that_keeps_the_specialist_is_allowed(query: str) -> None:
    assert query_offenders(query) == []
