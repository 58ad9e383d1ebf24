"""`posthouse dev`: the whole service on a developer's machine, with its own PostgreSQL; no mail leaves."""
