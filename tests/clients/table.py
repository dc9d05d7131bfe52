"""What each client did against the real server, as recorded by its test, and the table of docs/http.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.pages import markdown
from tests.clients.steps import STEPS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "bench" / "results" / "clients.jsonl"
BENCHMARK = "benchmark"
CLIENTS: Mapping[str, Sequence[str]] = {
    "openai_sdk": ("openai",),
    "anthropic_sdk": ("anthropic",),
    "litellm_sdk": ("litellm",),
    "langchain_sdk": ("langchain-openai", "langchain-anthropic"),
    "llama_index_sdk": ("llama-index-llms-openai-like",),
    "instructor_sdk": ("instructor",),
    "pydantic_ai_sdk": ("pydantic-ai-slim",),
    "vercel": ("@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"),
    "guidellm": ("guidellm",),
    "aiperf": ("aiperf",),
}
"""The packages that each client's test uses."""
LOAD_GENERATORS = ("guidellm", "aiperf")
"""Clients that take no steps, but run a benchmark."""
_HEADINGS = {
    "turns": "several turns",
    "structured": "structured output",
    "too long": "a prompt that is too long raises",
    "refused": "tools for a model without them raise",
}


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """What one client did through one of its classes or functions."""

    client: str
    version: str
    uses: str
    route: str
    steps: Mapping[str, str]


def read_records(text: str) -> list[ClientRecord]:
    return [ClientRecord(**json.loads(line)) for line in text.splitlines()]


def with_records(text: str, records: Sequence[ClientRecord]) -> str:
    """Return the file's text with `records` in place of those of the same packages, in the order of `CLIENTS`."""
    packages = [package for packages in CLIENTS.values() for package in packages]
    new = {record.client for record in records}
    kept = [record for record in read_records(text) if record.client not in new]
    ordered = sorted([*kept, *records], key=lambda record: packages.index(record.client))
    return "".join(json.dumps(asdict(record)) + "\n" for record in ordered)


def client_table(records: Sequence[ClientRecord]) -> str:
    """Return the table, and a line for each load generator."""
    head = ["client", "used as", *(_HEADINGS.get(step, step) for step in STEPS)]
    rows = [
        [f"{each.client} {each.version}", f"`{each.uses}`, `{each.route}`", *(each.steps[step] for step in STEPS)]
        for each in records
        if each.client not in LOAD_GENERATORS
    ]
    lines = [
        f"- {each.client} {each.version}, `{each.uses}`: {each.steps[BENCHMARK]}"
        for each in records
        if each.client in LOAD_GENERATORS
    ]
    return "\n".join([markdown(head, rows, "l" * len(head)), "", *lines])
