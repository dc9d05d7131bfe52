"""All mistakes are reported together, each with its line and the allowed values."""

from pathlib import Path

import pytest

from octet.config.loader import parse_content, parse_ensemble, read_ensemble
from octet.config.yaml_tree import ConfigInvalid

ONE = "specialists:\n  sql:\n"
TWO = "specialists:\n  sql:\n  shell:\n"
RULE = TWO + "rules:\n  - "

MISTAKES: list[tuple[str, int | None, str]] = [
    ("", 1, "the file is empty: it must name at least one specialist"),
    ("# nothing\n", 1, "the file is empty"),
    ("- sql\n", 1, "must be a mapping with a key `specialists`, got a list"),
    ("name: shop\n", 1, "specialists is missing"),
    ("specialists: {}\n", 1, "specialists must be 1 to 64 entries long, got 0 entries"),
    ("name: shop\nspecialists: [sql]\n", 2, "must be a mapping of names, each with its own keys below it, got a list"),
    ("specialists:\n  Sql: {}\n", 2, "must be a name of lower-case letters, digits, '.', '_' and '-'"),
    ("specialists:\n  -x: {}\n", 2, "must be a name of lower-case letters"),
    (f"specialists:\n  {'x' * 65}:\n", 2, "1 to 64 characters long"),
    ("specialists:\n  reject:\n", 2, "must have another name: 'reject' is the classifier's label for no specialist"),
    (ONE + "    sytem: You know SQL.\n", 3, "specialists.sql.sytem is not a known key: did you mean 'system'?"),
    (ONE + "    max-tokens: 5\n", 3, "did you mean 'max_tokens'?"),
    (ONE + "    colour: red\n", 3, "colour is not a known key: known here: describe, examples, system, fallback"),
    (ONE + "    name: sql\n", 3, "specialists.sql.name is not a known key"),
    (ONE + "    <<: {model: demo}\n", 3, "put defaults for every specialist at the top"),
    (ONE + "specialist: sql\n", 3, "specialist is not a known key: did you mean 'specialists'?"),
    (ONE + "    max_tokens: many\n", 3, "max_tokens must be a whole number in [1, 1,048,576], got 'many'"),
    (ONE + "    max_tokens: '12'\n", 3, "must be a whole number in [1, 1,048,576], got '12'"),
    (ONE + "    max_tokens: 1.5\n", 3, "must be a whole number"),
    (ONE + "    max_tokens: 010\n", 3, "must be a whole number"),
    (ONE + "    max_running:\n", 3, "must be a whole number in [1, 4,096], got nothing"),
    (ONE + f"    max_tokens: {'9' * 5000}\n", 3, "must be a whole number"),
    (ONE + "    block_size: 0\n", 3, "block_size must be a whole number in [1, 1,024], got '0'"),
    (ONE + "    replicas: 0\n", 3, "replicas must be a whole number in [1, 64], got '0'"),
    (ONE + "    kv_memory: 192 MB\n", 3, "kv_memory must be a size such as 192m or 1g, from 1m to 1t, got '192 MB'"),
    (ONE + "    kv_memory: 5t\n", 3, "from 1m to 1t, got '5t'"),
    (ONE + "    device: gpu\n", 3, "device must be cpu, cuda, or one card of several as cuda:N, got 'gpu'"),
    (ONE + "    dtype: bfloat16\n", 3, "dtype must be float32 on a CPU, got bfloat16"),
    (ONE + "    memory_fraction: 0.5\n", 3, "memory_fraction is a share of a GPU's memory, but the device is cpu"),
    (ONE + "    device: cuda\n    memory_fraction: 1.5\n", 4, "memory_fraction must be a number in (0, 1], got '1.5'"),
    (
        ONE + "    device: cuda\n    memory_fraction: 0.5\n    kv_memory: 1g\n",
        5,
        "must be left out beside memory_fraction",
    ),
    ("memory_fraction: 0.5\nkv_memory: 1g\n" + TWO, 2, "kv_memory must be left out beside memory_fraction"),
    ("device: cuda\nmemory_fraction: 0.6\n" + TWO, 5, "is too much: the replicas on cuda:0 take 1.2 of its memory"),
    (
        "device: cuda\n" + TWO + "    memory_fraction: 0.95\n",
        3,
        "is missing: the other replicas on cuda:0 leave nothing",
    ),
    (ONE + "    engine: vllm\n", 3, "engine must be native or sim, got 'vllm'"),
    (ONE + "    examples: how to join\n", 3, "must be a list of strings, such as [one, two], got 'how to join'"),
    (ONE + "    examples:\n    - join\n    - {a: b}\n", 5, "examples[1] must be text, got a mapping"),
    (ONE + "    examples:\n    - join\n    - join\n", 5, "in the list only once (it is already on line 4), got 'join'"),
    (ONE + '    system: "a\\0b"\n', 3, "without surrogates or null characters"),
    (ONE + '    system: "\\ud800"\n', 3, "without surrogates or null characters"),
    (ONE + "    addresses: [localhost]\n", 3, "must be an address such as host:port, dns:///name:port or unix:PATH"),
    (ONE + "    addresses: [a:1]\n    replicas: 2\n", 4, "replicas must be left out if addresses are given"),
    (ONE + "    fallback: sql\n", 3, "fallback must be another specialist"),
    (TWO + "    fallback: sqll\n", 4, "names an unknown specialist 'sqll': did you mean 'sql'?"),
    (ONE + "    context: 600\n    max_tokens: 600\n", 4, "max_tokens (600) must be less than context (600)"),
    (ONE + "    cost_model: costs.json\n", 3, "cost_model is only for the sim engine, but the engine is native"),
    (ONE + "    draft_model: small\n", 3, "draft_model has no effect while draft_window is 0: set draft_window too"),
    (
        ONE + "    engine: sim\n    draft_window: 4\n    draft_model: small\n",
        5,
        "draft_model must be left out: the sim engine has no weights",
    ),
    (ONE + "    draft_lane: true\n", 3, "draft_lane has no effect while draft_window is 0: set draft_window too"),
    (ONE + "    adapters: tuned\n", 3, "adapters must be a mapping, such as {tuned: path/to/adapter}, got 'tuned'"),
    (ONE + "    use_adapters: [tuned]\n", 3, "names 'tuned', which is not one of its adapters: known here: none"),
    (ONE + "    model: ~no-such-user/x\n", 3, "must be a path whose ~ is a known home folder"),
    (ONE + "  sql:\n", 3, "the key 'sql' is already on line 2: keep one of them"),
    (ONE + "name: a\nname: b\n", 4, "the key 'name' is already on line 3"),
    (TWO + "intents:\n  query: sqll\n", 5, "intents.query.specialist names an unknown specialist 'sqll'"),
    (TWO + "intents:\n  q: {task: revew}\n", 5, "names an unknown task 'revew': did you mean 'review'?"),
    (TWO + "intents:\n  q: [sql]\n", 5, "intents.q must be a mapping of keys to values, got a list"),
    (TWO + "intents:\n  q: {shadow_threshold: .nan}\n", 5, "must be a number in [0, 1], got '.nan'"),
    (TWO + "intents:\n  q: {shadow_threshold: .inf}\n", 5, "must be a number in [0, 1], got '.inf'"),
    (TWO + "intents:\n  q: {priority_floor: 10}\n", 5, "must be a whole number in [0, 9], got '10'"),
    (TWO + "rules: {a: b}\n", 4, "rules must be a list of mappings that each start with `- `, got a mapping"),
    (RULE + "{name: a, specialist: sql}\n", 5, "exactly one of `detect` and `contains`; it has neither"),
    (RULE + "{name: a, specialist: sql, detect: stack-trace, contains: [x]}\n", 5, "it has both"),
    (RULE + "{name: a, specialist: sql, detect: stacktrace}\n", 5, "must be sfinae-heavy or build-text"),
    (RULE + "{name: a, specialist: sql, contains: []}\n", 5, "contains must be 1 to 64 entries long, got 0 entries"),
    (RULE + "{name: a, specialist: sql, contains: ['']}\n", 5, "contains[0] must be text, 1 to 256 characters long"),
    (RULE + "{name: a, specialist: sql, contains: [x], at_least: 2}\n", 5, "at_least must be at most 1"),
    (RULE + "{name: a, specialist: sql, detect: stack-trace, at_least: 1}\n", 5, "it counts strings of `contains`"),
    (RULE + "{specialist: sql, contains: [x]}\n", 5, "rules[0].name is missing"),
    (RULE + "{name: a, contains: [x]}\n", 5, "rules[0].specialist is missing"),
    (
        RULE + "{name: a, specialist: sql, contains: [x]}\n  - {name: a, specialist: sql, contains: [y]}\n",
        6,
        "rules[1].name 'a' is already the name of the rule on line 5",
    ),
    (ONE + "tasks:\n  default: {temperature: 3}\n", 4, "must be a number 0 or in [0.0001, 2], got '3'"),
    (ONE + "tasks:\n  poem: {top_p: 0}\n", 4, "must be a number in (0, 1], got '0'"),
    (ONE + "default: absent\n", 3, "default names an unknown specialist 'absent'"),
    (
        ONE + "dispatch: {stall_seconds: -1}\n",
        3,
        "must be a number of seconds (such as 2, 250ms or 1m) in (0, 86,400], got '-1'",
    ),
    (ONE + "dispatch: {cool_down: 1m}\n", 3, "cool_down (60 s) must be at most max_cool_down (30 s)"),
    (ONE + "    verify: c++\n", 3, "is invalid: there is no verifier 'c++'; use one of cpp"),
    (ONE + "slo: {window: 1h, long_window: 10m}\n", 3, "window (3600 s) must be at most long_window (600 s)"),
    (
        ONE + "slo: {window: 1s}\n",
        3,
        "slo.window must be a number of seconds (such as 2, 250ms or 1m) in [10, 3,600], got '1s'",
    ),
    (ONE + "    slo: {ttft_p50: 3s, ttft_p99: 2s}\n", 3, "ttft_p50 (3 s) must be at most ttft_p99 (2 s)"),
    (ONE + "escalation: {calm: 0.2}\n", 3, "calm (0.2) must be at most refused (0.05)"),
    (ONE + "dispatch: {hang_seconds: 400ms}\n", 3, "twice heartbeat_seconds (0.25 s) must be at most hang_seconds"),
    (ONE + "router: {port: 65536}\n", 3, "router.port must be a whole number in [0, 65,535], got '65536'"),
    (ONE + "router: {host: a b}\n", 3, "router.host must be a host's name or address, got 'a b'"),
    (ONE + "router: {http: {port: -1}}\n", 3, "router.http.port must be a whole number in [0, 65,535], got '-1'"),
    (ONE + "router: {http: 8051}\n", 3, "router.http must be true, false or a mapping of keys to values, got '8051'"),
    (ONE + "router: {http: off}\n", 3, "router.http must be true, false or a mapping of keys to values, got 'off'"),
    (ONE + "router: {port: 8051}\n", 3, "router.http.port must differ from the gRPC port, which is 8051"),
    (
        ONE + "router: {http: {port: 50051}}\n",
        3,
        "router.http.port must differ from the gRPC port, which is 50051",
    ),
    (ONE + "router: 50051\n", 3, "router must be a mapping of keys to values, got '50051'"),
    (ONE + "\tmodel: demo\n", 3, "a tab where YAML expects spaces"),
    (ONE + "    system: [unclosed\n", 3, "this is not valid YAML"),
    (ONE + "   model: demo\n  x\n", 4, "this is not valid YAML"),
    (ONE + "    model: !!python/name:os.system demo\n", 3, "tags such as 'tag:yaml.org,2002:python/name:os.system'"),
    (ONE + "    examples: *nothing\n", 3, "the alias *nothing must come after the end of a node with that anchor"),
    (ONE + "---\nname: x\n", 3, "a second document starts here"),
    (ONE + "    system: \x07\n", 3, "the character 0x7 is not allowed in YAML"),
    (ONE + "    [a, b]: c\n", 3, "a key must be text, not a list or a mapping"),
    (ONE + f"    examples: {'[' * 40}{']' * 40}\n", 3, "nested deeper than 16 levels"),
]


@pytest.mark.parametrize(("text", "line", "words"), MISTAKES, ids=lambda value: repr(value)[:40])
def test_mistake_is_reported_once_with_line_and_allowed_values(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_ensemble(text, Path("shop.yaml"))
    (problem,) = refused.value.problems
    assert words in problem.message
    assert problem.line == line
    assert str(refused.value) == f"shop.yaml:{line}: {problem.message}"


def test_all_mistakes_are_reported_together_by_line() -> None:
    independent = [(text[len(ONE) :], words) for text, _, words in MISTAKES if text.startswith(ONE + "    max_tokens")]
    text = "specialists:\n" + "".join(f"  s{index}:\n{body}" for index, (body, _) in enumerate(independent))
    text += "intents:\n  q: absent\nrules:\n  - {name: r, specialist: s0}\ndispatch: {choices: x}\n"
    with pytest.raises(ConfigInvalid) as refused:
        parse_ensemble(text, None)
    problems = refused.value.problems
    assert len(problems) == len(independent) + 3
    assert [problem.line for problem in problems] == sorted(problem.line or 0 for problem in problems)
    for problem, (_, words) in zip(problems, independent, strict=False):
        assert words in problem.message


def test_invalid_value_causes_no_second_problem() -> None:
    text = (
        RULE + "{name: a, specialist: 5x!, contains: [[]], at_least: 3}\ndispatch: {cool_down: x, max_cool_down: 1ms}\n"
    )
    with pytest.raises(ConfigInvalid) as refused:
        parse_ensemble(text, None)
    assert [problem.message.split()[0] for problem in refused.value.problems] == [
        "rules[0].contains[0]",
        "rules[0].specialist",
        "dispatch.cool_down",
    ]


def test_invalid_specialist_may_still_be_referenced() -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_ensemble("specialists:\n  Sql: x\n  shell: {fallback: Sql}\nintents: {q: Sql}\n", None)
    assert {problem.line for problem in refused.value.problems} == {2}


def test_problems_beyond_a_hundred_are_counted() -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_ensemble("specialists: {a: }\n" + "".join(f"key{index}: 1\n" for index in range(250)), None)
    assert len(refused.value.problems) == 101
    assert refused.value.problems[-1].message == "and 150 more problems"


def test_invalid_utf8_is_reported_with_its_line() -> None:
    with pytest.raises(ConfigInvalid, match=r"x\.yaml:2: the file must be UTF-8; the byte 0xff here is not"):
        parse_content(b"name: a\nspecialists: {\xff: }\n", Path("x.yaml"))


def test_unreadable_file_is_reported_without_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"none\.yaml: cannot be read: No such file"):
        read_ensemble(tmp_path / "none.yaml")
    with pytest.raises(ConfigInvalid, match="cannot be read: Is a directory"):
        read_ensemble(tmp_path)
    with pytest.raises(ConfigInvalid, match="cannot be read: embedded null byte"):
        read_ensemble(Path("a\0b"))


def test_endless_file_is_not_read_completely() -> None:
    with pytest.raises(ConfigInvalid, match="larger than the limit of 1,048,576 bytes"):
        read_ensemble(Path("/dev/zero"))


def test_missing_files_are_reported_at_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    (tmp_path / "file").touch()
    path.write_text(
        "model: none.gguf\nspecialists:\n  sql: {adapters: {tuned: file, other: gone}}\n  shell: {model: file}\n"
        "  far: {addresses: [a:1], model: x}\n  sim: {engine: sim, cost_model: none.json}\n"
        "classifier: {path: none.bin}\n"
    )
    assert read_ensemble(path).classifier.path == str(tmp_path / "none.bin")
    with pytest.raises(ConfigInvalid) as refused:
        read_ensemble(path, files=True)
    assert [(problem.line, problem.message.removesuffix(str(tmp_path))) for problem in refused.value.problems] == [
        (1, f"model does not exist: {tmp_path}/none.gguf (for sql)"),
        (3, f"specialists.sql.adapters.tuned must be a folder: {tmp_path}/file"),
        (3, f"specialists.sql.adapters.other does not exist: {tmp_path}/gone"),
        (4, f"specialists.shell.model is not a GGUF file: {tmp_path}/file"),
        (6, f"specialists.sim.cost_model does not exist: {tmp_path}/none.json"),
        (7, f"classifier.path does not exist: {tmp_path}/none.bin"),
    ]
