"""End-to-end load on any endpoint, and how much of it is answered within its deadlines."""
