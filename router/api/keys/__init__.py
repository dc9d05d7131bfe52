"""API keys: roles, tenants, limits."""
