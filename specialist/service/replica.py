"""Everything one served specialist consists of."""

from dataclasses import dataclass

from admission.forecast import Prices
from octet.clock import Clock
from octet.identity import Lane
from octet.v1 import specialist_pb2 as wire
from specialist.engines.base import Engine
from specialist.guide.grammars import Grammars
from specialist.scheduler import Scheduler
from specialist.service.adapters import Adapters
from specialist.service.words import Words


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    lane: Lane
    scheduler: Scheduler
    engine: Engine
    clock: Clock
    """The scheduler's."""
    words: Words
    grammars: Grammars
    adapters: Adapters
    engine_name: str
    model: wire.Model
    kernels: tuple[wire.Kernel, ...]
    """What computes, and why that was chosen."""
    prices: Prices | None
    """What steps cost, where it was calibrated."""
    context: int
    """Tokens, prompt and answer together: what the model can attend over and the pool can hold."""
