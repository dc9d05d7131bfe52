"""A structure without a grammar: every third token fits, and which ones depends on the answer so far."""

from collections.abc import Sequence

import numpy as np


class EveryThird:
    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        for index, token in enumerate(guessed):
            if not self.takes(generated, guessed[:index], token):
                return None
        fits = [self.takes(generated, guessed, token) for token in range(-(-self.vocab // 32) * 32)]
        return np.packbits(fits, bitorder="little").tobytes()

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        return (token + sum(generated) + sum(guessed)) % 3 == 0

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        return False
