"""Samples the next token of each row: adjusts logits, filters candidates and draws. Only the results leave a GPU."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from math import isfinite, log
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.scheduling.sequence import SampledLogprobs, Sampling, TokenGuide
from specialist.scheduling.step import RowFault


class SampleRow(NamedTuple):
    sampling: Sampling
    seed: int
    tokens: Sequence[int]  # prompt and answer so far; may be the sequence's own memory, so it must not be kept
    num_prompt: int
    stop_ids: frozenset[int] = frozenset()
    guide: TokenGuide | None = None
    num_guessed: int = 0  # trailing tokens that are drafts

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def bans_stops(self) -> bool:
        return bool(self.stop_ids) and self.num_generated < self.sampling.min_tokens

    def allowed(self) -> bytes | None:
        """Return the guide's bit mask; None without a guide, or if a draft does not fit it. Raises GuideExhausted."""
        if self.guide is None:
            return None
        known = len(self.tokens) - self.num_guessed
        return self.guide.allowed(self.tokens[self.num_prompt : known], self.tokens[known:])

    def takes(self, token: int) -> bool:
        """Whether the structure is known to allow the token."""
        if self.guide is None:
            return True
        known = len(self.tokens) - self.num_guessed
        return self.guide.takes(self.tokens[self.num_prompt : known], self.tokens[known:], token)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether only the most likely token of the unchanged logits is needed."""
        want = self.sampling
        return (
            want.temperature == 0.0
            and want.num_logprobs is None
            and not want.logit_bias
            and want.repetition_penalty == 1.0
            and want.presence_penalty == 0.0
            and want.frequency_penalty == 0.0
            and not self.bans_stops
            and self.guide is None
        )


class SampledToken(NamedTuple):
    token: int
    logprobs: SampledLogprobs | None


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | RowFault]:
    """Sample a token for each row of `logits`, float32 [len(rows), vocab], on any device, with one transfer to the
    host. The same logits and SampleRow give the same result, bit for bit. A row yields a RowFault if its logits contain
    NaN or +inf or are all -inf, or if its settings are invalid or leave no token to draw."""
    if all(row.is_plain_greedy for row in rows):
        largest = argmax_rows(logits)
        peaks = logits.gather(1, largest.unsqueeze(1)).squeeze(1)
        return [
            logits_fault(peak, peak) or SampledToken(int(token), None)
            for peak, token in torch.stack((peaks.double(), largest.double()), dim=1).tolist()
        ]
    parts = [_part(logits[index], row) for index, row in enumerate(rows)]
    packed = [part for part in parts if isinstance(part, Tensor)]
    numbers = iter(torch.cat(packed).tolist() if packed else ())
    outcomes: list[SampledToken | RowFault] = []
    for part, row in zip(parts, rows, strict=True):
        if isinstance(part, RowFault):
            outcomes.append(part)
            continue
        raw, peak, token = islice(numbers, 3)
        logprobs = _read_logprobs(numbers, row.sampling.num_logprobs, logits.shape[1])
        outcomes.append(logits_fault(raw, peak) or SampledToken(int(token), logprobs))
    return outcomes


def _part(logits: Tensor, row: SampleRow) -> Tensor | RowFault:
    """Return float64 values: the largest logit before and after adjustment, the token, and the requested logprobs."""
    try:
        changed = adjust_logits(logits, row)
        raw = logits.amax()
        peaks = torch.stack((raw, raw if changed is logits else changed.amax())).double()
        if is_on_cpu(peaks) and (fault := logits_fault(*peaks.tolist())):
            return fault  # on a GPU the fault is found after the transfer, and the drawn token is dropped
        token = _token(changed, row)
        return torch.cat((peaks, token.double(), *_logprobs(logits, token, row.sampling.num_logprobs)))
    except Exception as error:  # a row's own settings must not break other rows
        return RowFault(f"{type(error).__name__}: {error}")


def _token(logits: Tensor, row: SampleRow) -> Tensor:
    if row.sampling.temperature == 0.0:
        return argmax_rows(logits.unsqueeze(0))
    return draw_token(select_candidates(logits, row.sampling), uniform(row.seed, len(row.tokens)))


def logits_fault(raw: float, peak: float) -> RowFault | None:
    """Return a fault unless the largest logit is finite both before (`raw`) and after adjustment (`peak`)."""
    if not isfinite(raw):
        return RowFault(f"the model's logits are not usable: the largest is {raw}")
    if not isfinite(peak):
        return RowFault(
            f"structure, logit bias, penalties and banned tokens leave no token to draw: the largest logit is {peak}"
        )
    return None


def _logprobs(logits: Tensor, token: Tensor, count: int | None) -> Iterator[Tensor]:
    if count is None:
        return
    total = logits.double().logsumexp(0)
    yield logits[token].double() - total
    if count == 0:
        return
    top = top_candidates(logits, count)
    scores, order = torch.sort(top.scores, descending=True, stable=True)
    yield top.ids[order[:count]].double()
    yield scores[:count].double() - total


def compute_logprobs(logits: Tensor, token: int, count: int) -> SampledLogprobs | None:
    """Return log probabilities of the token and of the `count` most likely ones. logits: [vocab], before adjustment."""
    numbers = torch.cat(tuple(_logprobs(logits, torch.tensor([token]), count))).tolist()
    return _read_logprobs(iter(numbers), count, logits.shape[0])


def _read_logprobs(numbers: Iterator[float], count: int | None, vocab: int) -> SampledLogprobs | None:
    if count is None:
        return None
    count, chosen = min(count, vocab), next(numbers)
    ids = [int(number) for number in islice(numbers, count)]
    return SampledLogprobs(chosen, tuple(zip(ids, islice(numbers, count), strict=True)))


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends only on seed and position."""
    digest = sha256(f"{seed}:{position}".encode()).digest()
    return (int.from_bytes(digest[:8]) >> 11) / (1 << 53)


def adjust_logits(logits: Tensor, row: SampleRow) -> Tensor:
    """Apply structure, bias, penalties and minimum length to logits [vocab]. Raises ValueError or GuideExhausted."""
    want = row.sampling
    fits = allowed_bits(row, logits.shape[0])
    if fits is not None:
        logits = _mask(logits, np.unpackbits(fits, count=logits.shape[0], bitorder="little"))
    if want.logit_bias:
        ids, total = merge_biases(want.logit_bias)
        logits = logits.index_add(0, _ids_on_device(ids, logits), _move(total, logits))
    if want.repetition_penalty != 1.0:
        present, _ = _count_tokens(row.tokens, logits)
        seen, penalty = logits[present], want.repetition_penalty
        logits = logits.index_copy(0, present, torch.where(seen > 0, seen / penalty, seen * penalty))
    if want.presence_penalty or want.frequency_penalty:
        present, counts = _count_tokens(row.tokens[row.num_prompt :], logits)
        penalties = want.frequency_penalty * counts + want.presence_penalty
        logits = logits.index_add(0, present, penalties, alpha=-1)
    if row.bans_stops and fits is None:
        logits = logits.index_fill(0, _ids_on_device(stop_id_array(row), logits), -torch.inf)
    return logits


def allowed_bits(row: SampleRow, vocab: int) -> NDArray[np.uint8] | None:
    """Return a bit mask of the tokens that may be drawn, or None if the guide restricts none. Before the minimum
    length, the mask excludes stop tokens, unless the structure allows nothing else."""
    allowed = row.allowed()
    if allowed is None:
        return None
    bits = np.frombuffer(allowed, np.uint8)
    if len(bits) * 8 < vocab:
        raise ValueError(f"the mask has {len(bits) * 8} bits for {vocab} tokens")
    if not row.bans_stops:
        return bits
    continuing = np.unpackbits(bits, count=vocab, bitorder="little")
    continuing[check_token_ids(stop_id_array(row), vocab)] = 0
    return np.packbits(continuing, bitorder="little") if continuing.any() else bits


def stop_id_array(row: SampleRow) -> NDArray[np.int64]:
    return np.array(sorted(row.stop_ids), np.int64)


def _mask(logits: Tensor, bits: NDArray[np.uint8]) -> Tensor:
    """Set logits whose bit is 0 to -inf. On a CPU, numpy does this, because it does not wake other threads."""
    if is_on_cpu(logits):
        return torch.from_numpy(np.where(bits.view(np.bool_), logits.numpy(), np.float32(-np.inf)))
    return logits.masked_fill(_move(bits == 0, logits), -torch.inf)


def merge_biases(bias: tuple[tuple[int, float], ...]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the distinct tokens and their biases. The biases of a repeated token are added up."""
    total: dict[int, float] = {}
    for token, value in bias:
        total[token] = total.get(token, 0.0) + value
    return np.array(list(total), np.int64), np.array(list(total.values()), np.float32)


def _count_tokens(tokens: Sequence[int], logits: Tensor) -> tuple[Tensor, Tensor]:
    ids = check_token_ids(np.asarray(tokens), logits.shape[0])
    counts = np.bincount(ids)
    present = np.flatnonzero(counts)
    return _move(present, logits), _move(counts[present], logits).to(logits.dtype)


def _ids_on_device(tokens: NDArray[np.generic], logits: Tensor) -> Tensor:
    return _move(check_token_ids(tokens, logits.shape[0]), logits)


def check_token_ids(tokens: NDArray[np.generic], vocab: int) -> NDArray[np.int64]:
    """Return the ids as int64. Raises ValueError for a token outside the vocabulary."""
    ids = tokens.astype(np.int64, copy=False)
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab):
        raise ValueError(f"token ids must be in [0, {vocab}), got ids from {ids.min()} to {ids.max()}")
    return ids


def _move(values: NDArray[Any], logits: Tensor) -> Tensor:
    return torch.from_numpy(values).to(logits.device, non_blocking=True)


_COLDEST = 1e-300  # the lowest temperature: a GPU divides by multiplying by the inverse, which must be finite


class Candidates(NamedTuple):
    """Candidates sorted by id. On a GPU, a removed candidate stays with a score of -inf, which saves a sync."""

    scores: Tensor  # [n]
    ids: Tensor  # [n]

    def only(self, kept: Tensor) -> "Candidates":
        if not is_on_cpu(kept):
            return Candidates(self.scores.masked_fill(~kept, -torch.inf), self.ids)
        places = torch.from_numpy(np.flatnonzero(kept.numpy()))
        return Candidates(self.scores[places], self.ids[places])

    def normalize(self) -> "Candidates":
        return Candidates(self.scores.log_softmax(0), self.ids)


def top_candidates(logits: Tensor, count: int) -> Candidates:
    """Return the `count` largest logits of [vocab], including ties with the last of them; all if `count` is 0."""
    every = Candidates(logits, torch.arange(logits.shape[0], device=logits.device))
    if not 0 < count < logits.shape[0]:
        return every
    least = torch.topk(logits, count, sorted=False).values.min()
    return every.only(logits >= least)


def select_candidates(logits: Tensor, want: Sampling) -> Candidates:
    """Return the candidates that pass the filters, with float64 log probabilities. The largest logit must be finite."""
    found = top_candidates(logits, want.top_k)
    below = found.scores.double() - found.scores.max().double()  # at most 0, so that no temperature overflows
    found = Candidates(below / max(want.temperature, _COLDEST), found.ids).normalize()
    if want.typical_p < 1.0:
        found = _typical(found, want.typical_p)
    if want.top_p < 1.0:
        found = _top_p(found, want.top_p)
    if want.min_p > 0.0:
        found = found.only(found.scores >= found.scores.max() + log(want.min_p)).normalize()
    return found


def _typical(found: Candidates, mass: float) -> Candidates:
    """Keep candidates with surprisal nearest to the entropy, up to a total of `mass`, and ties with the last."""
    p = found.scores.exp()
    entropy = -(p * found.scores).nansum()  # 0 * -inf counts as 0
    distance = (-found.scores - entropy).abs()
    order = argsort_ascending(distance)
    last = (p[order].cumsum(0) < mass).sum().clamp(max=len(order) - 1)
    furthest = distance.take(order.take(last))  # indexing with a 0-dimensional tensor would sync
    return found.only(distance <= furthest).normalize()


def _top_p(found: Candidates, mass: float) -> Candidates:
    """Keep the most likely candidates, up to a total probability of `mass`, at least one. Of ties, keep lower ids."""
    # all candidates below this score together weigh less than 1 - mass, so none of them is kept
    found = found.only(found.scores >= log((1.0 - mass) / 2 / len(found.ids)))
    ranked = sort_descending(found.scores)
    p = ranked.exp()
    count = ((p.cumsum(0) - p) < mass).sum().clamp(min=1)
    least = ranked.take(count - 1)
    above, equal = found.scores > least, found.scores == least
    return found.only(above | (equal & (equal.cumsum(0) <= count - above.sum()))).normalize()


def draw_token(found: Candidates, uniform: float) -> Tensor:
    """Return [1], the id at which the cumulative probability passes `uniform`."""
    return found.ids[pick_by_cumulative(found.scores.exp(), uniform)]


def is_on_cpu(tensor: Tensor) -> bool:
    """Whether the tensor is on a CPU, where data-dependent sizes are cheap and numpy is much faster than torch."""
    return tensor.device.type == "cpu"


def argmax_rows(logits: Tensor) -> Tensor:
    """For each row of [rows, vocab], return the id of the largest logit (of equal ones the lowest), or of a NaN."""
    if is_on_cpu(logits):
        return torch.from_numpy(logits.numpy().argmax(axis=1))
    return logits.argmax(dim=1)


def pick_by_cumulative(p: Tensor, uniform: float) -> Tensor:
    """Return [1]: the first index at which the cumulative sum of `p` exceeds `uniform` times its total."""
    running = p.cumsum(0)
    if is_on_cpu(p):
        return torch.searchsorted(running, running[-1:] * uniform, right=True)
    running = running.masked_fill_(p == 0.0, 0.0)  # a parallel sum may grow slightly where 0 was added
    return (running > running.max() * uniform).int().argmax(dim=0, keepdim=True)


def sort_descending(values: Tensor) -> Tensor:
    if is_on_cpu(values):
        return torch.from_numpy(np.sort(values.numpy())).flip(0)
    return values.sort(descending=True).values


def argsort_ascending(values: Tensor) -> Tensor:
    if is_on_cpu(values):
        return torch.from_numpy(np.argsort(values.numpy()))
    return values.argsort()
