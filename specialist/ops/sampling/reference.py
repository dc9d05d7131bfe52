"""The next token of each row."""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite

import torch
from torch import Tensor

from specialist.ops.sampling.adjust import adjusted
from specialist.ops.sampling.filters import candidates, draw, leaders
from specialist.ops.sampling.places import first_largest, sizes_are_free
from specialist.ops.sampling.row import Drawn, SampleRow, uniform
from specialist.sampling import TokenLogprobs
from specialist.step import RowFault

__all__ = ["Drawn", "SampleRow", "fault_of", "logprobs_of", "sample"]


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn | RowFault]:
    """logits: float32 [len(rows), vocab], any device; left as they are. One transfer to the host in all.

    What a row gets depends on its logits and its SampleRow alone, to the bit. A row whose logits hold NaN or +inf,
    or nothing above -inf, is a RowFault; so is one whose own bias and bans leave nothing to draw.
    """
    if all(row.is_plain_greedy for row in rows):
        largest = first_largest(logits)
        peaks = logits.gather(1, largest.unsqueeze(1)).squeeze(1)
        return [
            fault_of(peak, peak) or Drawn(int(token), None)
            for peak, token in torch.stack((peaks.double(), largest.double()), dim=1).tolist()
        ]
    parts = [_part(logits[index], row) for index, row in enumerate(rows)]
    packed = [part for part in parts if isinstance(part, Tensor)]
    numbers = iter(torch.cat(packed).tolist() if packed else ())
    return [
        part if isinstance(part, RowFault) else _outcome(numbers, row, logits.shape[1])
        for part, row in zip(parts, rows, strict=True)
    ]


def _part(logits: Tensor, row: SampleRow) -> Tensor | RowFault:
    """float64: the largest logit before and after adjustment, the token, and the log probabilities asked for."""
    try:
        changed = adjusted(logits, row)
        raw = logits.amax()
        peaks = torch.stack((raw, raw if changed is logits else changed.amax())).double()
        if sizes_are_free(peaks) and (fault := fault_of(*peaks.tolist())):
            return fault  # elsewhere it is found in the end, and what was drawn from such a row is thrown away
        token = _token(changed, row)
        return torch.cat((peaks, token.double(), *_logprobs(logits, token, row.sampling.num_logprobs)))
    except Exception as error:  # whatever a row's own settings break must not cost its neighbours
        return RowFault(f"{type(error).__name__}: {error}")


def _token(logits: Tensor, row: SampleRow) -> Tensor:
    """[1]"""
    if row.sampling.temperature == 0.0:
        return first_largest(logits.unsqueeze(0))
    return draw(candidates(logits, row.sampling), uniform(row.seed, len(row.tokens)))


def _logprobs(logits: Tensor, token: Tensor, count: int | None) -> Iterator[Tensor]:
    """The token's log probability; the most likely tokens; their log probabilities."""
    if count is None:
        return
    total = logits.double().logsumexp(0)
    yield logits[token].double() - total
    if count == 0:
        return
    top = leaders(logits, count)
    scores, order = torch.sort(top.scores, descending=True, stable=True)
    yield top.ids[order[:count]].double()
    yield scores[:count].double() - total


def logprobs_of(logits: Tensor, token: int, count: int) -> TokenLogprobs | None:
    """logits: [vocab], as the model gave them."""
    numbers = torch.cat(tuple(_logprobs(logits, torch.tensor([token]), count))).tolist()
    return _read_logprobs(iter(numbers), count, logits.shape[0])


def _outcome(numbers: Iterator[float], row: SampleRow, vocab: int) -> Drawn | RowFault:
    raw, peak, token = islice(numbers, 3)
    logprobs = _read_logprobs(numbers, row.sampling.num_logprobs, vocab)
    return fault_of(raw, peak) or Drawn(int(token), logprobs)


def fault_of(raw: float, peak: float) -> RowFault | None:
    """raw, peak: the largest logit as the model gave it, and after adjustment; NaN where there is one."""
    if not isfinite(raw):
        return RowFault(f"the model's logits are not usable: the largest is {raw}")
    if not isfinite(peak):
        return RowFault(
            f"structure, logit bias, penalties and banned tokens leave nothing to draw: the largest logit is {peak}"
        )
    return None


def _read_logprobs(numbers: Iterator[float], count: int | None, vocab: int) -> TokenLogprobs | None:
    if count is None:
        return None
    count, chosen = min(count, vocab), next(numbers)
    ids = [int(number) for number in islice(numbers, count)]
    return TokenLogprobs(chosen, tuple(zip(ids, islice(numbers, count), strict=True)))
