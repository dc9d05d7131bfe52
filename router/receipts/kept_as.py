"""The name that something about one request is kept under."""


def kept_as(request_id: str, tenant: str) -> str:
    """Two tenants may call their requests the same."""
    return f"{tenant}:{request_id}" if tenant else request_id
