"""What is measured of Octet, in this process and served alike."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from specialist.engines.native.settings import DType


def octet_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("native", "sim"), default="native")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=get_args(DType), default="float32")
    return parser.parse_args(arguments)
