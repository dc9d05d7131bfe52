"""Runs steps on a real model."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.adapters.slots import DeviceSlots
from specialist.adapters.store import AdapterStore
from specialist.engines.base import Completion
from specialist.engines.native.batch import batch_of
from specialist.engines.native.decoder import Decoder
from specialist.ops.sampling.reference import sample
from specialist.ops.sampling.row import Drawn, SampleRow
from specialist.sampling import TokenLogprobs
from specialist.step import Rollback, Row, RowFault, Step, StepOutcome

Sample = Callable[[Tensor, Sequence[SampleRow]], list[Drawn | RowFault]]
Sampled = tuple[tuple[int, ...] | RowFault, tuple[TokenLogprobs, ...]]


class NativeEngine:
    def __init__(
        self, decoder: Decoder, adapters: AdapterStore, slots: DeviceSlots, draw_tokens: Sample = sample
    ) -> None:
        self.decoder = decoder
        self.adapters = adapters
        self.slots = slots
        self._sample = draw_tokens

    def run(self, step: Step) -> Iterable[Completion]:
        batch = batch_of(step, self.decoder.block_size)
        logits = self.decoder.forward(batch, self._stack(step))
        wanted = [sample_row for row in step.rows for sample_row in _sample_rows(row)]
        drawn = iter(self._sample(logits, wanted) if wanted else ())
        results = [_of_row(row, drawn) for row in step.rows]
        logprobs = tuple(likely for _, likely in results)
        outcome = StepOutcome(tuple(tokens for tokens, _ in results), logprobs if any(logprobs) else ())
        return (Completion(step, outcome),)

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        slots = [slot for table, start, stop in rollbacks for slot in table.slots(start, stop)]
        if slots:
            self.decoder.zero(slots)

    def _stack(self, step: Step) -> list[Adapter]:
        return [self.slots.get(self.adapters.get(digest)) for digest in step.adapters]


def _sample_rows(row: Row) -> Iterator[SampleRow]:
    """One for each token to be sampled; behind the first come the drafts before it."""
    request, known = row.sequence.request, row.sequence.chain.view()
    for index in range(row.num_samples):
        tokens: Sequence[int] = known if index == 0 else (*known, *row.tokens[-row.num_drafts :][:index])
        yield SampleRow(
            request.sampling, request.seed, tokens, len(request.prompt), request.stop_ids, request.guide, index
        )


def _of_row(row: Row, drawn: Iterator[Drawn | RowFault]) -> Sampled:
    """All of a row's samples, or the first fault among them."""
    samples = [next(drawn) for _ in range(row.num_samples)]
    fault = next((one for one in samples if isinstance(one, RowFault)), None)
    if fault is not None:
        return fault, ()
    good = [one for one in samples if isinstance(one, Drawn)]
    return tuple(one.token for one in good), tuple(one.logprobs for one in good if one.logprobs is not None)
