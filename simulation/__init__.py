"""The ensemble on one event heap: the real router, admission, scheduler and block pool, driven by simulated time."""
