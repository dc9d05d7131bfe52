"""Times products of few rows with matrices of 4, 8 and 16 bits on a GPU: python -m bench.gpu_products."""

from collections.abc import Iterator
from itertools import cycle, islice

import torch

from specialist.models.weights import GROUP, Affine
from specialist.ops.gpu import quantised
from specialist.ops.gpu.packing import Matrix, Quantised, pack

SHAPES = ((6144, 1024), (28672, 4096), (4096, 14336))
COUNTS = (1, 16, 128)
LAUNCHES = 200
READ_BYTES = 1 << 29  # more than the second-level cache holds, so that each product reads its weights from memory


def matrices(rows: int, columns: int, bits: int) -> Iterator[Matrix]:
    """Yield different matrices of READ_BYTES together."""
    num_bytes = 0
    while num_bytes < READ_BYTES:
        if bits == 16:
            whole = torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")
            num_bytes += whole.nbytes
            yield whole
            continue
        q = torch.randint(0, 256, (rows, columns * bits // 8), dtype=torch.uint8, device="cuda")
        scale = torch.rand(rows, columns // GROUP, device="cuda").half()
        packed = pack(Affine(4 if bits == 4 else 8, q, scale, -scale))
        num_bytes += packed.words.nbytes + packed.ranges.nbytes
        yield packed


@torch.inference_mode()
def measure(shape: tuple[int, int], bits: int, count: int) -> tuple[float, int]:
    """Return the seconds of a product, in a CUDA graph of LAUNCHES, and the bytes of its matrix."""
    weights = list(matrices(*shape, bits))
    workspace = quantised.Workspace(torch.device("cuda"), weights, torch.bfloat16)
    x = torch.randn(count, shape[1], dtype=torch.bfloat16, device="cuda")
    out = torch.empty(count, shape[0], dtype=torch.bfloat16, device="cuda")

    def multiply() -> None:
        for weight in islice(cycle(weights), LAUNCHES):
            quantised.multiply(x, weight, workspace, out, chained=True)

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        multiply()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            multiply()
        times = []
        for _ in range(5):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) / 1e3 / LAUNCHES)
    first = weights[0]
    return min(times), first.words.nbytes + first.ranges.nbytes if isinstance(first, Quantised) else first.nbytes


def main() -> None:
    print(f"{'rows':>6} {'matrix':>14} {'bits':>5} {'us':>8} {'GB/s':>7} {'to 16 bits':>10}")
    for shape in SHAPES:
        for count in COUNTS:
            whole = 0.0
            for bits in (16, 8, 4):
                seconds, num_bytes = measure(shape, bits, count)
                whole = whole or seconds
                place = f"{count:6} {shape[0]:6} x {shape[1]:5} {bits:5}"
                print(f"{place} {seconds * 1e6:8.1f} {num_bytes / seconds / 1e9:7,.0f} {whole / seconds:9.2f}x")


if __name__ == "__main__":
    main()
