"""Bounds that no engine can beat here, measured in Octet's process in the same rounds."""

from collections.abc import Iterator

from bench.engine_jobs import Figure, Workload, decode_case, prefill_case
from bench.peers.process import Peer

LINEAR, READING = "linear", "read"
LIMITS = (LINEAR, READING)
BARE_LINEAR, AT_BANDWIDTH = "bare linear layers", "weights at read bandwidth"


def limit_figures(limit: str, workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """By case."""
    yield from _linear(workload, peer) if limit == LINEAR else _reading(workload, peer)


def _linear(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """Every matrix of the model once for that many tokens, the head for those that are sampled, and nothing else."""
    for concurrency in workload.answers:
        seconds = float(peer.call(LINEAR, tokens=concurrency, outputs=concurrency)["seconds"])
        yield decode_case(concurrency), Figure(BARE_LINEAR, "tok/s", concurrency / seconds)
    seconds = float(peer.call(LINEAR, tokens=workload.prefill_prompt, outputs=1)["seconds"])
    yield prefill_case(workload), Figure(BARE_LINEAR, "tok/s", workload.prefill_prompt / seconds)


def _reading(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """A token needs every weight once. Reading as many bytes over and over says how fast that can be: faster than
    memory where they fit the processor's caches, so the memory's own bandwidth is shown beside it."""
    weights = peer.call(READING, nbytes=None)
    yield decode_case(1), Figure(AT_BANDWIDTH, "tok/s", 1 / float(weights["seconds"]))
    large = peer.call(READING, nbytes=workload.large_read)
    for case, read in (("as many bytes as the weights", weights), (f"{workload.large_read >> 20:,} MiB", large)):
        yield case, Figure("read bandwidth", "GB/s", float(read["nbytes"]) / float(read["seconds"]) / 1e9)
