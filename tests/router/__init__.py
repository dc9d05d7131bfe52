"""The router: decisions, replicas, receipts."""
