"""Keeps on a GPU what rows need to draw from a changed distribution: counts of their tokens, biases, banned tokens.

A sequence has a slot for these. Its counts follow its steps on the device, where the newest token is known first.
"""

from collections.abc import Sequence
from math import inf, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.engines.native.gpu_inputs import Staging, send_together
from specialist.engines.native.shaped_draw import MOST_EDITS, PlacedDraw, Shaped, Slots
from specialist.ops.gpu.shaping import PROMPT, Edits, Shapes, draw_shaped, shape_space
from specialist.ops.reference.sampling import merge_biases

_NUM_INTS = 5  # fields of Shapes


class Shaper:
    def __init__(self, max_rows: int, vocab: int, device: torch.device) -> None:
        self.max_rows, self._vocab, self._device = max_rows, vocab, device
        slots = 2 * max_rows  # the second half is for `draw`

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._edits = Edits(
            counts=zeros(slots, vocab, dtype=torch.int16),
            ids=zeros(slots, MOST_EDITS),
            values=zeros(slots, MOST_EDITS, dtype=torch.float32),
            lengths=zeros(slots, 2),
        )
        self._space = shape_space(max_rows, vocab, device)
        self._slots = Slots(max_rows)
        shape = len(Shapes._fields), max_rows
        self._staging, self._all = Staging(shape, device), zeros(*shape)
        shape = max_rows, -(-vocab // 32)
        self._mask_staging, self._masks = Staging(shape, device), zeros(*shape)
        floats = self._all.view(torch.float32)
        self._shapes = Shapes(*self._all[:_NUM_INTS].unbind(), *floats[_NUM_INTS:].unbind())

    def forget(self) -> None:
        """Forget the counts of all sequences: their next draws count anew."""
        self._slots.forget()

    def place(self, rows: Sequence[tuple[Shaped | None, int, bool]], bucket: int) -> bool:
        """Prepare draws for these rows, as `Slots.place` takes them, and for padding rows. Return whether some row has
        top-k."""
        placed, new = self._slots.place(rows)
        self._fill(new)
        self._send(placed, bucket)
        return any(shaped is not None and shaped.sampling.top_k > 0 for shaped, _, _ in rows)

    def run(
        self, logits: Tensor, inputs: Tensor, positions: Tensor, tokens: Tensor, peaks: Tensor, *, has_k: bool,
        chained: bool = False,
    ) -> None:  # fmt: skip
        """Draw for the rows that were placed, as `draw_shaped` does."""
        shapes = Shapes(*(each[: len(logits)] for each in self._shapes))
        draw_shaped(
            logits, inputs, positions, shapes, self._edits, self._masks, tokens, peaks, self._space, has_k=has_k,
            chained=chained,
        )  # fmt: skip

    @torch.inference_mode()
    def draw(self, logits: Tensor, rows: Sequence[Shaped]) -> tuple[list[int], list[float]]:
        """Draw a token from each row of logits, which change, exactly as a launched step does. Return the tokens and
        the largest logits after all changes."""
        tokens, peaks = [], []
        for first in range(0, len(rows), self.max_rows):
            part = rows[first : first + self.max_rows]
            lengths = [len(shaped.tokens) for shaped in part]
            placed = [
                PlacedDraw(shaped, self.max_rows + index if shaped.has_edits else -1, position=length - 1)
                for index, (shaped, length) in enumerate(zip(part, lengths, strict=True))
            ]
            self._fill([(each.slot, shaped, len(shaped.tokens)) for each, shaped in zip(placed, part, strict=True)
                        if each.slot >= 0])  # fmt: skip
            self._send(placed, len(part))
            positions = torch.tensor(lengths, dtype=torch.int32, device=self._device) - 1
            drawn = torch.zeros((2, -(-len(part) // 4) * 4), dtype=torch.int32, device=self._device)
            has_k = any(shaped.sampling.top_k > 0 for shaped in part)
            mine = logits[first : first + len(part)]
            self.run(mine, drawn[0], positions, drawn[0], drawn[1].view(torch.float32), has_k=has_k)
            host = drawn.cpu()
            tokens += host[0, : len(part)].tolist()
            peaks += host[1, : len(part)].view(torch.float32).tolist()
        return tokens, peaks

    def _fill(self, new: Sequence[tuple[int, Shaped, int]]) -> None:
        """Write the edits of slots, with the counts of so many tokens."""
        if not new:
            return
        edits = [_edits_of(shaped) for _, shaped, _ in new]
        width = max(len(ids) for ids, _, _ in edits)
        changed = np.zeros((2, len(new), width), np.int32)  # ids, and values as bits
        for index, (ids, values, _) in enumerate(edits):
            changed[0, index, : len(ids)] = ids
            changed[1, index, : len(ids)] = values.view(np.int32)
        lengths = np.array([(len(ids) - bans, bans) for ids, _, bans in edits], np.int32)
        counted = [
            (np.asarray(shaped.tokens[:length], np.int32) + slot * self._vocab, shaped.num_prompt)
            for slot, shaped, length in new
            if shaped.has_counts
        ]
        nothing = [np.zeros(0, np.int32)]
        prompts = np.concatenate([known[:num_prompt] for known, num_prompt in counted] or nothing)
        answers = np.concatenate([known[num_prompt:] for known, num_prompt in counted] or nothing)
        slots = np.array([slot for slot, _, _ in new], np.int32)
        parts = (slots, lengths.ravel(), changed.ravel(), prompts, answers)
        sent = send_together(self._device, *(torch.from_numpy(part) for part in parts))
        where, known, generated = sent[0].long(), sent[3].long(), sent[4].long()
        ids, values = sent[2].view(2, len(new), width)
        self._edits.lengths.index_copy_(0, where, sent[1].view(-1, 2))
        if width:
            self._edits.ids[:, :width].index_copy_(0, where, ids)
            self._edits.values[:, :width].index_copy_(0, where, values.view(torch.float32))
        self._edits.counts.index_fill_(0, where, 0)
        flat = self._edits.counts.view(-1)
        flat.index_fill_(0, known, -PROMPT)
        flat.index_add_(0, generated, torch.ones_like(generated, dtype=torch.int16))

    def _send(self, placed: Sequence[PlacedDraw], bucket: int) -> None:
        """Send the rows' fields, followed by those of padding rows, and the masks of those rows that have one."""
        ints = self._staging.next()
        floats = ints.view(np.float32)
        ints[:, :bucket] = 0
        masks: list[NDArray[np.uint8]] = []
        for index, (shaped, slot, adds, _) in enumerate(placed):
            if shaped is None:
                continue
            want = shaped.sampling
            if shaped.mask is not None:
                masks.append(shaped.mask)
            free_from = shaped.num_prompt + want.min_tokens if shaped.bans else 0
            mask = len(masks) if shaped.mask is not None else 0
            ints[:_NUM_INTS, index] = (1, slot, adds, free_from, mask)
            floats[_NUM_INTS:, index] = (
                want.temperature, shaped.uniform, want.repetition_penalty, want.presence_penalty,
                want.frequency_penalty, want.top_k, want.top_p if want.top_p < 1.0 else 0.0,
                log(want.min_p) if want.min_p > 0.0 else -inf,
            )  # fmt: skip
        self._staging.send(self._all, len(ints))
        if masks:
            self._send_masks(masks)

    def _send_masks(self, masks: Sequence[NDArray[np.uint8]]) -> None:
        every = self._mask_staging.next().view(np.uint8)
        for row, mask in zip(every, masks, strict=False):
            row[: len(mask)] = mask[: len(row)]
            row[len(mask) :] = 0
        self._mask_staging.send(self._masks, len(masks))


def _edits_of(shaped: Shaped) -> tuple[NDArray[np.int32], NDArray[np.float32], int]:
    """Return the ids of biased and then of banned tokens, the biases, and the number of banned tokens."""
    ids, values = merge_biases(shaped.sampling.logit_bias)
    stops = np.array(sorted(shaped.stop_ids) if shaped.bans else [], np.int64)
    padded = np.concatenate((values, np.zeros(len(stops))))
    return np.concatenate((ids, stops)).astype(np.int32), padded.astype(np.float32), len(stops)
