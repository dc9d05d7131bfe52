"""How llama.cpp is compiled where its native build does not run."""

from collections.abc import Iterable
from pathlib import Path

# A ggml option, and the flag in /proc/cpuinfo that says the processor has it.
_EXTENSIONS = {
    "AVX": "avx",
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "BMI2": "bmi2",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
}


def without_amx(cpu_flags: Iterable[str]) -> str:
    """CMAKE_ARGS for all this processor has but AMX, which virtual machines announce and do not always let run."""
    flags = frozenset(cpu_flags)
    options = [f"-DGGML_{name}=ON" for name, flag in _EXTENSIONS.items() if flag in flags]
    return " ".join(("-DGGML_NATIVE=OFF", *options))


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Empty where the system does not say."""
    if not cpuinfo.exists():
        return []
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
