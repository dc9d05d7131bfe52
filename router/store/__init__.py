"""State that outlives a router, in SQLite or PostgreSQL: documents, counts, audit rows, comparisons, receipts, jobs."""
