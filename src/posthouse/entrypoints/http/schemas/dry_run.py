"""Request and response schemas of test mail and dry runs."""

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
            description="An address of a verified domain of the account; by default `test@` its first domain.",
        ),
    ] = None
    subject: Annotated[
        str | None, described("A built-in subject by default.", maxLength=limits.SUBJECT_CHARACTERS_MAX)
    ] = None
    text: Annotated[str | None, described("A built-in text unless `text` or `html` is given.")] = None
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
    suppressed: Annotated[SuppressionReason | None, described("Why the address is suppressed; null if it is not.")]
    lane: Annotated[
        str | None,
        described("The mailbox provider, or the domain itself; null when DNS gave no mail server in time."),
    ]
    simulator: Annotated[bool, described("Whether delivery is only simulated, because of the address's domain.")]


class TrialCredits(BaseModel):
    needed: int
    available: int


class TrialDomain(BaseModel):
    name: Annotated[str, described("The domain of `from`.")]
    registered: bool
    verified: bool
    dkim_selectors: Annotated[list[str], described("The selectors of the keys that would sign.")]
    dkim_aligned: Annotated[bool, described("Whether the signature satisfies DMARC.")]
    return_path: Annotated[str, described("The domain that receives bounces and whose SPF is checked.")]
    spf_aligned: Annotated[bool, described("Whether SPF satisfies DMARC too; the signature is enough.")]


class DryRunResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_TRIAL]})

    would_accept: bool
    refusal: Annotated[TrialRefusal | None, described("The first refusal that sending would return.")]
    mime: Annotated[
        str | None,
        described(
            "The message as it would be stored; trace fields, unsubscribe links and the DKIM signature are added at "
            "delivery. Null when it can't be composed."
        ),
    ]
    size_bytes: int | None
    subject: str | None
    template: Annotated[str | None, described("The alias of the rendered template.")]
    recipients: list[TrialRecipient]
    credits: TrialCredits
    domain: TrialDomain
    warnings: Annotated[list[str], described("Allowed, but better changed; for people.")]
