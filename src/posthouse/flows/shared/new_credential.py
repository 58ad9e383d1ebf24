"""New SMTP credentials: the password is only in the result."""

from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network

from posthouse.flows.shared.context import new_id
from posthouse.randomness import Randomness
from posthouse.rules import credential
from posthouse.rules.ids import AccountId, CredentialId
from posthouse.rules.pepper import Peppers
from posthouse.store import credentials
from posthouse.store.credentials import CredentialRow
from posthouse.store.postgres import Connection


@dataclass(frozen=True, slots=True)
class NewCredential:
    credential: CredentialRow
    password: str = field(repr=False)


class CredentialGenerator:
    def __init__(self, randomness: Randomness, peppers: Peppers) -> None:
        self._randomness = randomness
        self._peppers = peppers

    async def credential(
        self,
        tx: Connection,
        account_id: AccountId,
        name: str,
        networks: tuple[IPv4Network | IPv6Network, ...],
        now: datetime,
        *,
        is_default: bool = False,
    ) -> NewCredential:
        password, secret_hash = self.password()
        row = CredentialRow(
            account_id=account_id,
            id=CredentialId(new_id(self._randomness, now)),
            username=credential.new_smtp_username(self._randomness.bytes(credential.USERNAME_RANDOM_BYTES)),
            name=name,
            is_default=is_default,
            allowed_networks=networks,
            created_at=now,
            revoked_at=None,
        )
        await credentials.insert_credential(tx, row, secret_hash, now)
        return NewCredential(row, password)

    def password(self) -> tuple[str, bytes]:
        """A password, and what is stored of it."""
        password = credential.new_smtp_password(self._randomness.bytes(credential.SECRET_RANDOM_BYTES))
        return password, self._peppers.hash(password)
