"""Files that operators write: ensemble, keys, store, labelled prompts, load traces."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from octet.config.loader import default_text, parse_content
from octet.config.yaml_tree import ConfigInvalid
from octet.telemetry.trace_export import otlp_endpoint_error
from router.api.keys.key_file import KeysInvalid, format_keys, parse_keys
from router.api.keys.keys import Allowance, Key
from router.routing.classifier.linear import ClassifierInvalid, decode_model
from router.routing.training.records import InvalidRecord, LabelledPrompt, read_records, write_records
from router.routing.training.shadow_thresholds import read_comparisons
from router.store.connection import BadStoreUrl
from router.store.store import opener_for_url
from router.verify.verifiers import read_schema
from simulation.traces import TraceError, read_azure, read_trace
from tests.fuzz.files import read_as
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.classifier import CLASSIFIER

_FULL = b"""\
name: shop
engine: sim
model: demo
max_tokens: 400
router: {port: 50051, keys: keys.json}
store: {url: memory}
specialists:
  sql: {describe: Writes SQL., system: You are an SQL expert., fallback: shell}
  shell: &other
    describe: Bash and pipes.
    replicas: 2
    kv_memory: 64m
  regex: {addresses: ["127.0.0.1:50060"]}
intents:
  query: sql
rules:
  - {name: select-statement, specialist: sql, contains: [SELECT, FROM], at_least: 2}
"""
_WORDS = (
    *(b"- ", b": ", b"&a ", b"*a", b"!!python/object:os.system ", b"<<: *other\n", b"? ", b"| ", b"> ", b"%YAML 1.1\n"),
    *(b"---\n", b"...\n", b"specialists:", b"replicas: ", b"64k", b"250ms", b"\t", b"~", b"{a: 1}", b"\\x", b"#"),
)
_KEYS = format_keys(
    (
        Key("ann", b"a" * 32, "call", "shop", Allowance(600, 10_000, 4), "2026-11-15T12:00:00Z", 1_900_000_000_000),
        Key("ops", b"b" * 32, "operate", "ops", Allowance(), "", None),
    )
)
_AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.1630340,4808,10\n"
    b"2023-11-16 18:01:52.7630340,3180,8\n2023-11-16 18:01:52.9630340,110,27\n"
)
_MOONCAKE = b"".join(
    json.dumps({"timestamp": at, "input_length": 600, "output_length": 5, "hash_ids": [0, at]}).encode() + b"\n"
    for at in (0, 7, 9)
)
_COMPARISON = b'{"requestId": "r", "atUnixMs": "5", "confidence": 0.5, "agreed": true, "featureIndices": [1]}\n'
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "a": {"type": ["integer", "null"], "minimum": 0},
            "b": {"enum": [1, "x"]},
            "c": {"pattern": "^a"},
        },
        "required": ["a"],
        "additionalProperties": False,
        "anyOf": [{"minProperties": 1}, {"not": {"const": 5}}],
    }
).encode()


def _records() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        write_records(
            path,
            [
                LabelledPrompt("sort it", "stl", "own", "Apache-2.0"),
                LabelledPrompt("link it", "build", "own", "", False),
            ],
        )
        return path.read_bytes()


PARSERS = [
    Parser(
        "config.ensemble",
        lambda raw: parse_content(raw, None),
        (ConfigInvalid,),
        (_FULL, default_text().encode()),
        "text",
        words=_WORDS,
        share=0.5,
    ),
    Parser(
        "config.keys",
        lambda raw: parse_keys(raw.decode("utf-8", "surrogateescape")),
        (KeysInvalid,),
        (_KEYS.encode(),),
        "json",
    ),
    Parser(
        "config.store_url",
        lambda raw: opener_for_url(raw.decode("latin-1"), "name", None),
        (BadStoreUrl,),
        (b"sqlite:state.db", b"postgresql://ann:secret@db:5432/octet", b"memory", b""),
        "text",
        words=(b"postgresql://", b"sqlite:", b"@", b"?sslmode=require", b"%zz", b"//", b"~root/"),
    ),
    Parser(
        "config.otlp",
        lambda raw: otlp_endpoint_error(raw.decode("latin-1")),
        (),
        (b"http://localhost:4317", b"https://[::1]:4317/"),
        "text",
        words=(b"[", b"]", b"@", b":", b"/", b"#", b"?", b"http://"),
    ),
    Parser("config.verifier_schema", read_as(read_schema), (ValueError,), (_SCHEMA,), "json"),
    Parser("config.classifier", decode_model, (ClassifierInvalid,), (CLASSIFIER,)),
    Parser("config.records", read_as(lambda path: read_records([path])), (InvalidRecord,), (_records(),), "text"),
    Parser(
        "config.comparisons", read_as(lambda path: list(read_comparisons(path))), (ValueError,), (_COMPARISON,), "json"
    ),
    Parser("trace.mooncake", read_as(read_trace), (TraceError,), (_MOONCAKE,), "text"),
    Parser(
        "trace.azure", read_as(read_azure), (TraceError,), (_AZURE,), "text", words=(b"+01:00", b"Z", b",", b"\n", b'"')
    ),
]
