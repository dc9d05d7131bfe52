"""State that outlives a router: documents, counts, audit, comparisons, receipts and jobs, in SQLite or PostgreSQL."""
