"""Measuring what Octet's steps cost, by their shape."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bench.engine_fit import MeasuredStep, fit_cost_model
from bench.engine_jobs import Job
from bench.peers.process import Peer
from specialist.engines.sim.calibration import cost_model_to_json

_ANSWER = 16
# Sequences, and the length of their prompts: short and long, few and many, so that each cost shows somewhere.
FULL_SHAPES = ((1, 16), (1, 64), (1, 256), (1, 1_024), (4, 32), (4, 512), (16, 32), (16, 256), (32, 16), (32, 128))
QUICK_SHAPES = ((1, 4), (1, 32), (4, 8), (4, 64))


def measured_steps(peer: Peer, vocab_size: int, *, quick: bool) -> Iterator[MeasuredStep]:
    """Two passes, with other prompts; the first is not counted."""
    for seed in ("warm-up", "counted"):
        for concurrency, prompt_tokens in QUICK_SHAPES if quick else FULL_SHAPES:
            job = Job(f"{concurrency} x {prompt_tokens}", concurrency, prompt_tokens, _ANSWER)
            steps = peer.call("steps", prompts=job.prompts(seed, vocab_size), new_tokens=_ANSWER)
            if seed == "counted":
                yield from (MeasuredStep(*step) for step in steps)


def calibrate(peer: Peer, vocab_size: int, revision: str, *, quick: bool) -> tuple[str, str]:
    """The file's content, and a summary for a person."""
    cost, fits = fit_cost_model(list(measured_steps(peer, vocab_size, quick=quick)))
    about: dict[str, Any] = {
        "revision": revision,
        "settings": peer.settings,
        "fits": {mode: asdict(fit) for mode, fit in fits.items()},
        "not measured": ["adapter_switch", "preemption"],
    }
    lines = [
        f"{mode}: {1e3 * fit.step:.3g} ms a step, {1e3 * fit.token:.3g} ms a token, {1e9 * fit.pair:.3g} ns a pair; "
        f"half of {fit.num_steps} steps within {100 * fit.median_error:.1f} %"
        for mode, fit in fits.items()
    ]
    return cost_model_to_json(cost, about), "\n".join(lines)
