"""What a step costs, by its shape."""

from dataclasses import dataclass

from specialist.step import Step


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds. The defaults are the rough shape of a 135M-parameter model on two CPU cores."""

    prefill_step: float = 2e-3
    prefill_token: float = 3e-3
    prefill_pair: float = 1e-7
    """For each pair of a prompt token and a token it looks back at."""
    decode_step: float = 4e-3
    decode_token: float = 2.5e-3
    decode_pair: float = 1e-7
    adapter_switch: float = 5e-3
    preemption: float = 1e-3

    def seconds(self, step: Step, *, switched: bool) -> float:
        pairs = sum(len(row.tokens) * row.stop for row in step.rows)
        if step.mode == "prefill":
            seconds = self.prefill_step + self.prefill_token * step.num_tokens + self.prefill_pair * pairs
        else:
            seconds = self.decode_step + self.decode_token * step.num_tokens + self.decode_pair * pairs
        return seconds + self.adapter_switch * switched + self.preemption * step.num_preempted
