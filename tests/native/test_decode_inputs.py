"""A launched step finds its rows on the device, whatever steps were launched before."""

from array import array
from random import Random

import numpy as np
import pytest
import torch

from specialist.engines.native.decode_inputs import DecodeInputs
from specialist.engines.native.gpu_engine import DecodeRow, DecodeRows

MOST_BLOCKS, SIZE, BUCKETS = 12, 4, (1, 2, 4, 8)


class Held:
    """A sequence whose table grows as it does in the pool. Some tables are longer than needed."""

    def __init__(self, rng: Random) -> None:
        self.position = rng.randrange(SIZE * MOST_BLOCKS // 2)
        self.temperature = rng.choice([0.0, 0.7])
        self._rng = rng
        self.blocks = array("i")
        self.grow()

    def grow(self) -> None:
        needed = self.position // SIZE + 1
        while len(self.blocks) < needed or (len(self.blocks) < MOST_BLOCKS and self._rng.random() < 0.1):
            self.blocks.append(self._rng.randrange(1, 1000))

    def row(self) -> DecodeRow:
        blocks = self.blocks
        if self._rng.random() < 0.1:  # the last block is a spare one for this step only
            blocks = blocks[: self.position // SIZE]
            blocks.append(self._rng.randrange(1000, 2000))
        token, source = self._rng.randrange(100), self._rng.randrange(-1, 8)
        return DecodeRow(token, source, self.position, blocks, self.temperature, self._rng.random())


@pytest.mark.parametrize("seed", range(40))
def test_the_device_has_every_row_of_the_newest_step(seed: int) -> None:
    rng = Random(seed)
    inputs = DecodeInputs(MOST_BLOCKS, torch.device("cpu"))
    live = [Held(rng) for _ in range(rng.randrange(1, 9))]
    sent: list[DecodeRows] = []
    for _ in range(40):
        rows = DecodeRows.of(one.row() for one in live)
        sent.append(take_from(rng.choice(sent[-3:]), rows, rng) if sent else rows)
        bucket = rng.choice([each for each in BUCKETS if each >= len(live)])
        inputs.send(sent[-1], bucket, SIZE)
        check(inputs, [DecodeRow(*row) for row in zip(*sent[-1], strict=True)], bucket)
        for one in live:
            one.position += rng.choice([1, 1, 1, 0])
            one.grow()
        live = [one for one in live if one.position < SIZE * (MOST_BLOCKS - 1) and rng.random() > 0.03]
        if not live or (len(live) < BUCKETS[-1] and rng.random() < 0.2):
            live.insert(rng.randrange(len(live) + 1), Held(rng))
        if rng.random() < 0.1:
            rng.shuffle(live)


def take_from(earlier: DecodeRows, rows: DecodeRows, rng: Random) -> DecodeRows:
    """Replace some columns, or all, by those of an earlier step with as many rows."""
    if earlier.num_rows != rows.num_rows or rng.random() < 0.2:
        return rows
    if rng.random() < 0.3:
        return earlier
    kept = [name for name in ("tokens", "sources", "temperatures", "uniforms") if rng.random() < 0.5]
    kept += ["positions", "blocks"] if rng.random() < 0.3 else []
    return rows._replace(**{name: getattr(earlier, name) for name in kept})


def check(inputs: DecodeInputs, rows: list[DecodeRow], bucket: int) -> None:
    padding = [DecodeRow(0, -1, 0, [0])] * (bucket - len(rows))
    width = int(inputs.widths[0])
    assert width == max(row.position // SIZE + 1 for row in rows)
    tables = inputs.tables[: bucket * width].view(bucket, width).tolist()
    for index, row in enumerate([*rows, *padding]):
        assert int(inputs.tokens[index]) == row.token
        assert int(inputs.sources[index]) == row.source
        assert int(inputs.positions[index]) == row.position
        assert float(inputs.temperatures[index]) == np.float32(row.temperature)
        assert float(inputs.uniforms[index]) == np.float32(row.uniform)
        used = row.position // SIZE + 1
        assert tables[index][:used] == list(row.blocks[:used])
