"""The served specialist of the bench: any free port, and the ready line on stdout."""

import sys
from dataclasses import replace
from pathlib import Path

from octet.clock import SystemClock
from specialist.service.assemble import assemble
from specialist.service.process import serve
from specialist.service.settings import ReplicaSettings, ServiceSettings

if __name__ == "__main__":
    settings = ReplicaSettings(model=Path(sys.argv[1]))
    if sys.argv[2:] == ["--engine", "sim"]:
        settings = replace(settings, engine="sim")
    replica = assemble(settings, SystemClock())
    sys.exit(serve(replica, ServiceSettings(port=0)))
