"""A written ensemble is read back unchanged. Any other file is read, or refused with a line number."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from octet.config.ensemble import Ensemble
from octet.config.fields import shared_fields
from octet.config.loader import default_text, parse_content, parse_ensemble
from octet.config.yaml_tree import ConfigInvalid
from tests.octet.config.ensembles import SOURCE, ensembles, written

SMALL = """\
name: shop
model: demo
specialists:
  sql: {describe: "SQL", examples: [a, b], fallback: shell}
  shell:
    system: |
      You know the shell.
    kv_memory: 64m
intents:
  query: sql
rules:
  - {name: select, specialist: sql, contains: [SELECT, FROM], at_least: 2}
  - {name: trace, specialist: shell, detect: stack-trace}
tasks:
  default: {temperature: 0.1}
dispatch: {cool_down: 250ms}
"""
HOSTILE = [
    "", "~", "-1", "0", "1e999", ".nan", ".inf", "1:30", "0x10", "9" * 5000, "yes", "'", '"', "[", "]", "{", "}", "*a",
    "&a", "!!python/object:os.system x", "|", ">", "%", "@", "\t", "- ", "? ", ": ", "#", "---", "...", "<<: *a",
    "reject", "sql", "Sql", "é", "\u2028", "\x85", "\ufeff", "\x07", '"\\ud800"', '"\\UFFFFFFFF"', "null",
    "[[[[[[[[[[[[[[[[[[[[]]", "{a: {b: {}}}", "demo", "unix:x", "192m", "2s", "specialists:", "  name: x", "\r", "\r\n",
    "a" * 2000,
]  # fmt: skip


@given(ensembles())
@settings(max_examples=max(20, settings().max_examples // 5))
def test_written_ensemble_is_read_back(ensemble: Ensemble) -> None:
    assert parse_ensemble(written(ensemble), SOURCE) == ensemble


@given(ensembles(most=1), st.sampled_from(sorted(shared_fields())))
@settings(max_examples=max(15, settings().max_examples // 5))
def test_shared_keys_may_be_at_the_top(ensemble: Ensemble, key: str) -> None:
    assert parse_ensemble(written(ensemble, at_the_top=key), SOURCE) == ensemble


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([SMALL, SMALL, default_text()]))
    for _ in range(draw(st.integers(1, 3))):
        text = _mutate(draw, text)
    return text


def _mutate(draw: st.DrawFn, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = draw(st.integers(0, len(lines) - 1))
    line = lines[at]
    change = draw(st.sampled_from(["drop", "twice", "cut", "shift", "value", "insert", "swap", "end"]))
    if change == "insert":
        cut = draw(st.integers(0, len(line)))
        lines[at] = line[:cut] + draw(st.sampled_from(HOSTILE) | st.text(max_size=3)) + line[cut:]
    elif change == "value":
        key, colon, _ = line.partition(":")
        lines[at] = f"{key}{colon} {draw(st.sampled_from(HOSTILE))}\n"
    elif change == "swap":
        other = draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = {"drop": "", "twice": line * 2, "cut": line[: len(line) // 2], "shift": f"  {line}"}.get(
            change, line
        )
    return "".join(lines[: at + 1] if change == "end" else lines)


def judge(content: bytes) -> None:
    started = time.process_time()
    try:
        parse_content(content, SOURCE)
    except ConfigInvalid as invalid:
        num_lines = max(1, content.count(b"\n") + (not content.endswith(b"\n")))
        assert invalid.problems
        for problem in invalid.problems:
            assert problem.line is None or 1 <= problem.line <= num_lines
            assert problem.message.isprintable() and problem.message == problem.message.strip()
    assert time.process_time() - started < 5


@given(mutated())
@settings(max_examples=max(200, 2 * settings().max_examples))
def test_a_changed_file_is_read_or_refused_with_lines(text: str) -> None:
    judge(text.encode(errors="surrogatepass"))


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode(errors="surrogatepass")))
@settings(max_examples=max(60, settings().max_examples))
def test_any_bytes_are_read_or_refused_with_lines(content: bytes) -> None:
    judge(content)
    judge(SMALL.encode() + content)


@given(st.lists(st.sampled_from(HOSTILE), max_size=8))
@settings(max_examples=max(40, settings().max_examples))
def test_pieces_of_yaml_in_any_order_are_read_or_refused_with_lines(pieces: list[str]) -> None:
    judge(" ".join(pieces).encode(errors="surrogatepass"))
    judge("\n".join(pieces).encode(errors="surrogatepass"))
