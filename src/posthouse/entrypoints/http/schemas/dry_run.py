"""The shapes of test mail and dry runs."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from posthouse.entrypoints.http.schemas.emails import SendResponse
from posthouse.entrypoints.http.schemas.shapes import Request, Response, described
from posthouse.rules import limits
from posthouse.rules.refusal import Code
from posthouse.rules.suppression import SuppressionReason

_REQUEST_ID: Final = "rq_01kjm3v0e8f7t9y2w5x6z1b4cd"
_TRIAL: Final[JsonDict] = {
    "would_accept": False,
    "refusal": {"code": "insufficient_credits", "error": "This message needs 1 credits, 0 are available: add credits."},
    "mime": 'From: "Acme" <hello@example.com>\r\n…',
    "size_bytes": 612,
    "subject": "Welcome",
    "template": None,
    "recipients": [
        {
            "email": "ada@example.net",
            "field": "to",
            "suppressed": None,
            "lane": "google",
            "simulator": False,
        }
    ],
    "credits": {"needed": 1, "available": 0},
    "domain": {
        "name": "example.com",
        "registered": True,
        "verified": True,
        "dkim_selectors": ["ph1", "pe1"],
        "dkim_aligned": True,
        "return_path": "bounce.posthouse.example",
        "spf_aligned": False,
    },
    "warnings": ["It has no text part: some readers show none of its words, and filters like it less. Give `text`."],
    "request_id": _REQUEST_ID,
}
_SENT: Final[JsonDict] = {
    "id": "em_01kjm3v0e8f7t9y2w5x6z1b400",
    "status": "queued",
    "source": "test",
    "from": "test@example.com",
    "to": ["owner@example.com"],
    "cc": [],
    "bcc": [],
    "subject": "A test mail",
    "billing_status": "reserved",
    "recipient_count": 1,
    "credits_reserved": 1,
    "headers": {},
    "tags": [],
    "attachments": [],
    "request_id": _REQUEST_ID,
}


class TestEmailRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"from": "Acme <hello@example.com>"}]})

    sender: Annotated[
        str | None,
        Field(
            alias="from",
            description="An address of a verified domain of the account; `test@` its first one unless given.",
        ),
    ] = None
    subject: Annotated[
        str | None, described("A built-in one unless given.", maxLength=limits.SUBJECT_CHARACTERS_MAX)
    ] = None
    text: Annotated[str | None, described("A built-in one unless it or `html` is given.")] = None
    html: Annotated[str | None, described("HTML body.")] = None


class TestEmailResponse(SendResponse):
    model_config = ConfigDict(json_schema_extra={"examples": [_SENT]})

    source: Annotated[str, Field(json_schema_extra={"const": "test"})]


class TrialRefusal(BaseModel):
    code: Code
    error: str


class TrialRecipient(BaseModel):
    email: str
    field: Annotated[str, Field(json_schema_extra={"enum": ["to", "cc", "bcc"]})]
    suppressed: Annotated[
        SuppressionReason | None, described("Why the address gets no mail of the account; null when it does.")
    ]
    lane: Annotated[
        str | None,
        described(
            "The mailbox provider, or the domain itself; null when DNS didn't say in time, or has no mail server."
        ),
    ]
    simulator: Annotated[bool, described("Whether delivery is only simulated, by the address's own domain.")]


class TrialCredits(BaseModel):
    needed: int
    available: int


class TrialDomain(BaseModel):
    name: Annotated[str, described("The domain of `from`.")]
    registered: bool
    verified: bool
    dkim_selectors: Annotated[list[str], described("Of the keys that would sign.")]
    dkim_aligned: Annotated[bool, described("Whether DMARC passes by the signature.")]
    return_path: Annotated[str, described("The domain to which bounces go, and whose SPF is looked at.")]
    spf_aligned: Annotated[bool, described("Whether DMARC passes by SPF as well; the signature is enough.")]


class DryRunResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_TRIAL]})

    would_accept: bool
    refusal: Annotated[TrialRefusal | None, described("The first refusal that sending would meet.")]
    mime: Annotated[
        str | None,
        described(
            "The message as it would be stored; trace fields, links to leave a list and the DKIM signature come at "
            "delivery. Null when it can't be written."
        ),
    ]
    size_bytes: int | None
    subject: str | None
    template: Annotated[str | None, described("The alias of the template that was rendered.")]
    recipients: list[TrialRecipient]
    credits: TrialCredits
    domain: TrialDomain
    warnings: Annotated[list[str], described("What is allowed, and yet better mended; for people.")]
