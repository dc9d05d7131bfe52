"""Sampling in C++: the same results as the reference, but faster and without waking other threads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from specialist.ops.cpu.library import DrawStruct
from specialist.ops.reference import sampling
from specialist.ops.reference.sampling import SampledToken, SampleRow
from specialist.scheduling.step import RowFault

_NONE = np.empty(0, np.int64)


class FusedSampler:
    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | RowFault]:
        """Do the same as `reference.sampling.sample`, on a CPU. That function is called for typical sampling."""
        unguided = [row._replace(guide=None) if _can_skip_guide(row) else row for row in rows]
        drawn = self._draw(logits, unguided)
        again = [i for i, row in enumerate(rows) if _can_skip_guide(row) and not _fits_guide(drawn[i], row)]
        if again:
            for i, token in zip(again, self._draw(logits[again], [rows[i] for i in again]), strict=True):
                drawn[i] = token
        return drawn

    def _draw(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | RowFault]:
        prepared = [_prepare(logits[index], row) for index, row in enumerate(rows)]
        ready = [each.draw for each in prepared if isinstance(each, _PreparedDraw)]
        draws = (DrawStruct * len(ready))(*ready)
        self._library.octet_sample(draws, len(draws))
        done = iter(draws)
        return [
            _read(next(done), logits[index], row) if isinstance(each, _PreparedDraw) else each
            for index, (each, row) in enumerate(zip(prepared, rows, strict=True))
        ]


def _can_skip_guide(row: SampleRow) -> bool:
    """Whether to draw without the mask first. If a greedy draw fits the structure, the mask would not change it."""
    return row.guide is not None and row.sampling.temperature == 0.0


def _fits_guide(drawn: SampledToken | RowFault, row: SampleRow) -> bool:
    try:
        return isinstance(drawn, SampledToken) and row.takes(drawn.token)
    except Exception:  # the draw with the mask will raise it again and report it for the row
        return False


class _PreparedDraw:
    def __init__(self, logits: Tensor, row: SampleRow) -> None:
        """logits: [vocab]. Raises ValueError for a token outside the vocabulary, or GuideExhausted."""
        want, vocab = row.sampling, logits.shape[0]
        fits = sampling.allowed_bits(row, vocab)
        counts_tokens = want.repetition_penalty != 1.0 or want.presence_penalty or want.frequency_penalty
        bans_stops = row.bans_stops and fits is None
        banned = sampling.check_token_ids(sampling.stop_id_array(row), vocab) if bans_stops else _NONE
        tokens = sampling.check_token_ids(np.asarray(row.tokens, np.int64), vocab) if counts_tokens else _NONE
        ids, bias = sampling.merge_biases(want.logit_bias)
        self._kept = (fits, banned, tokens, sampling.check_token_ids(ids, vocab), bias)
        self.draw = DrawStruct(
            logits=logits.data_ptr(),
            allowed=None if fits is None else fits.ctypes.data,
            tokens=tokens.ctypes.data,
            bias_ids=ids.ctypes.data,
            bias=bias.ctypes.data,
            banned=banned.ctypes.data,
            temperature=want.temperature,
            top_p=want.top_p,
            min_p=want.min_p,
            uniform=sampling.uniform(row.seed, len(row.tokens)) if want.temperature else 0.0,
            repetition=want.repetition_penalty,
            presence=want.presence_penalty,
            frequency=want.frequency_penalty,
            vocab=vocab,
            num_tokens=len(tokens),
            num_prompt=min(row.num_prompt, len(tokens)),
            num_bias=len(ids),
            num_banned=len(banned),
            top_k=min(want.top_k, vocab),
        )


def _prepare(logits: Tensor, row: SampleRow) -> "_PreparedDraw | SampledToken | RowFault":
    if row.sampling.temperature and row.sampling.typical_p < 1.0:
        return sampling.sample(logits.unsqueeze(0), [row])[0]
    try:
        return _PreparedDraw(logits, row)
    except Exception as error:  # a row's own settings must not break other rows
        return RowFault(f"{type(error).__name__}: {error}")


def _read(draw: DrawStruct, logits: Tensor, row: SampleRow) -> SampledToken | RowFault:
    fault = sampling.logits_fault(draw.raw, draw.peak)
    if fault is not None:
        return fault
    count = row.sampling.num_logprobs
    return SampledToken(draw.token, None if count is None else sampling.compute_logprobs(logits, draw.token, count))
