"""The native engine over a tiny random model, in PyTorch and in C++, with two random adapters."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from octet.clock import Clock
from octet.identity import digest_parts
from specialist.engines.native.engine import NativeEngine
from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.engines.native.settings import KernelName
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, StateSpace, expected_shapes
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from tests.adapters.peft_files import random_tensors, write
from tests.conformance.shape import EngineUnderTest, Shape, reshaped
from tests.native.fused import cache_views

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=sim_vocabulary().tokenizer.get_vocab_size(),
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    rope=Rope(),
    context=512,
    tied_head=True,
)


HYBRID = replace(
    MODEL,
    architecture="bamba",
    num_layers=3,
    parts=(("ssm", "mlp"), ("attention", "mlp"), ("ssm", "mlp")),
    ssm=StateSpace(num_heads=4, head_dim=16, state_size=8, num_groups=2, width=4),
    rotary_dim=8,
)


@cache
def checkpoint(config: ModelConfig) -> Checkpoint:
    torch.manual_seed(1)
    weights = {name: 0.3 * torch.randn(shape) for name, shape in expected_shapes(config)}
    revision = digest_parts(tensor.numpy().tobytes() for tensor in weights.values()).hex()
    return Checkpoint(config, sim_vocabulary(), revision, weights)


def hybrid(shape: Shape, clock: Clock, *, kernel: KernelName) -> EngineUnderTest:
    """Return an engine for a model with recurrent layers, which takes no adapters."""
    replica = _replica(HYBRID, shape, clock, kernel)
    return EngineUnderTest(replica, _poisoner(replica), ((),), vocab_size=90, tells_logprobs=True)


def _replica(config: ModelConfig, shape: Shape, clock: Clock, kernel: KernelName) -> AssembledReplica:
    settings = ReplicaSettings(
        name="writer", num_blocks=shape.num_blocks, block_size=shape.block_size, kernel=kernel, threads=1
    )
    return reshaped(replica_from_checkpoint(checkpoint(config), "tiny", settings, clock), shape)


def native(shape: Shape, clock: Clock, *, kernel: KernelName) -> EngineUnderTest:
    replica = _replica(MODEL, shape, clock, kernel)
    with TemporaryDirectory() as folder:
        first, second = (_adapter(replica, Path(folder), seed) for seed in (1, 2))
    return EngineUnderTest(
        replica, _poisoner(replica), ((), (first,), (second,), (first, second)), vocab_size=90, tells_logprobs=True
    )


def _adapter(replica: AssembledReplica, folder: Path, seed: int) -> str:
    small = {name: 0.1 * tensor for name, tensor in random_tensors(seed=seed, model=MODEL).items()}
    digest = replica.adapters.load(f"a{seed}", write(folder / str(seed), small))
    replica.adapters.acquire(digest)
    return digest


def _poisoner(replica: AssembledReplica) -> Callable[[Iterable[int]], None]:
    if not isinstance(replica.engine, NativeEngine):
        raise TypeError(f"not a native engine: {replica.engine!r}")
    decoder = replica.engine.decoder
    if isinstance(decoder, TorchDecoder):
        caches = (decoder.k_cache.numpy(), decoder.v_cache.numpy())
    elif isinstance(decoder, FusedDecoder):
        caches = cache_views(decoder)
    else:
        raise TypeError(f"unknown decoder: {decoder!r}")

    def poison(block_ids: Iterable[int]) -> None:
        where = list(block_ids)
        for kept in caches:
            kept[:, where] = np.nan

    return poison


in_torch = partial(native, kernel="float32")
in_cpp = partial(native, kernel="fused")
hybrid_in_torch = partial(hybrid, kernel="float32")
hybrid_in_cpp = partial(hybrid, kernel="fused")
