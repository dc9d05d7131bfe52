"""The served specialist of the bench: any free port, and the ready line on stdout."""

import sys

from bench.peers.octet_options import octet_options
from octet.clock import SystemClock
from specialist.service.assemble import assemble
from specialist.service.process import serve
from specialist.service.settings import ReplicaSettings, ServiceSettings

if __name__ == "__main__":
    replica = assemble(ReplicaSettings(**vars(octet_options())), SystemClock())
    sys.exit(serve(replica, ServiceSettings(port=0)))
