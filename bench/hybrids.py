"""Models with recurrent layers: first tokens after a cached prefix and after a fork, and resuming after a preemption,
each beside computing everything, by turns. The model has the shape of a small hybrid and random weights.

python -m bench.hybrids [--rounds N] [--tokens N]
"""

import argparse
import time
from collections.abc import Iterator
from itertools import count
from random import Random

import torch

from bench.timing import Board, table_of_spreads
from octet.clock import SystemClock
from octet.identity import digest_parts
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, StateSpace, expected_shapes
from specialist.models.demo import cache_directory
from specialist.scheduling.ledger import Hybrid
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings

_ATTENTION_EVERY = 6
_NEW = 16
SHAPE = ModelConfig(
    architecture="bamba",
    vocab_size=sim_vocabulary().tokenizer.get_vocab_size(),
    hidden_size=768,
    intermediate_size=2048,
    num_layers=24,
    num_heads=12,
    num_kv_heads=4,
    head_dim=64,
    norm_eps=1e-5,
    rope=Rope(),
    context=4096,
    tied_head=True,
    parts=tuple(("attention" if i % _ATTENTION_EVERY == 3 else "ssm", "mlp") for i in range(24)),
    ssm=StateSpace(num_heads=24, head_dim=64, state_size=128, num_groups=1, width=4),
    rotary_dim=32,
)


def random_checkpoint(config: ModelConfig) -> Checkpoint:
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) * (shape[-1] ** -0.5) for name, shape in expected_shapes(config)}
    revision = digest_parts([b"bench.hybrids", repr(config).encode()]).hex()
    return Checkpoint(config, sim_vocabulary(), revision, weights)


class Asker:
    """Sends requests to one replica and measures them."""

    def __init__(self, replica: AssembledReplica) -> None:
        self.replica = replica
        self._loop = StepLoop(replica.scheduler, replica.engine)
        self._names = count()
        self._random = Random(0)

    def tokens(self, number: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(3, 90) for _ in range(number))

    def request(self, prompt: tuple[int, ...], max_tokens: int = 1, priority: int = 0) -> Request:
        return Request(f"r{next(self._names)}", self.replica.lane, prompt, max_tokens, priority=priority)

    def first_token(self, prompt: tuple[int, ...]) -> float:
        """Return the seconds until the first token."""
        began = time.perf_counter()
        self.replica.scheduler.submit(self.request(prompt))
        return self._until_token(began)

    def next_token_after_preemption(self, prompt: tuple[int, ...]) -> float:
        """Return the seconds from the end of a preemption to the next token of the preempted sequence."""
        scheduler = self.replica.scheduler
        low = self.request(prompt, 8)
        scheduler.submit(low)
        self._until_token(0.0)
        scheduler.suspend(low.request_id, "another")
        while self._loop.run_once() is not None:
            pass
        scheduler.take_events()
        began = time.perf_counter()
        scheduler.resume(low.request_id)
        seconds = self._until_token(began)
        scheduler.end(low.request_id, "cancelled")
        self._run_all()
        return seconds

    def _until_token(self, began: float) -> float:
        while True:
            if self._loop.run_once() is None:
                raise RuntimeError("no token came")
            if any(isinstance(event, Emitted) for event in self.replica.scheduler.take_events()):
                return time.perf_counter() - began

    def _run_all(self) -> None:
        while self._loop.run_once() is not None:
            pass
        self.replica.scheduler.take_events()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hybrids", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000)
    arguments = parser.parse_args()
    board, checkpoint = Board("hybrids"), random_checkpoint(SHAPE)
    try:
        settings = ReplicaSettings(name="bench", kv_bytes=1 << 29, state_bytes=1 << 30)
        asker = Asker(replica_from_checkpoint(checkpoint, "random hybrid", settings, SystemClock()))
        for number in range(arguments.rounds + 1):  # the first does not count
            for case, figures in _round(asker, arguments.tokens):
                if number:
                    board.add(number, case, "octet", figures)
    finally:
        for packed in (cache_directory() / "weights").glob(f"{checkpoint.revision}*"):
            packed.unlink()
    print(table_of_spreads(board.records(), {}))


def _round(asker: Asker, length: int) -> Iterator[tuple[str, list[tuple[str, str, float]]]]:
    stem = asker.tokens(length // 2)
    prompt = stem + asker.tokens(length - len(stem))
    cold = asker.first_token(prompt)
    asker.first_token(stem + asker.tokens(length - len(stem)))  # leaves a state where the two prompts part
    warm = asker.first_token(prompt + asker.tokens(_NEW))
    fork = asker.first_token(stem + asker.tokens(_NEW))
    first = "first token"
    yield f"{length} tokens, nothing cached", [(first, "ms", 1e3 * cold)]
    yield f"the same and {_NEW} more", [(first, "ms", 1e3 * warm), ("relative to cold", "%", 100 * warm / cold)]
    yield (
        f"the {len(stem)} tokens that two prompts share, and {_NEW} more",
        [(first, "ms", 1e3 * fork), ("relative to cold", "%", 100 * fork / cold)],
    )
    states = asker.replica.scheduler.states
    if not isinstance(states, Hybrid):
        raise TypeError("the model has no recurrent layers")
    resumed = asker.next_token_after_preemption(asker.tokens(length))
    kept, states.max_snapshot_bytes = states.max_snapshot_bytes, 0
    again = asker.next_token_after_preemption(asker.tokens(length))
    states.max_snapshot_bytes = kept
    yield "preempted, then resumed", [("next token", "ms", 1e3 * resumed), ("relative", "%", 100 * resumed / again)]
    yield "preempted, then computed again", [("next token", "ms", 1e3 * again)]


if __name__ == "__main__":
    main()
