"""One reception for every front door: what passes is in range, has an id, a deadline and a trace."""

from collections.abc import Callable
from math import isfinite

from octet.clock import Clock
from octet.rpc.refusal import invalid, past_deadline
from octet.v1 import inference_pb2 as wire
from router.reception.ask import Ask, Turn
from router.reception.caller import ANYONE, Caller
from router.reception.conversation import USER, routing_text
from router.reception.fill import filled
from router.reception.limits import Limits
from router.reception.session import Session, session_of
from router.reception.trace import Tracer
from router.reception.validate import Validator

DEFAULT_PRIORITY = 5


class Reception:
    def __init__(
        self,
        clock: Clock,
        new_id: Callable[[], str],
        tracer: Tracer,
        *,
        default_timeout: float,
        limits: Limits | None = None,
    ) -> None:
        """`default_timeout` is in seconds, for callers that name no deadline."""
        self.limits = limits or Limits()
        self._clock = clock
        self._new_id = new_id
        self._tracer = tracer
        self._default_timeout = default_timeout
        self._check = Validator(self.limits)

    def receive(
        self,
        message: wire.InferRequest,
        seconds_left: float | None,
        traceparent: str | None,
        tracestate: str = "",
        caller: Caller = ANYONE,
    ) -> Ask:
        """Raises Refusal. `seconds_left` is what the call itself still has, as its transport tells it."""
        arrival = self._clock.now()
        check = self._check
        num_bytes = check.whole(message)
        turns = self._turns(message)
        force = check.names("force_specialists", message.force_specialists)
        max_tokens, min_tokens = self._lengths(message)
        priority = check.number(message, "priority")
        first = check.number(message, "first_token_timeout_ms")
        salt = caller.salt(check.size("tenant_salt", message.tenant_salt))
        tools, tool_choice = check.tools(message)
        ask = Ask(
            request_id=check.identifier("request_id", message.request_id) or self._new_id(),
            turns=turns,
            text=routing_text(turns),
            arrival=arrival,
            deadline=arrival + self._seconds(check.number(message, "timeout_ms"), seconds_left),
            first_deadline=None if first is None else arrival + first / 1000,
            trace=self._tracer.receive(traceparent, tracestate),
            num_bytes=num_bytes,
            intent=message.intent and check.name("intent", message.intent),
            force=force,
            exclude=self._excluded(message, force),
            adapters=check.names("adapters", message.adapters),
            max_experts=check.number(message, "max_experts"),
            sampling=check.sampling(message),
            seed=check.number(message, "seed"),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=check.stops(message.stop),
            ignore_eos=message.ignore_eos,
            context_size=check.number(message, "context_size"),
            priority=DEFAULT_PRIORITY if priority is None else priority,
            session=self._session(message, salt),
            tenant_salt=salt,
            structure=check.form(message),
            validate=message.validate,
            caller=caller,
            tools=tools,
            tool_choice=tool_choice,
        )
        if ask.structure is not None and ask.may_call:
            raise invalid("structure", "unset where tools may be called", "both")
        return ask

    def _turns(self, message: wire.InferRequest) -> tuple[Turn, ...]:
        prompt = self._check.text("prompt", message.prompt)
        template = self._check.text("template", message.template)
        body = self._check.text("body", message.body)
        if not message.messages:
            if not prompt or prompt.isspace():
                raise invalid("prompt", "text, unless messages are given", "nothing but blanks" if prompt else "''")
            return (Turn(USER, filled(template, prompt, body, self.limits.conversation_bytes)),)
        for field in ("prompt", "template", "body"):
            if getattr(message, field):
                raise invalid(field, "unset where messages are given", "both of them")
        self._check.messages(message.messages)
        if not any(turn.role == USER and turn.content.strip() for turn in message.messages):
            raise invalid(
                "messages", "a conversation in which a user says something", f"{len(message.messages)} others"
            )
        return tuple(
            Turn(turn.role, turn.content, tuple(turn.tool_calls), turn.tool_call_id) for turn in message.messages
        )

    def _session(self, message: wire.InferRequest, salt: bytes) -> Session:
        check = self._check
        return session_of(
            check.identifier("session_id", message.session_id),
            check.metadata(message.metadata),
            check.identifier("user_id", message.user_id),
            salt,
        )

    def _excluded(self, message: wire.InferRequest, force: tuple[str, ...]) -> tuple[str, ...]:
        exclude = self._check.names("exclude_specialists", message.exclude_specialists)
        for name in force:
            if name in exclude:
                raise invalid("exclude_specialists", "none of force_specialists", name)
        return exclude

    def _lengths(self, message: wire.InferRequest) -> tuple[int | None, int | None]:
        longest = self._check.number(message, "max_tokens")
        least = self._check.number(message, "min_tokens")
        if longest is not None and least is not None and least > longest:
            raise invalid("min_tokens", f"at most max_tokens ({longest})", str(least))
        return longest, least

    def _seconds(self, timeout_ms: int | None, seconds_left: float | None) -> float:
        """The earlier of what the request and its call say. A call without an end says nothing; one that would end
        in years ends with the longest timeout."""
        named = [] if timeout_ms is None else [timeout_ms / 1000]
        if seconds_left is not None and isfinite(seconds_left):
            named.append(min(seconds_left, self.limits.timeout_ms / 1000))
        seconds = min(named, default=self._default_timeout)
        if seconds <= 0:
            raise past_deadline()
        return seconds
