"""How a tensor's numbers are stored in a GGUF file."""

from typing import NamedTuple


class Kind(NamedTuple):
    name: str
    columns: int
    """Numbers in a block."""
    num_bytes: int
    """Bytes of a block."""


KINDS = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2),
    2: Kind("Q4_0", 32, 18),
    3: Kind("Q4_1", 32, 20),
    8: Kind("Q8_0", 32, 34),
    12: Kind("Q4_K", 256, 144),
    14: Kind("Q6_K", 256, 210),
    30: Kind("BF16", 1, 2),
}

OTHERS = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    13: "Q5_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Known by name, to refuse them by name."""


def kind_name(number: int) -> str:
    return OTHERS.get(number, f"type {number}")
