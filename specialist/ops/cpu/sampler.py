"""The next token of each row, drawn in C++: what the reference draws, sooner, and no thread is woken for it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from specialist.ops.cpu.library import Draw
from specialist.ops.sampling import reference
from specialist.ops.sampling.adjust import biases, checked, fitting, stops
from specialist.ops.sampling.reference import fault_of, logprobs_of
from specialist.ops.sampling.row import Drawn, SampleRow, uniform
from specialist.sampling import Sampling
from specialist.step import RowFault

_NONE = np.empty(0, np.int64)


class FusedSampler:
    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn | RowFault]:
        """As `reference.sample`, on a CPU. Typical sampling is left to it."""
        hopeful = [row._replace(guide=None) if _may_hope(row) else row for row in rows]
        drawn = self._drawn(logits, hopeful)
        again = [i for i, row in enumerate(rows) if _may_hope(row) and not _stands(drawn[i], row)]
        if again:
            for i, one in zip(again, self._drawn(logits[again], [rows[i] for i in again]), strict=True):
                drawn[i] = one
        return drawn

    def _drawn(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn | RowFault]:
        asked = [_asked(logits[index], row) for index, row in enumerate(rows)]
        ready = [one.draw for one in asked if isinstance(one, _Asked)]
        draws = (Draw * len(ready))(*ready)
        self._library.octet_sample(draws, len(draws))
        done = iter(draws)
        return [
            _read(next(done), logits[index], row) if isinstance(one, _Asked) else one
            for index, (one, row) in enumerate(zip(asked, rows, strict=True))
        ]


def _may_hope(row: SampleRow) -> bool:
    """What is largest of all is largest of what fits, if it fits: then nobody need know what else does."""
    return row.guide is not None and row.sampling.temperature == 0.0


def _stands(drawn: Drawn | RowFault, row: SampleRow) -> bool:
    try:
        return isinstance(drawn, Drawn) and row.takes(drawn.token)
    except Exception:  # the draw among what fits meets it again, and says whose fault it is
        return False


class _Asked:
    """A draw in C++'s words, and the memory that they point to."""

    def __init__(self, logits: Tensor, row: SampleRow) -> None:
        """logits: [vocab]. Raises ValueError for a token outside the vocabulary, NothingFits."""
        want, vocab = row.sampling, logits.shape[0]
        fits = fitting(row, vocab)
        banned = checked(stops(row), vocab) if row.bans_stops and fits is None else _NONE
        tokens = checked(np.asarray(row.tokens, np.int64), vocab) if _counts_tokens(want) else _NONE
        ids, bias = biases(want.logit_bias)
        self._kept = (fits, banned, tokens, checked(ids, vocab), bias)
        self.draw = Draw(
            logits=logits.data_ptr(),
            allowed=None if fits is None else fits.ctypes.data,
            tokens=tokens.ctypes.data,
            bias_ids=ids.ctypes.data,
            bias=bias.ctypes.data,
            banned=banned.ctypes.data,
            temperature=want.temperature,
            top_p=want.top_p,
            min_p=want.min_p,
            uniform=uniform(row.seed, len(row.tokens)) if want.temperature else 0.0,
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


def _asked(logits: Tensor, row: SampleRow) -> "_Asked | Drawn | RowFault":
    if row.sampling.temperature and row.sampling.typical_p < 1.0:
        return reference.sample(logits.unsqueeze(0), [row])[0]
    try:
        return _Asked(logits, row)
    except Exception as error:  # whatever a row's own settings break must not cost its neighbours
        return RowFault(f"{type(error).__name__}: {error}")


def _counts_tokens(want: Sampling) -> bool:
    return want.repetition_penalty != 1.0 or want.presence_penalty != 0.0 or want.frequency_penalty != 0.0


def _read(draw: Draw, logits: Tensor, row: SampleRow) -> Drawn | RowFault:
    fault = fault_of(draw.raw, draw.peak)
    if fault is not None:
        return fault
    count = row.sampling.num_logprobs
    return Drawn(draw.token, None if count is None else logprobs_of(logits, draw.token, count))
