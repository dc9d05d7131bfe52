"""The served specialist of the bench: any free port, and the ready line on stdout."""

import sys

from bench.peers.octet_options import octet_options
from octet.clock import SystemClock
from specialist.server.process import serve
from specialist.server.replica import assemble_replica
from specialist.server.settings import ReplicaSettings, ServiceSettings

if __name__ == "__main__":
    replica = assemble_replica(ReplicaSettings(**vars(octet_options())), SystemClock())
    sys.exit(serve(replica, ServiceSettings(port=0)))
