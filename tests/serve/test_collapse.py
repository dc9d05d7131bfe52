"""`octet serve` with the demo model and an adapter that says `Z. Z. Z.` without end: it is caught within 20 judged
answers as a candidate, when fresh, and as the first lane of a specialist with one replica."""

import time
from itertools import cycle
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from admission.collapse import SPAN
from octet import Client, OctetError, Operator
from octet.client.records import AuditEntry
from specialist.models.checkpoint import Checkpoint
from specialist.models.open import open_checkpoint
from specialist.models.weights import dense
from tests.adapters.peft_files import random_tensors, write
from tests.models.demo import demo_gguf
from tests.serve.ensemble import serving

__all__ = ["demo_gguf"]
CONFIG = """
name: collapsing
adapter_root: .
specialists:
  old:
    model: {model}
    adapters: {{zed: zed}}
    use_adapters: [zed]
    fallback: sane
  sane:
    model: {model}
threads: 1
kv_memory: 32MiB
intents: {{old: old, sane: sane}}
correctness: {{sample_rate: 1}}
shadow: {{fresh_rate: 1, budget: 1}}
store: {{url: memory}}
"""
PROMPTS = (
    "What is a mutex?",
    "Write a haiku about rain.",
    "How do I sort a list in Python?",
    "Name three rivers.",
    "What is a hash table?",
)


def zed_adapter(checkpoint: Checkpoint, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an adapter for the last layer that adds the embedding of ` Z`, or of `.`, with the opposite sign: whatever
    the model computes, one of the two is far ahead."""
    plus, minus = (tokenizer.encode(text, add_special_tokens=False).ids[-1] for text in (" Z", "."))
    embed = dense(checkpoint.weights["embed"])
    direction = embed[plus] / embed[plus].norm() - embed[minus] / embed[minus].norm()
    tensors = random_tensors(("down",), rank=1, model=checkpoint.config)
    last = f"layers.{checkpoint.config.num_layers - 1}."
    for name, tensor in tensors.items():
        if name.endswith("lora_B.weight"):
            tensor.zero_()
            if last in name:
                tensor.copy_(1e4 * direction[:, None])
    write(folder, tensors, r=1, target_modules=["down_proj"])


def ask(client: Client, prompt: str, intent: str) -> str:
    """Return the specialist that answered."""
    try:
        return client.infer(prompt, intent=intent, max_tokens=96).receipt.specialist
    except OctetError:
        return ""


def wait_for(operator: Operator, what: str, subject: str, seconds: float = 0.0) -> AuditEntry | None:
    end = time.monotonic() + seconds
    while True:
        found = next((each for each in operator.audit(subject) if each.what == what), None)
        if found is not None or time.monotonic() >= end:
            return found
        time.sleep(0.05)


def ask_until(client: Client, operator: Operator, what: str, intent: str) -> tuple[int, str]:
    """Ask until the audit log has the change. Return how many answers of the lane it took, and the reason."""
    prompts, number = cycle(PROMPTS), 0
    while (found := wait_for(operator, what, intent, 2.0 if number >= 10 else 0.3)) is None:
        assert number < SPAN, "the lane has collapsed unnoticed"
        ask(client, next(prompts), intent)
        number += 1
    return number, found.why


@pytest.mark.slow
def test_an_adapter_that_repeats_itself_is_caught_within_twenty_answers(demo_gguf: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(demo_gguf)
    zed_adapter(checkpoint, checkpoint.vocabulary.tokenizer, tmp_path / "zed")
    with (
        serving(tmp_path, CONFIG.format(model=demo_gguf)) as served,
        Client(served.address) as client,
        Operator(served.address, who="tester") as operator,
    ):
        healthy = [client.infer(prompt, intent="sane", max_tokens=96) for prompt in PROMPTS]
        assert all(each.text.count("Z") < 10 for each in healthy)
        said = client.infer(PROMPTS[0], intent="old", max_tokens=96).text
        assert said.count("Z") + said.count(".") > 60, said
        taken = {}
        taken["old, one replica"] = ask_until(client, operator, "collapse", "old")
        assert ask(client, PROMPTS[0], "old") == "sane", "the fallback answers"
        info = next(each for each in operator.breakers().breakers if each.specialist == "old")
        assert info.state == "shadow_only" and "judged answers are degenerate" in info.collapse
        assert "All well" not in operator.overview().headline
        operator.load_adapter("sane", "zed", why="a candidate")
        taken["candidate"] = ask_until(client, operator, "roll_back", "sane")
        assert {each.status for each in operator.lanes("sane")} == {"serving", "rolled_back"}
        operator.load_adapter("sane", "zed", name="again", why="without trying it")
        operator.promote("sane", "again")
        number = 0
        while (serving_lane := next(each for each in operator.lanes("sane") if each.status == "serving")).number != 1:
            assert number < SPAN, "the lane has collapsed unnoticed"
            ask(client, PROMPTS[number % len(PROMPTS)], "sane")
            number += 1
            time.sleep(2.0 if number >= 10 else 0.3)
        taken["fresh"] = number, serving_lane.why
        print(said, taken)
        assert all(number <= SPAN for number, _ in taken.values())
