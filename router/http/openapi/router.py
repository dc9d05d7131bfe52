"""What is neither a dialect nor a job: receipts, SLOs, health, and the document itself."""

from collections.abc import Mapping
from typing import Any

from octet.sdk.receipt import Receipt
from octet.v1.operator_pb2 import GetSloResponse
from router.http.openapi.answers import ALWAYS, refusals, scraped, whole
from router.http.openapi.messages import schemas_of
from router.http.openapi.shapes import TEXT, Shape, named, record, several, shape_of, word

TENANT = {"name": "tenant", "in": "query", "schema": TEXT, "description": "another's, for an operator's key"}
PATHS: Mapping[str, Any] = {
    "/v1/receipts/{request_id}": {
        "get": {
            "operationId": "getReceipt",
            "summary": "everything about one request, by its id or that of its answer",
            "parameters": [{"name": "request_id", "in": "path", "required": True, "schema": TEXT}, TENANT],
            "responses": whole(named("Receipt"), "it is still kept") | refusals((*ALWAYS, 404)),
        }
    },
    "/v1/slo": {
        "get": {
            "operationId": "getSlo",
            "summary": "how well every specialist does of late, against what was promised; there is nothing for all",
            "parameters": [{"name": "specialist", "in": "query", "schema": TEXT, "description": "only this one"}],
            "responses": whole(named("GetSloResponse"), "by specialist") | refusals((*ALWAYS, 404)),
        }
    },
    "/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": "what this router counts and measures, for Prometheus; for an operator's key",
            "responses": scraped("its figures") | refusals(ALWAYS),
        }
    },
    "/metrics/replicas": {
        "get": {
            "operationId": "replicaMetrics",
            "summary": "the same of every replica that answers, with its name; for an operator's key",
            "responses": scraped("their figures") | refusals(ALWAYS),
        }
    },
    "/healthz": {
        "get": {
            "operationId": "health",
            "summary": "whether the process lives",
            "security": [],
            "responses": whole(record({"status": word("ok")}), "it does") | refusals((405, 500)),
        }
    },
    "/readyz": {
        "get": {
            "operationId": "readiness",
            "summary": "whether every specialist has a replica that is warm",
            "security": [],
            "responses": whole(record({"status": word("ready")}), "it has")
            | whole(named("Unready"), "not yet, or no more", 503)
            | refusals((405, 500)),
        }
    },
    "/openapi.json": {
        "get": {
            "operationId": "openapi",
            "summary": "this document",
            "security": [],
            "responses": whole({"type": "object"}, "it") | refusals((405, 500)),
        }
    },
}
SCHEMAS: Mapping[str, Shape] = {
    "Receipt": shape_of(Receipt),
    **schemas_of(GetSloResponse.DESCRIPTOR),
    "Unready": record({"status": word("starting", "draining")}, {"waiting_for": several(TEXT)}),
}
