"""How well every specialist does of late, against what was promised: measured, shared between routers, published."""
