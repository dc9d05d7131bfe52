"""End-to-end load on any endpoint, and the share that is answered within its deadlines."""
