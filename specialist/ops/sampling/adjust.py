"""What is done to the logits of one row before a token is drawn: structure, bias, penalties, minimum length."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.ops.sampling.places import sizes_are_free
from specialist.ops.sampling.row import SampleRow


def adjusted(logits: Tensor, row: SampleRow) -> Tensor:
    """logits: [vocab], left as they are. Raises ValueError for a token outside the vocabulary, NothingFits."""
    want = row.sampling
    fits = fitting(row, logits.shape[0])
    if fits is not None:
        logits = _kept(logits, np.unpackbits(fits, count=logits.shape[0], bitorder="little"))
    if want.logit_bias:
        logits = _biased(logits, want.logit_bias)
    if want.repetition_penalty != 1.0:
        logits = _less_repeated(logits, row.tokens, want.repetition_penalty)
    if want.presence_penalty or want.frequency_penalty:
        generated = row.tokens[row.num_prompt :]
        logits = _less_generated(logits, generated, want.presence_penalty, want.frequency_penalty)
    if row.bans_stops and fits is None:
        logits = logits.index_fill(0, _on_device(stops(row), logits), -torch.inf)
    return logits


def fitting(row: SampleRow, vocab: int) -> NDArray[np.uint8] | None:
    """One bit a token, 1 where it may be drawn; None without a structure. An answer that can only end may end before
    its least length."""
    allowed = row.allowed()
    if allowed is None:
        return None
    bits = np.frombuffer(allowed, np.uint8)
    if len(bits) * 8 < vocab:
        raise ValueError(f"{len(bits) * 8} bits cannot say which of {vocab} tokens may be drawn")
    if not row.bans_stops:
        return bits
    going_on = np.unpackbits(bits, count=vocab, bitorder="little")
    going_on[checked(stops(row), vocab)] = 0
    return np.packbits(going_on, bitorder="little") if going_on.any() else bits


def stops(row: SampleRow) -> NDArray[np.int64]:
    return np.array(sorted(row.stop_ids), np.int64)


def _kept(logits: Tensor, bits: NDArray[np.uint8]) -> Tensor:
    """On a CPU numpy does it without waking other threads."""
    if sizes_are_free(logits):
        return torch.from_numpy(np.where(bits.view(np.bool_), logits.numpy(), np.float32(-np.inf)))
    return logits.masked_fill(_moved(bits == 0, logits), -torch.inf)


def _biased(logits: Tensor, bias: tuple[tuple[int, float], ...]) -> Tensor:
    ids, total = biases(bias)
    return logits.index_add(0, _on_device(ids, logits), _moved(total, logits))


def biases(bias: tuple[tuple[int, float], ...]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """A token named twice gets both."""
    total: dict[int, float] = {}
    for token, value in bias:
        total[token] = total.get(token, 0.0) + value
    return np.array(list(total), np.int64), np.array(list(total.values()), np.float32)


def _less_repeated(logits: Tensor, tokens: Sequence[int], penalty: float) -> Tensor:
    ids, _ = _counted(tokens, logits)
    seen = logits[ids]
    return logits.index_copy(0, ids, torch.where(seen > 0, seen / penalty, seen * penalty))


def _less_generated(logits: Tensor, generated: Sequence[int], presence: float, frequency: float) -> Tensor:
    ids, counts = _counted(generated, logits)
    return logits.index_add(0, ids, frequency * counts + presence, alpha=-1)


def _counted(tokens: Sequence[int], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens there are, and how often each."""
    ids = checked(np.asarray(tokens), logits.shape[0])
    counts = np.bincount(ids)
    present = np.flatnonzero(counts)
    return _moved(present, logits), _moved(counts[present], logits).to(logits.dtype)


def _on_device(tokens: NDArray[np.generic], logits: Tensor) -> Tensor:
    return _moved(checked(tokens, logits.shape[0]), logits)


def checked(tokens: NDArray[np.generic], vocab: int) -> NDArray[np.int64]:
    """Raises ValueError for one outside the vocabulary."""
    ids = tokens.astype(np.int64, copy=False)
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab):
        raise ValueError(f"a token lies outside the vocabulary of {vocab}: {ids.min()} to {ids.max()}")
    return ids


def _moved(values: NDArray[Any], logits: Tensor) -> Tensor:
    """To the logits' device, without waiting for what runs there."""
    return torch.from_numpy(values).to(logits.device, non_blocking=True)
