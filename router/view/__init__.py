"""Everything at a glance: what operators are shown, and what is wrong now."""
