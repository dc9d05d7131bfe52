"""Decides live: asks the classifier only where nothing else decides, and goes on without it when it does not answer."""

from typing import Protocol

from router.classify.base import ClassifierUnavailable, Distribution
from router.decide.decision import Decision
from router.decide.policy import Policy
from router.reception.ask import Ask

SILENT = "the classifier did not answer: "
"""Begins the note of a decision that was taken without it."""


class Opinions(Protocol):
    """A classifier as requests meet it: off the event loop, cached, behind its own breaker."""

    @property
    def digest(self) -> str:
        """sha256 of the classifier, hex."""

    def cached(self, text: str, tenant: str = "") -> Distribution | None: ...

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        """No tenant is served sooner because another has asked the same. Raises ClassifierUnavailable, soon."""


class Decider:
    def __init__(self, opinions: Opinions) -> None:
        self._opinions = opinions

    async def decide(self, ask: Ask, policy: Policy) -> Decision:
        """Raises Refusal for names that the policy's ensemble does not have."""
        reading = policy.read(ask)
        if reading.choice is not None:
            return policy.conclude(ask, reading, None, "")
        digest = self._opinions.digest
        try:
            tenant = ask.caller.tenant
            opinion = self._opinions.cached(ask.text, tenant) or await self._opinions.classify(ask.text, tenant)
        except ClassifierUnavailable as unavailable:
            return policy.conclude(ask, reading, None, "", (f"{SILENT}{unavailable}",))
        return policy.conclude(ask, reading, opinion, digest)
