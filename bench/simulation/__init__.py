"""A whole ensemble simulated: the real router, admission, scheduler and block pool on one event heap with one seed.

    from bench.simulation.ensemble import SimEnsemble
    from bench.simulation.replica import ReplicaSpec

    with SimEnsemble(ensemble, {"algo": ReplicaSpec("algo")}, {"algo": 4}, seed=7) as sim:
        sim.run(work())

`ensemble` is what `octet.config` reads. `specs` say what a replica of each specialist is made of (blocks, seats, what
steps cost), `replicas` how many there are. Inside of `work`, a coroutine: `await sim.start()`; `sim.channel()` is the
callers' way to the router, used as a grpc.aio.Channel; `asyncio.sleep` and `sim.loop.time()` are simulated time;
`await sim.stop()` ends it. `sim.machines["algo-0"]` is the replica's machine: `kill`, `start`, `stop`, `go_on`, its
`link` (`cut`, `mend`, `lose`, `factor`) and its `house` with scheduler, desk and `engine.busy_seconds`. `sim.router` is
the router's inside.

What breaks an ensemble on purpose, and what must hold all the while, is in the modules beside: `script`, `nemesis`,
`run`, `laws`. `python -m bench.simulation FIRST LAST` lives through a range of seeds.
"""
