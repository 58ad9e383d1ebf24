"""A domain's second DKIM key, Ed25519, to sign beside RSA once its record is published."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Domains that were registered before get their key from upkeep, which finds them by the index; it is
# empty ever after. ed25519_published is what the last look at DNS said, or an operator's word for it.
DOMAINS = """
ALTER TABLE domains
    ADD COLUMN ed25519_selector  text,
    ADD COLUMN ed25519_public    text,
    ADD COLUMN ed25519_sealed    bytea,
    ADD COLUMN ed25519_published boolean NOT NULL DEFAULT false,
    ADD CHECK (num_nulls(ed25519_selector, ed25519_public, ed25519_sealed) IN (0, 3)),
    ADD CHECK (NOT ed25519_published OR ed25519_sealed IS NOT NULL);
CREATE INDEX domains_without_ed25519 ON domains (account_id, id) WHERE ed25519_sealed IS NULL
"""


def upgrade() -> None:
    for statement in DOMAINS.split(";\n"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("keys whose records are published would be lost; restore a backup instead")
