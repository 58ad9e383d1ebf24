"""`posthouse dev`: the whole service on a developer's machine, with a PostgreSQL of its own; no mail leaves."""
