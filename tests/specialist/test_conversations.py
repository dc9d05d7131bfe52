"""The reason for a cache miss is given only to the caller that had computed the prefix. The record of conversations has
bounded memory."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvpool import BlockPool, TokenChain
from specialist.scheduling.step import ConversationMissReason, Conversations

SIZE = 2
OWN, OTHER = b"own root", b"other root"
TALK = tuple(range(12))


def chain(tokens: tuple[int, ...] = TALK, root: bytes = OWN) -> TokenChain:
    return TokenChain(root, SIZE, tokens)


def computed(pool: BlockPool, talk: TokenChain) -> None:
    """Leave the blocks of these tokens in the pool's cache, like a request that has ended."""
    table = pool.apply(pool.admit(talk, len(talk)))
    pool.register(table, talk, len(talk))
    pool.release(table)


def evict_all(pool: BlockPool) -> None:
    table = pool.apply(pool.admit(chain((), b"nobody"), pool.num_slots))
    pool.release(table)


def why(
    known: Conversations, pool: BlockPool, talk: TokenChain, key: bytes = b"k", salt: bytes = b""
) -> ConversationMissReason:
    return known.why_missed(salt, key, talk, pool.admit(talk, len(talk)))


def remembering(pool: BlockPool, key: bytes = b"k", salt: bytes = b"") -> Conversations:
    known = Conversations(most_blocks=100)
    computed(pool, chain())
    known.learn(salt, key, chain(), len(TALK) // SIZE)
    return known


def test_a_continuation_misses_nothing_that_it_could_have() -> None:
    pool = BlockPool(32, SIZE)
    known = remembering(pool)
    assert why(known, pool, chain((*TALK, 7, 7, 7, 7, 7))) == ""
    assert why(known, pool, chain(TALK[:5])) == "", "the caller took back a turn"


def test_every_miss_reason_is_distinguished() -> None:
    pool = BlockPool(32, SIZE)
    known = remembering(pool)
    longer = (*TALK, 7, 7, 7)
    assert why(known, pool, chain(longer, OTHER)) == "other_adapter"
    assert why(known, pool, chain((*TALK[:5], 9, 9, 9, 9, 9))) == "diverged"
    assert why(known, pool, chain(longer), key=b"another") == "first_time"
    assert why(known, pool, chain(longer), key=b"") == "no_session"
    behind_a_state = pool.admit(chain(longer), len(longer), resumable=lambda _: False)
    assert known.why_missed(b"", b"k", chain(longer), behind_a_state) == "no_boundary"
    evict_all(pool)
    assert why(known, pool, chain(longer)) == "evicted"
    assert why(known, BlockPool(32, SIZE, prefix_cache=False), chain(longer)) == "cache_off"


def test_an_answer_cut_early_keeps_earlier_turns() -> None:
    pool = BlockPool(32, SIZE)
    known = remembering(pool)
    known.learn(b"", b"k", chain((*TALK[:4], 9, 9)), 2)
    evict_all(pool)
    computed(pool, chain(TALK[:4]))
    assert why(known, pool, chain((*TALK, 7))) == "evicted"


@given(st.booleans(), st.booleans(), st.sampled_from([b"k", b"another"]))
def test_another_tenant_learns_nothing_of_a_conversation(asked: bool, evicted: bool, key: bytes) -> None:
    """A caller with another salt or session key gets the same reason whether the conversation is cached, evicted, or
    never existed."""
    pool = BlockPool(32, SIZE)
    known = remembering(pool, b"k", b"theirs") if asked else Conversations(most_blocks=100)
    if evicted:
        evict_all(pool)
    mine = chain((*TALK, 7, 7), b"root with my salt")
    assert why(known, pool, mine, key, b"mine") == "first_time"
    if evicted:
        assert why(known, pool, chain((*TALK, 7, 7)), b"another", b"theirs") == "first_time"


class ConversationMachine(RuleBasedStateMachine):
    MOST, MOST_BLOCKS = 3, 10

    def __init__(self) -> None:
        super().__init__()
        self.known = Conversations(self.MOST_BLOCKS, self.MOST)

    @rule(
        key=st.sampled_from([b"", b"a", b"b", b"c", b"d"]),
        salt=st.sampled_from([b"", b"s"]),
        tokens=st.lists(st.integers(0, 1), max_size=30),
        root=st.sampled_from([OWN, OTHER]),
    )
    def learn(self, key: bytes, salt: bytes, tokens: list[int], root: bytes) -> None:
        talk, num_blocks = chain(tuple(tokens), root), len(tokens) // SIZE
        self.known.learn(salt, key, talk, num_blocks)
        if key and 0 < num_blocks <= self.MOST_BLOCKS:
            pool = BlockPool(32, SIZE)
            again = chain((*tokens[: num_blocks * SIZE], 5), root)
            assert why(self.known, pool, again, key, salt) == "evicted", "the newest conversation must be kept"

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.known) <= self.MOST
        assert 0 <= self.known.num_blocks <= self.MOST_BLOCKS
        assert bool(len(self.known)) == bool(self.known.num_blocks)


TestBounded = ConversationMachine.TestCase
