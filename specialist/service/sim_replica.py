"""A replica without weights: for tests, for trying out clients, for simulation."""

from kvpool import BlockPool
from octet.clock import Clock
from octet.identity import Lane, digest_of
from octet.v1 import specialist_pb2 as wire
from specialist.calibrated import prices_of
from specialist.engines.sim import CostModel, FaultSource, SimEngine, SimModel
from specialist.guide.grammars import Grammars
from specialist.service.replica import Replica
from specialist.service.scheduling import new_scheduler
from specialist.service.settings import ReplicaSettings
from specialist.service.sim_adapters import SimAdapters
from specialist.service.sim_vocabulary import NUM_SAMPLED, sim_vocabulary
from specialist.service.vocabulary_words import VocabularyWords

CONTEXT = 8192
TOKEN_BYTES = 16 << 10
"""As if it kept what a small real model keeps."""
_MAX_ADAPTERS = 32


def sim_replica(
    settings: ReplicaSettings, clock: Clock, cost: CostModel, *, faults: FaultSource = lambda step: None
) -> Replica:
    """Computes by arithmetic, and takes the time that `cost` says."""
    vocabulary = sim_vocabulary()
    words = VocabularyWords(vocabulary, vocabulary.tokenizer.get_vocab_size())
    lane = Lane(settings.name, digest_of([b"sim", str(NUM_SAMPLED).encode()]).hex())
    context = settings.context or CONTEXT
    size = settings.block_size
    num_blocks = settings.num_blocks or max(1, settings.kv_bytes // (TOKEN_BYTES * size))
    pool = BlockPool(num_blocks + 1, size, prefix_cache=settings.prefix_cache)
    return Replica(
        lane=lane,
        scheduler=new_scheduler(pool, lane, settings, clock, kv_dtype="sim"),
        engine=SimEngine(SimModel(NUM_SAMPLED), cost, clock, num_blocks=num_blocks + 1, block_size=size, faults=faults),
        clock=clock,
        words=words,
        grammars=Grammars(vocabulary, words.vocab_size),
        adapters=SimAdapters(_MAX_ADAPTERS),
        engine_name="sim",
        model=wire.Model(name="sim", architecture="sim", vocab_size=words.vocab_size, context=context),
        kernels=(wire.Kernel(op="all", choice="arithmetic", why="the sim engine has no weights"),),
        prices=prices_of(cost),
        context=min(context, pool.num_slots),
    )
