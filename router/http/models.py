"""What callers name as `model`: `octet` routes, `octet/SPECIALIST` and `octet/SPECIALIST:ADAPTER` pin."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from octet.config.ensemble import Ensemble
from router.control.load_names import is_made_here
from router.http.fault import unknown_model
from router.replicas.replica import Replica

ROUTED = "octet"
_PINNED = re.compile(r"octet/([a-z0-9._-]{1,64})(?::([a-z0-9._-]{1,64}))?")


@dataclass(frozen=True, slots=True)
class Model:
    asked: str
    specialist: str = ""
    """Empty: the router decides."""
    adapter: str = ""

    def answered_by(self, specialist: str) -> str:
        """The model that a response names."""
        return self.asked if self.specialist else f"{ROUTED}/{specialist}"


def model_of(asked: str) -> Model:
    """Raises Fault for what cannot be the name of one."""
    if asked == ROUTED:
        return Model(asked)
    found = _PINNED.fullmatch(asked)
    if found is None:
        raise unknown_model(asked[:100])
    return Model(asked, found[1], found[2] or "")


def model_ids(ensemble: Ensemble, replicas: Iterable[Replica]) -> Iterator[str]:
    """Adapters that are configured or that some replica has; not those that lanes have loaded for themselves."""
    adapters = {each.name: set(each.adapters) for each in ensemble.specialists}
    for replica in replicas:
        if replica.load is not None:
            adapters[replica.specialist] |= {name for name in replica.load.adapters if not is_made_here(name)}
    yield ROUTED
    for specialist, names in adapters.items():
        yield f"{ROUTED}/{specialist}"
        yield from (f"{ROUTED}/{specialist}:{name}" for name in sorted(names))
