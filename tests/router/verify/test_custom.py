"""A custom verifier can affect only its own process."""

import asyncio
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from octet.config.ensemble import CorrectnessConfig
from router.verify.verdict import Verdict
from router.verify.verifiers import open_verifier
from tests.patience import PATIENCE
from tests.router.verify.conftest import all_judged, judged

MINE = """
import asyncio, os, sys, time
from router.verify.verdict import Verdict

def yes(question, answer): return True
def no(question, answer): return False
def why(question, answer): return Verdict("failed", f"{question} and {answer}")
def raises(question, answer): raise RuntimeError("no idea")
def leaves(question, answer): sys.exit(3)
def dies(question, answer): os._exit(7)
def hangs(question, answer): time.sleep(10_000) if answer == "hang" else None; return True
def writes(text):
    def said(question, answer):
        for fd in range(3, 20):
            try: os.write(fd, text.encode() + b"\\n") if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe") else None
            except OSError: pass
        return True
    return said
a_list, a_number, deep = writes("[]"), writes("5"), writes("[" * 60_000)
keyless, no_outcome, no_json = writes("{}"), writes('{"outcome": ["passed"], "why": 1}'), writes("x")
def detaches(question, answer):
    import subprocess
    inner = "import os, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE, start_new_session=True)
    pid = child.stdout.readline().decode().strip()
    if answer == "die": open(question, "w").write(pid); os._exit(7)
    return Verdict("passed", pid)
def odd(question, answer): return 42
def prints(question, answer): print("{}" * 1000); print("noise", file=sys.stderr); return True
def where(question, answer): return Verdict("passed", str(os.getpid()))
async def slow(question, answer): await asyncio.sleep(0.01); return True
async def blocks(question, answer): time.sleep(10_000)
class Judge:
    def __init__(self): self.count = 0
    def verify(self, question, answer): self.count += 1; return Verdict("passed", str(self.count))
instance = Judge()
value = 5
class Wrong:
    outcome = "maybe"
def wrong(question, answer): return Wrong()
def long(question, answer): return Verdict("failed", "x" * 1_000_000)
"""
STRANGE = ("a_list", "a_number", "deep", "keyless", "no_outcome", "no_json")
CONFIG = CorrectnessConfig(verify_seconds=20)
QUICK = CorrectnessConfig(verify_seconds=0.5)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    return tmp_path


def verdict(base: Path, name: str, answer: str = "a") -> Verdict:
    return judged(open_verifier(f"mine:{name}", CONFIG, base), answer, "q")


@pytest.mark.parametrize(
    ("name", "outcome", "why"),
    [
        ("yes", "passed", ""),
        ("no", "failed", ""),
        ("why", "failed", "q and a"),
        ("slow", "passed", ""),
        ("prints", "passed", ""),
        ("Judge", "passed", "1"),
        ("instance", "passed", "1"),
        ("raises", "unavailable", "RuntimeError: no idea"),
        ("leaves", "unavailable", "SystemExit: 3"),
        ("dies", "unavailable", "no verdict: the verifier process ended without a complete reply"),
        ("odd", "unavailable", "it returned int, not a Verdict or a bool"),
        ("wrong", "unavailable", "it returned Wrong, not a Verdict or a bool"),
        *((name, "unavailable", "it wrote something other than its verdict and was killed") for name in STRANGE),
        ("value", "unavailable", "TypeError: mine:value is not a function and has no method `verify`"),
        ("absent", "unavailable", "AttributeError: module 'mine' has no attribute 'absent'"),
    ],
)
def test_custom_verifier_results_become_verdicts(base: Path, name: str, outcome: str, why: str) -> None:
    got = verdict(base, name)
    assert (got.outcome, got.why) == (outcome, why)


def test_a_long_reason_is_truncated(base: Path) -> None:
    assert len(verdict(base, "long").why) == 300


def test_a_module_that_cannot_be_imported(base: Path) -> None:
    got = judged(open_verifier("broken:yes", CONFIG, base), "a")
    assert got.outcome == "unavailable" and "nothing_of_this_name" in got.why


def test_a_custom_verifier_reuses_its_process(base: Path) -> None:
    verifier = open_verifier("mine:instance", CONFIG, base)
    assert [one.why for one in all_judged(verifier, ["a", "b", "c"])] == ["1", "2", "3"]


def test_a_hung_verifier_is_killed_and_restarted(base: Path) -> None:
    async def hung() -> list[str]:
        verifier: Any = open_verifier("mine:hangs", CONFIG, base)
        usual = verifier._limits
        outcomes: list[str] = [(await verifier.verify("", "fine")).outcome]
        verifier._limits = replace(usual, clock_seconds=1.0)
        task = asyncio.ensure_future(verifier.verify("", "hang"))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 3
        verifier._limits = usual
        outcomes += [(await task).outcome, (await verifier.verify("", "fine")).outcome]
        await verifier.close()
        return outcomes

    assert uvloop.run(hung()) == ["passed", "unavailable", "passed"]


def test_a_verifier_that_blocks_its_loop_does_not_block_ours(base: Path) -> None:
    got = judged(open_verifier("mine:blocks", QUICK, base), "a")
    assert got.outcome == "unavailable" and "killed" in got.why


def test_a_custom_verifiers_process_ends_on_close_and_cancel(base: Path) -> None:
    async def closed() -> list[int]:
        verifier = open_verifier("mine:where", CONFIG, base)
        first = int((await verifier.verify("", "")).why)
        await verifier.close()
        other = open_verifier("mine:blocks", CONFIG, base)
        task = asyncio.ensure_future(other.verify("", ""))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [first]

    for pid in asyncio.run(closed()):
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert not Path(f"/proc/{pid}").exists()
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "own_work" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_detached_children_of_a_custom_verifier_are_killed(base: Path) -> None:
    pid = int(verdict(base, "detaches").why)
    assert is_gone(pid), "children must end when the verifier is closed"
    judged(open_verifier("mine:detaches", CONFIG, base), "die", str(base / "pid"))
    assert is_gone(int((base / "pid").read_text())), "children must end when the verifier dies"


def is_gone(pid: int) -> bool:
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_long_answers_are_skipped(base: Path) -> None:
    verifier = open_verifier("mine:yes", CorrectnessConfig(answer_bytes=1024), base)
    assert [one.outcome for one in all_judged(verifier, ["é" * 512, "é" * 513])] == ["passed", "skipped"]


def test_the_documented_example_works(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "verifiers.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "house_style.py").write_text(example)
    verifier = open_verifier("house_style:HouseStyle", CONFIG, tmp_path)
    verdicts = all_judged(verifier, ["Use a vector.", "As a language model, I cannot.", "", "word " * 500])
    assert [one.outcome for one in verdicts] == ["passed", "failed", "skipped", "failed"]
