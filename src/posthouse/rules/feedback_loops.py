"""Feedback loops: which mailbox providers may report complaints, and how they are recognised.

Every recipient of a message has its token and can write a report. A report counts if a provider on the list signed it
(DKIM) and is its author, or if it comes from a network that the operator trusts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from posthouse.mail.address import Mailbox
from posthouse.rules.credential import is_allowed

# A domain is listed only if the public has no mailboxes there: a customer of the provider could sign a report too.
# Otherwise the list contains the address that its reports come from.
PROVIDERS: Final = (
    "arf.mail.yahoo.com",
    "senderscore.net",
    "app.returnpath.net",
    "fbl.validity.com",
    "feedback@feedback.comcast.net",
    "feedbackloop@fbl.fastmail.com",
    "feedbackloop@fbl.hostedemail.com",
    "feedbackloop@fbl.synacor.com",
    "feedbackloop@fbl.zoho.com",
    "staff@hotmail.com",
)


@dataclass(frozen=True, slots=True)
class FeedbackLoops:
    """`providers` are signing domains, which include their subdomains, or addresses of authors."""

    providers: frozenset[str] = frozenset(PROVIDERS)
    networks: Sequence[IPv4Network | IPv6Network] = ()

    def trusts(self, author: Mailbox, signer: str) -> bool:
        """Whether a message of this author, with a valid signature of this domain, is a provider's report."""
        if not _is_within(author.domain, signer):
            return False
        return author.key in self.providers or any(_is_within(signer, provider) for provider in self.providers)

    def trusts_peer(self, peer: str) -> bool:
        return bool(self.networks) and is_allowed(self.networks, peer)


def _is_within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")
