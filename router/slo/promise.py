"""What the configuration promises of a specialist."""

from dataclasses import dataclass, fields

from octet.config.ensemble import SloTargets

TTFT, ITL, ADMISSION = "ttft", "itl", "admission_to_first_token"
CORRECTNESS = "correctness"


@dataclass(frozen=True, slots=True)
class Promise:
    name: str
    """As the configuration calls it."""
    measure: str
    """The field of `octet.v1.Slo` that it is about."""
    share: float
    """Of the samples that must keep it."""
    target: float
    """Seconds."""

    @property
    def quantile(self) -> str:
        """The field of `octet.v1.Latency`."""
        return self.name.rpartition("_")[2]

    @property
    def key(self) -> tuple[str, float]:
        """What is counted against one target says nothing of another."""
        return self.name, self.target


def promises_of(targets: SloTargets) -> tuple[Promise, ...]:
    found = []
    for field in fields(targets):
        target = getattr(targets, field.name)
        measure, _, percent = field.name.rpartition("_p")
        if target is not None:
            found.append(Promise(field.name, measure, int(percent) / 100, target))
    return tuple(found)
