"""What steps cost, by their shape."""

from dataclasses import dataclass

from admission.forecast.shape import Shape


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds, none of them negative."""

    prefill_step: float
    prefill_token: float
    prefill_pair: float
    decode_step: float
    decode_token: float
    decode_pair: float
    switch: float = 0.0
    """For a change of adapters."""

    def seconds(self, shape: Shape) -> float:
        step, token, pair = self.prefill if shape.prefill else self.decode
        return step + token * shape.tokens + pair * shape.pairs + (self.switch if shape.switched else 0.0)

    @property
    def prefill(self) -> tuple[float, float, float]:
        return self.prefill_step, self.prefill_token, self.prefill_pair

    @property
    def decode(self) -> tuple[float, float, float]:
        return self.decode_step, self.decode_token, self.decode_pair
