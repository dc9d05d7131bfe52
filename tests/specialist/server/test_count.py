"""`count_tokens` counts the same prompt tokens as Generate, and needs no step of the engine."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octet.client.replica import SpecialistError
from octet.v1 import specialist_pb2 as wire
from tests.specialist.server.harness import ReplicaHarness, ask, generate_request, running_replica, sim

WORDS = st.text(st.characters(codec="ascii", min_codepoint=32), max_size=40)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), WORDS), min_size=1, max_size=5)
PROMPTS = st.one_of(
    TURNS.map(lambda turns: wire.Chat(messages=[wire.Message(role=r, content=c) for r, c in turns])).map(
        lambda chat: wire.GenerateRequest(chat=chat, max_tokens=1)
    ),
    WORDS.filter(bool).map(lambda text: wire.GenerateRequest(text=text, max_tokens=1)),
    st.lists(st.integers(1, 90), min_size=1, max_size=30).map(
        lambda ids: wire.GenerateRequest(tokens=wire.TokenIds(ids=ids), max_tokens=1)
    ),
)


async def test_token_count_equals_that_of_generate() -> None:
    async def compare(served: ReplicaHarness, request: wire.GenerateRequest) -> None:
        received = await ask(served.client, request)
        if received.accepted is None:
            with pytest.raises(SpecialistError) as refused:
                await served.client.count_tokens(request)
            assert received.error is not None and refused.value.code is received.error.code
        else:
            assert await served.client.count_tokens(request) == received.accepted.prompt_tokens

    requests: list[wire.GenerateRequest] = []

    @settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
    @given(PROMPTS)
    def draw(request: wire.GenerateRequest) -> None:
        requests.append(request)

    draw()
    async with running_replica(sim()) as served:
        for request in requests:
            await compare(served, request)


async def test_count_runs_no_step_and_counts_prompts_that_do_not_fit() -> None:
    steps: list[object] = []
    async with running_replica(sim(faults=steps.append)) as served:
        context = (await served.client.describe()).context
        before = len(steps)
        short, long = [await served.client.count_tokens(generate_request("x" * n)) for n in (1, context + 5)]
        assert long == short + context + 4
        assert len(steps) == before
        await ask(served.client, generate_request())
        assert len(steps) > before, "generating an answer must take steps"
        for wrong, field in (
            (generate_request(adapters=["absent"]), "adapters"),
            (generate_request(max_tokens=-1), "max_tokens"),
        ):
            with pytest.raises(SpecialistError) as refused:
                await served.client.count_tokens(wrong)
            assert refused.value.error is not None and refused.value.error.field == field
        await served.client.drain()
        with pytest.raises(SpecialistError) as refused:
            await served.client.count_tokens(generate_request())
        assert refused.value.error is not None
        assert refused.value.error.reason == wire.ERROR_REASON_DRAINING
