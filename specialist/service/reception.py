"""From a checked request to a job: words become tokens, names become digests, durations become times."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TypeVar
from uuid import uuid4

from admission.forecast import Booking
from octet.clock import Clock
from octet.identity import Lane
from octet.rpc.refusal import invalid, no_tools, queue_full
from octet.telemetry import bounds
from octet.telemetry.histogram import Histogram
from specialist.account import booking_of
from specialist.front import SHADOW_PRIORITY
from specialist.guide.guide import Guide
from specialist.hits import peek_hits
from specialist.request import Request
from specialist.scheduler import Scheduler
from specialist.service.adapters import Adapters, lease
from specialist.service.answer import Answer
from specialist.service.ask import Ask, ChatPrompt, TokenPrompt
from specialist.service.forms import Forms
from specialist.service.job import Job, Sink
from specialist.service.validate import Validator
from specialist.service.words import Words
from specialist.text.errors import NoTools, TemplateRefused
from specialist.tools.calling import Calling
from specialist.tools.tool import Offer

_GivenT = TypeVar("_GivenT")
_ResultT = TypeVar("_ResultT")
_FOLLOWS = 0.2
"""Of the way from what was usual to what was seen last."""
_LEAST_SECONDS = 0.05
_SPREAD, _SPREAD_PARTS = 0.25, 1024


class Reception:
    """Tokenising happens on threads of its own, so that no prompt holds up anybody's tokens; but for a short text,
    which takes less time than the way to a thread and back."""

    NUM_THREADS = 2
    SHORT = 1000
    """Characters."""

    def __init__(
        self,
        lane: Lane,
        scheduler: Scheduler,
        words: Words,
        forms: Forms,
        adapters: Adapters,
        validator: Validator,
        clock: Clock,
        *,
        max_receiving: int,
        draw_seed: Callable[[], int],
    ) -> None:
        self._lane = lane
        self._scheduler = scheduler
        self._words = words
        self._forms = forms
        self._adapters = adapters
        self._validator = validator
        self._clock = clock
        self._max_receiving = max_receiving
        self._draw_seed = draw_seed
        self._num_receiving = 0
        self.seconds = Histogram(bounds.TOKENIZE_SECONDS)
        """That tokenising took on a thread, with the time in line."""
        self._usual_seconds: float | None = None
        """That one takes on a thread, with its time in line; None until one has."""
        self._names = count(1)
        self._threads = ThreadPoolExecutor(self.NUM_THREADS, thread_name_prefix="tokenize")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._forms.close()

    @property
    def num_receiving(self) -> int:
        return self._num_receiving

    @property
    def max_receiving(self) -> int:
        return self._max_receiving

    def new_id(self) -> str:
        """The replica's own name for a request: callers' names may be the same."""
        return str(next(self._names))

    async def receive(self, ask: Ask, request_id: str, sink: Sink, seconds_left: float | None) -> Job:
        """Raises Refusal. `seconds_left` is what the call itself still has."""
        arrival = self._clock.now()
        calling = await self._calling(ask)
        prompt = await self._prompt(ask)
        self._validator.prompt_within(len(prompt), ask.context)
        guide = await self._forms.guide(ask, calling)
        digests, release = lease(self._adapters, ask.adapters)
        try:
            request = self._request(ask, request_id, prompt, digests, arrival, seconds_left, guide)
            answer = self._answer(ask, calling)
            return Job(request, ask.request_id or uuid4().hex, answer, sink, release, self._booking(ask, request))
        except BaseException:
            release()
            raise

    async def count(self, ask: Ask) -> int:
        """Tokens of its prompt, whether or not they fit. Raises Refusal."""
        await self._calling(ask)
        _, release = lease(self._adapters, ask.adapters)
        release()
        return len(await self._prompt(ask))

    def _answer(self, ask: Ask, calling: Calling | None) -> Answer:
        least = ask.sampling.min_tokens
        if calling is None:
            return Answer(self._words.detokenizer(), ask.stop, least)
        return Answer(self._words.detokenizer(calling.spoken()), ask.stop, least, calling.reader(_call_id))

    def _request(
        self,
        ask: Ask,
        request_id: str,
        prompt: tuple[int, ...],
        digests: tuple[str, ...],
        arrival: float,
        seconds_left: float | None,
        guide: Guide | None,
    ) -> Request:
        return Request(
            request_id=request_id,
            lane=replace(self._lane, adapters=digests),
            prompt=prompt,
            max_tokens=min(ask.max_tokens, ask.context - len(prompt)),
            priority=SHADOW_PRIORITY if ask.shadow else ask.priority,
            arrival=arrival,
            deadline=_earlier(arrival, ask.timeout, seconds_left),
            first_deadline=_earlier(arrival, ask.first_timeout),
            stop_ids=frozenset() if ask.ignore_eos else self._words.stop_ids,
            sampling=ask.sampling,
            seed=self._seed(ask),
            tenant_salt=ask.tenant_salt,
            session_key=ask.session_key,
            guide=guide,
        )

    def _booking(self, ask: Ask, request: Request) -> Booking:
        """An answer without anything to end it early is as long as it may be."""
        hits = peek_hits(self._scheduler, request)
        caller = f"{ask.tenant_salt.hex()}/{ask.request_id}" if ask.request_id else ""
        exact = ask.ignore_eos and not ask.stop and request.guide is None
        return booking_of(request, shadow=ask.shadow, exact=exact, hits=hits, caller=caller)

    def _seed(self, ask: Ask) -> int:
        if ask.seed is not None:
            return ask.seed
        return self._draw_seed() if ask.sampling.temperature > 0 else 0

    async def _prompt(self, ask: Ask) -> tuple[int, ...]:
        if isinstance(ask.prompt, TokenPrompt):
            return ask.prompt.ids
        if isinstance(ask.prompt, str) and len(ask.prompt) <= self.SHORT:
            return self._tokens_of(ask.prompt)
        return await self._tokenize(ask.prompt)

    async def _calling(self, ask: Ask) -> Calling | None:
        """None where nothing may be called. Raises Refusal where the model's template carries no calls."""
        if not (isinstance(ask.prompt, ChatPrompt) and ask.prompt.speaks_of_tools):
            return None
        calling = await self._aside(self._calling_of, ask.prompt.offer)
        return calling if ask.prompt.offer.is_open else None

    async def _tokenize(self, prompt: str | ChatPrompt) -> tuple[int, ...]:
        return await self._aside(self._tokens_of, prompt)

    async def _aside(self, work: Callable[[_GivenT], _ResultT], given: _GivenT) -> _ResultT:
        """On a thread of its own."""
        if self._num_receiving >= self._max_receiving:
            raise queue_full("being tokenised", self._max_receiving, self._seconds_to_a_place())
        self._num_receiving += 1
        begun = self._clock.now()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, given)
        finally:
            self._num_receiving -= 1
            self._took(self._clock.now() - begun)

    def _took(self, seconds: float) -> None:
        self.seconds.add(seconds)
        usual = seconds if self._usual_seconds is None else self._usual_seconds
        self._usual_seconds = usual + _FOLLOWS * (seconds - usual)

    def _seconds_to_a_place(self) -> float | None:
        """They have all been waiting for some time: as long as one usually takes is enough. Those who are refused
        together come back apart."""
        if self._usual_seconds is None:
            return None
        apart = self._draw_seed() % _SPREAD_PARTS / _SPREAD_PARTS
        return max(self._usual_seconds, _LEAST_SECONDS) * (1 + _SPREAD * apart)

    def _calling_of(self, offer: Offer) -> Calling:
        try:
            return self._words.calling(offer)
        except NoTools as refused:
            raise no_tools(refused.why) from None
        except TemplateRefused as refused:
            raise invalid("chat", "messages that the model's chat template accepts", refused.why) from None

    def _tokens_of(self, prompt: str | ChatPrompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            try:
                return self._words.prompt(prompt)
            except ValueError as error:
                raise invalid("text", "text that this model's vocabulary can write", str(error)) from None
        try:
            return self._words.render(prompt.messages, prompt.shown)
        except TemplateRefused as refused:
            raise invalid("chat", "messages that the model's chat template accepts", refused.why) from None
        except ValueError as error:
            raise invalid("chat", "text that this model's vocabulary can write", str(error)) from None


def _call_id() -> str:
    """A conversation holds those of several answers."""
    return f"call_{uuid4().hex}"


def _earlier(now: float, *seconds: float | None) -> float | None:
    return min((now + each for each in seconds if each is not None), default=None)
