"""The body of POST /emails/batch as drafts. Pure functions: the process for large mails runs them too."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from posthouse.entrypoints.http.request_body import check_entries, parsed, validated
from posthouse.entrypoints.http.schemas.emails import BatchRequest
from posthouse.entrypoints.http.send_request import canonical, draft_in
from posthouse.flows.accept.bulk import BulkRequest
from posthouse.rules import limits
from posthouse.rules.draft import Decode, Draft, decode_attachments
from posthouse.rules.fingerprint import Fingerprint
from posthouse.rules.refusal import Code, Refusal, invalid


def read_bulk(body: bytes, fingerprint: Fingerprint) -> BulkRequest:
    """The bulk request; its drafts are made one after another, as they are asked for."""
    content = parsed(body, limits.BULK_ENTRIES_MAX, limits.BULK_ENTRIES_MAX)
    request = validated(BatchRequest, content)
    given, defaults = content["emails"], content.get("defaults")
    if not 1 <= len(given) <= limits.BULK_EMAILS_MAX:
        raise invalid(f"`emails` has {len(given)} entries: send 1 to {limits.BULK_EMAILS_MAX} with a request.")
    if not isinstance(defaults, dict | None):
        raise invalid("`defaults` should be an object with fields of POST /emails.")
    emails = [{**(defaults or {}), **email} if isinstance(email, dict) else None for email in given]
    _check_sum(emails)
    _check_recipients(emails)
    return BulkRequest(len(emails), _drafts(emails), fingerprint(b"batch " + canonical(content)), request.all)


def read_whole_bulk(body: bytes, fingerprint: Fingerprint) -> BulkRequest:
    """The same, with all drafts made."""
    bulk = read_bulk(body, fingerprint)
    return bulk._replace(drafts=list(bulk.drafts))


def _check_sum(emails: Sequence[Mapping[str, Any] | None]) -> None:
    """Defaults count for each email: a long list in them costs as much as one in each."""
    left = limits.BULK_ENTRIES_MAX
    for email in filter(None, emails):
        left -= check_entries(email, left)


def _check_recipients(emails: Sequence[Mapping[str, Any] | None]) -> None:
    """Before any draft is made: recipients are what a request costs."""
    count = 0
    for email in filter(None, emails):
        for name in ("to", "cc", "bcc"):
            given = email.get(name)
            count += len(given) if isinstance(given, list) else given is not None
    if count > limits.BULK_RECIPIENTS_MAX:
        raise Refusal(
            Code.PAYLOAD_TOO_LARGE,
            f"The `emails` have {count:,} recipients in `to`, `cc` and `bcc` together: send at most "
            f"{limits.BULK_RECIPIENTS_MAX:,} with a request.",
        )


def _drafts(emails: Sequence[Mapping[str, Any] | None]) -> Iterator[Draft | Refusal]:
    # Attachments of the defaults are decoded once.
    decode = lru_cache(maxsize=4)(decode_attachments)
    for email in emails:
        yield _draft_or_refusal(email, decode)


def _draft_or_refusal(email: Mapping[str, Any] | None, decode: Decode) -> Draft | Refusal:
    if email is None:
        return invalid("Each of `emails` should be an object with the fields of POST /emails.")
    try:
        return draft_in(email, decode)
    except Refusal as refusal:
        refusal.drop_traceback()
        return refusal
