"""Prepares a validated request for the scheduler: tokens, grammar, adapter digests and deadlines."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random
from threading import BoundedSemaphore
from typing import TypeVar
from uuid import uuid4

from admission.forecast.bookings import Booking
from octet.rpc.checks import InvalidValue
from octet.rpc.refusal import invalid_field, queue_full, tools_unsupported
from octet.telemetry import distributions
from octet.telemetry.distributions import Histogram
from specialist.adapters.catalog import lease_adapters
from specialist.scheduling.loop import SHADOW_PRIORITY, make_booking, peek_prefix_hits
from specialist.scheduling.sequence import Request
from specialist.server.replica import AssembledReplica
from specialist.server.served_request import AnswerText, PromptEmbedding, ServedRequest
from specialist.server.settings import ServiceSettings
from specialist.server.validation import GenerateValidator
from specialist.text.prompt import ChatPrompt, Structure, TemplateRefused, TokenPrompt, ToolOffer, ToolsUnsupported
from specialist.text.structured_output import Grammar, GrammarCache, Guide
from specialist.text.tool_call_reader import ToolCalling

_GivenT = TypeVar("_GivenT")
_ResultT = TypeVar("_ResultT")
_SEED_BITS = 63
_SMOOTHING = 0.2  # the weight of the newest measurement
_MIN_RETRY_SECONDS = 0.05
_TEMPLATE_LIMIT = "a conversation that the model's chat template accepts"
_RETRY_SPREAD, _RETRY_SPREAD_PARTS = 0.25, 1024


class RequestPreparer:
    """Prepares validated requests. It tokenises on its own threads, so that a long prompt does not delay other
    requests' tokens. A short text is tokenised in place, which is faster than a thread switch."""

    NUM_THREADS = 2
    SHORT = 1000  # characters

    def __init__(
        self, replica: AssembledReplica, settings: ServiceSettings, validator: GenerateValidator, random: Random
    ) -> None:
        self._replica = replica
        self._codec = replica.codec
        self._clock = replica.clock
        self._structures = StructureCompiler(replica.grammars)
        self.validator = validator
        self.count_validator = GenerateValidator(replace(validator.limits, counts_only=True))
        self.max_tokenizing = replica.scheduler.config.max_running + settings.max_waiting
        self.num_tokenizing = 0
        self._random = random
        self.tokenize_seconds = Histogram(distributions.TOKENIZE_SECONDS_BOUNDS)  # seconds in the queue and on a thread
        self._usual_seconds: float | None = None  # a moving average of these seconds
        self._ids = count(1)
        self._threads = ThreadPoolExecutor(self.NUM_THREADS, thread_name_prefix="tokenize")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._structures.close()

    async def prepare(self, served: ServedRequest, seconds_left: float | None) -> None:
        """Fill in the prepared fields of `served`. `seconds_left` is the time to the gRPC deadline. Raises Refusal."""
        arrival = self._clock.now()
        calling = await self._tool_calling(served)
        prompt = await self._tokenize(served)
        self.validator.check_prompt_fits(len(prompt), served.context)
        guide = await self._structures.guide(served, calling)
        digests, served.release = lease_adapters(self._replica.adapters, served.adapters)
        try:
            if served.embed:
                served.embedding = PromptEmbedding(self._replica.model.hidden_size)
            served.request = self._request(served, prompt, digests, arrival, seconds_left, guide)
            served.public_id = served.caller_id or uuid4().hex
            served.answer = self._answer(served, calling)
            served.booking = self._booking(served)
        except BaseException:
            served.release()
            raise

    async def count_tokens(self, served: ServedRequest) -> int:
        """Return the number of prompt tokens, even for a prompt that is too long. Raises Refusal for other mistakes."""
        await self._tool_calling(served)
        _, release = lease_adapters(self._replica.adapters, served.adapters)
        release()
        return len(await self._tokenize(served))

    def _answer(self, served: ServedRequest, calling: ToolCalling | None) -> AnswerText:
        min_tokens = served.sampling.min_tokens
        if calling is None:
            return AnswerText(self._codec.detokenizer(), served.stop, min_tokens)
        detokenizer = self._codec.detokenizer(calling.visible_markers())
        # A conversation contains the calls of several answers, so their ids are random.
        return AnswerText(detokenizer, served.stop, min_tokens, calling.reader(lambda: f"call_{uuid4().hex}"))

    def _request(
        self,
        served: ServedRequest,
        prompt: tuple[int, ...],
        digests: tuple[str, ...],
        arrival: float,
        seconds_left: float | None,
        guide: Guide | None,
    ) -> Request:
        seed = served.seed
        if seed is None:
            seed = self._draw_seed() if served.sampling.temperature > 0 else 0
        return Request(
            request_id=str(next(self._ids)),
            lane=replace(self._replica.lane, adapters=digests),
            prompt=prompt,
            max_tokens=min(served.max_tokens, served.context - len(prompt)),
            priority=SHADOW_PRIORITY if served.shadow else served.priority,
            arrival=arrival,
            deadline=_earliest(arrival, served.timeout, seconds_left),
            first_deadline=_earliest(arrival, served.first_timeout),
            stop_ids=frozenset() if served.ignore_eos else self._codec.stop_ids,
            sampling=served.sampling,
            seed=seed,
            tenant_salt=served.tenant_salt,
            session_key=served.session_key,
            draft_window=min(served.draft_window, self._replica.draft_window),
            guide=guide,
            hidden_sum=served.embedding,
        )

    def _booking(self, served: ServedRequest) -> Booking:
        """Return the booking. An answer that nothing can end early has exactly its maximum length."""
        request = served.request
        hits = peek_prefix_hits(self._replica.scheduler, request)
        caller = f"{served.tenant_salt.hex()}/{served.caller_id}" if served.caller_id else ""
        exact = served.embed or (served.ignore_eos and not served.stop and request.guide is None)
        mixes = self._replica.scheduler.config.mixes_adapters
        booking = make_booking(
            request, shadow=served.shadow, exact=exact, hits=hits, caller=caller, mixes_adapters=mixes
        )
        return replace(booking, owner=served.place_for, waits=served.waits, place=served.place)

    async def _tokenize(self, served: ServedRequest) -> tuple[int, ...]:
        prompt = served.prompt
        if isinstance(prompt, TokenPrompt):
            return prompt.ids
        if isinstance(prompt, str) and len(prompt) <= self.SHORT:
            return self._encode(prompt)
        return await self._on_thread(self._encode, prompt)

    async def _tool_calling(self, served: ServedRequest) -> ToolCalling | None:
        """Return how the model calls tools; None if it may not. Raises Refusal if it does not support tools."""
        prompt = served.prompt
        if not (isinstance(prompt, ChatPrompt) and prompt.needs_tool_template):
            return None
        calling = await self._on_thread(self._create_tool_calling, prompt.offer)
        return replace(calling, answer=served.structure) if prompt.offer.is_open else None

    async def _on_thread(self, work: Callable[[_GivenT], _ResultT], given: _GivenT) -> _ResultT:
        if self.num_tokenizing >= self.max_tokenizing:
            raise queue_full("being tokenised", self.max_tokenizing, self._retry_after())
        self.num_tokenizing += 1
        started = self._clock.now()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, given)
        finally:
            self.num_tokenizing -= 1
            seconds = self._clock.now() - started
            self.tokenize_seconds.add(seconds)
            usual = seconds if self._usual_seconds is None else self._usual_seconds
            self._usual_seconds = usual + _SMOOTHING * (seconds - usual)

    def _retry_after(self) -> float | None:
        """Return how long a refused caller should wait: the usual time to tokenise a request, or None if it is unknown.
        The time is randomised, so that callers that are refused together do not retry together."""
        if self._usual_seconds is None:
            return None
        share = self._draw_seed() % _RETRY_SPREAD_PARTS / _RETRY_SPREAD_PARTS
        return max(self._usual_seconds, _MIN_RETRY_SECONDS) * (1 + _RETRY_SPREAD * share)

    def _draw_seed(self) -> int:
        return self._random.getrandbits(_SEED_BITS)

    def _create_tool_calling(self, offer: ToolOffer) -> ToolCalling:
        try:
            return self._codec.tool_calling(offer)
        except ToolsUnsupported as refused:
            raise tools_unsupported(refused.why) from None
        except TemplateRefused as refused:
            raise invalid_field("chat", _TEMPLATE_LIMIT, f"an error: {refused.why}") from None

    def _encode(self, prompt: str | ChatPrompt) -> tuple[int, ...]:
        field = "text" if isinstance(prompt, str) else "chat"
        try:
            if isinstance(prompt, str):
                return self._codec.encode(prompt)
            return self._codec.render(prompt.messages, prompt.visible_tools)
        except TemplateRefused as refused:
            raise invalid_field(field, _TEMPLATE_LIMIT, f"an error: {refused.why}") from None
        except ValueError as error:
            raise invalid_field(field, "encodable with this model's vocabulary", f"an error: {error}") from None


def _earliest(now: float, *seconds: float | None) -> float | None:
    return min((now + each for each in seconds if each is not None), default=None)


class StructureCompiler:
    """Compiles grammars on its own thread, so that neither generation nor tokenisation waits for them."""

    def __init__(self, grammars: GrammarCache) -> None:
        self._grammars = grammars
        self._slots = BoundedSemaphore(grammars.limits.compiling)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def guide(self, served: ServedRequest, calling: ToolCalling | None = None) -> Guide | None:
        """Return a guide for the answer; None if it needs no structure. Raises Refusal if compiling fails."""
        structure = served.structure
        if calling is not None and structure is not None and self._grammars.get(structure) is None:
            await self._compile(structure)  # so that a refusal names the right field
        try:
            structure = structure if calling is None else calling.structure(self._grammars.limits.depth)
        except InvalidValue as refused:
            raise invalid_field("tools", refused.limit, refused.value) from None
        if structure is None:
            return None
        grammar = self._grammars.get(structure) or await self._compile(structure)
        return Guide(grammar, may_stop=not served.ignore_eos)

    async def _compile(self, structure: Structure) -> Grammar:
        """Compile on the thread. The time limit begins when the thread starts on this grammar. The slot in `_slots` is
        freed when the thread finishes, even if the caller no longer waits."""
        limits = self._grammars.limits
        full = queue_full("having their structure compiled", limits.compiling, None)
        if not self._slots.acquire(blocking=False):
            raise full
        started = asyncio.Event()
        result = asyncio.wrap_future(self._submit(structure, started))
        try:
            try:
                await asyncio.wait_for(started.wait(), limits.seconds * limits.compiling)
            except TimeoutError:
                raise full from None
            return await asyncio.wait_for(result, limits.seconds)
        except InvalidValue as refused:
            raise invalid_field(_field(structure), refused.limit, refused.value) from None
        except TimeoutError:
            limit = f"compilable within {limits.seconds:g} s"
            raise invalid_field(_field(structure), limit, "a longer compile time") from None
        finally:
            result.cancel()

    def _submit(self, structure: Structure, started: asyncio.Event) -> Future[Grammar]:
        loop = asyncio.get_running_loop()

        def set_started() -> None:
            with suppress(RuntimeError):  # the loop is closed, and with it the caller
                loop.call_soon_threadsafe(started.set)

        def compile_grammar() -> Grammar:
            set_started()
            return self._grammars.compile(structure)

        def free_slot(_: Future[Grammar]) -> None:
            self._slots.release()
            set_started()

        future = self._thread.submit(compile_grammar)
        future.add_done_callback(free_slot)
        return future


def _field(structure: Structure) -> str:
    return "tools" if structure.kind == "calls" else f"structure.{structure.kind}"
