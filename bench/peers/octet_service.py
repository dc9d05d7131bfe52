"""The served specialist of the bench: any free port, and the ready line on stdout."""

import argparse
import sys
from pathlib import Path
from typing import get_args

from octet.clock import SystemClock
from specialist.engines.native.settings import DType
from specialist.service.assemble import assemble
from specialist.service.process import serve
from specialist.service.settings import ReplicaSettings, ServiceSettings

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("native", "sim"), default="native")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=get_args(DType), default="float32")
    replica = assemble(ReplicaSettings(**vars(parser.parse_args())), SystemClock())
    sys.exit(serve(replica, ServiceSettings(port=0)))
