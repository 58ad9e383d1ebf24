"""What is stored under each pepper. The pepper's id is readable in the hash: see `rules/pepper`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from posthouse.rules.pepper import FIRST, HASH_BYTES
from posthouse.store.postgres import Connection

_PEPPER_USES: Final = f"""
SELECT CASE WHEN octet_length(hash) = {HASH_BYTES} THEN '{FIRST}'
            ELSE convert_from(substring(hash FROM 1 FOR octet_length(hash) - {HASH_BYTES + 1}), 'UTF8')
       END AS pepper_id, what, count(*) AS uses
FROM (SELECT secret_hash, 'SMTP passwords' FROM credentials WHERE revoked_at IS NULL
      UNION ALL SELECT previous_hash, 'replaced SMTP passwords' FROM credentials WHERE previous_until > $1
      UNION ALL SELECT secret_hash, 'API keys' FROM api_keys
          WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)
      UNION ALL SELECT renewal_hash, 'kept logins' FROM sessions
          WHERE renewal_hash IS NOT NULL AND revoked_at IS NULL AND expires_at > $1
      UNION ALL SELECT code_hash, 'recovery codes' FROM recovery_codes
      UNION ALL SELECT token_hash, 'invitations' FROM invitations WHERE expires_at > $1
      UNION ALL SELECT token_hash, 'password resets' FROM password_resets WHERE expires_at > $1
      UNION ALL SELECT token_hash, 'login links' FROM login_links WHERE expires_at > $1
      UNION ALL SELECT hash, 'erased addresses' FROM erased_addresses
      UNION ALL SELECT secret_hash, 'links to captured mail' FROM captured_mail_secrets WHERE expires_at > $1
     ) stored (hash, what)
GROUP BY 1, 2 ORDER BY 1, 2
"""


async def pepper_uses(connection: Connection, now: datetime) -> Mapping[str, Mapping[str, int]]:
    """By pepper, how many of each kind are stored under it and valid."""
    uses: dict[str, dict[str, int]] = {}
    for row in await connection.fetch(_PEPPER_USES, now):
        uses.setdefault(row["pepper_id"], {})[row["what"]] = row["uses"]
    return uses
