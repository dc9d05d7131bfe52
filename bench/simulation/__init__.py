"""A whole ensemble simulated: the real router, admission, scheduler and block pool on one event heap with one seed.

    from bench.simulation.ensemble import SimEnsemble
    from bench.simulation.replica import ReplicaSpec

    specs = {each.name: ReplicaSpec.of(each) for each in ensemble.specialists}
    with SimEnsemble(ensemble, specs, {name: 4 for name in specs}, seed=7) as sim:
        sim.run(work())

`ensemble` is what `octet.config` reads. `specs` say what a replica of each specialist is made of (blocks, seats, what
steps cost), the numbers how many there are of it. In `work`, a coroutine: `await sim.start()`; `sim.channel()` is
the callers' way to the router, used as a grpc.aio.Channel (`caller.Caller` is one who asks, `caller.Told` what it was
told and when); `asyncio.sleep` and `sim.loop.time()` are simulated time; `await sim.stop()` ends it.
`sim.machines["algo-0"]` is the replica's machine: `kill`, `start`, `stop`, `go_on`, its `link` (`cut`, `mend`, `lose`,
`factor`) and its `house` with scheduler, desk and `engine.busy_seconds`. `sim.router` is the router's inside. With
`sim.loop.cpu_seconds = {}` real CPU time is counted by process, "router" among them.

What breaks an ensemble on purpose, and what must hold all the while, is in the modules beside: `script`, `nemesis`,
`run`, and those whose names end in `_laws`. `python -m bench.simulation FIRST LAST` lives through a range of seeds.
"""
