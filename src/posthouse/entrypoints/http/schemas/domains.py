"""Request and response schemas of domains and their DNS records."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from posthouse.entrypoints.http.schemas.shapes import NextCursor, Request, Response, Timestamp, described
from posthouse.flows.account.domains import KeyStage
from posthouse.rules.domain import RecordPurpose, RecordResult

_SUMMARY: Final[JsonDict] = {
    "id": "dm_01kmx2v3q8f7t9n5r6w4y0zabc",
    "name": "example.com",
    "verified": True,
    "vouched": False,
    "shared": False,
    "verified_at": "2026-11-15T09:30:00.000Z",
    "checked_at": "2026-11-15T09:30:00.000Z",
    "missing_since": None,
    "dns_host": "Cloudflare",
    "findings": [{"purpose": "ownership", "result": "found"}, {"purpose": "dkim_rsa", "result": "found"}],
    "created_at": "2026-11-15T09:12:00.000Z",
}
_RECORD: Final[JsonDict] = {
    "purpose": "ownership",
    "state": "active",
    "type": "TXT",
    "name": "_posthouse.example.com",
    "value": "posthouse-verification=4dzkq2m7aov3hxw5c6rnbt2e",
    "required": True,
    "result": "found",
    "found": ["posthouse-verification=4dzkq2m7aov3hxw5c6rnbt2e"],
    "checked_at": "2026-11-15T09:30:00.000Z",
    "advice": "",
}
_DOMAIN: Final[JsonDict] = {**_SUMMARY, "rotating": False, "records": [_RECORD]}


class DomainRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "example.com"}]})

    name: Annotated[
        str,
        described(
            "The part after the @ of sender addresses. A subdomain is registered separately.",
            minLength=1,
            maxLength=254,
        ),
    ]


class DnsRecord(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_RECORD]})

    purpose: Annotated[
        str,
        described(
            "`ownership` and `dkim_rsa` verify the domain, `dkim_ed25519` is recommended, `return_path` and `dmarc` "
            "are optional.",
            enum=[purpose.value for purpose in RecordPurpose],
        ),
    ]
    state: Annotated[
        str,
        described(
            "For a key: `active` signs, `pending` signs once the record of the RSA key is found, `previous` signed "
            "until recently. All other records are `active`.",
            enum=[stage.value for stage in KeyStage],
        ),
    ]
    type: Annotated[str, described("The DNS record type.", enum=["TXT"])]
    name: Annotated[str, described("The full name; many DNS panels append the domain themselves.")]
    value: Annotated[
        str | None, described("The value to publish, which is expected; null if it is not yours to publish.")
    ]
    required: Annotated[bool, described("Whether the domain needs it to be verified.")]
    result: Annotated[
        str | None,
        described(
            "Of the last check: `unknown` when DNS did not answer, which changes nothing. Null before the first.",
            enum=[*[result.value for result in RecordResult], None],
        ),
    ]
    found: Annotated[
        list[str] | None,
        described("The values in DNS, as the last check found them: at most 10, after the check itself at most 5."),
    ]
    checked_at: Annotated[Timestamp | None, described("When it was last checked; null before the first check.")]
    advice: Annotated[str, described("What to do, in plain words; empty if nothing.")]


class RecordFinding(BaseModel):
    purpose: Annotated[str, described("The record.", enum=[purpose.value for purpose in RecordPurpose])]
    result: Annotated[str, described("What was found of it.", enum=[result.value for result in RecordResult])]


class DomainSummary(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_SUMMARY]})

    id: str
    name: Annotated[str, described("In A-labels and lower case.")]
    verified: Annotated[bool, described("Whether mail may be sent from it.")]
    vouched: Annotated[
        bool, described("Whether the operator of the service vouches for it, so that DNS is not checked.")
    ]
    shared: Annotated[
        bool,
        described(
            "Whether it is the operator's domain, shared with all accounts: mail from it goes to members of the "
            "account and to the simulator only, and it can't be changed or removed."
        ),
    ]
    verified_at: Timestamp | None
    checked_at: Annotated[Timestamp | None, described("The last DNS check: daily, and whenever you verify the domain.")]
    missing_since: Annotated[
        Timestamp | None,
        described("Since when a required record is missing; after 7 days the domain is no longer verified."),
    ]
    dns_host: Annotated[
        str | None,
        described(
            "Who hosts the domain's DNS, guessed from its name servers at the last `verify`; of an unknown host, the "
            "domain of its name servers. Null if DNS did not say."
        ),
    ]
    findings: Annotated[list[RecordFinding], described("The results of the last check; empty before the first.")]
    created_at: Timestamp


class Domain(DomainSummary):
    model_config = ConfigDict(json_schema_extra={"examples": [_DOMAIN]})

    rotating: Annotated[bool, described("Whether new keys wait for their record to be found.")]
    records: Annotated[list[DnsRecord], described("The records to publish and to keep in DNS.")]


class DomainResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"domain": _DOMAIN, "request_id": "rq_01kmx2v3q8f7t9n5r6w4y0zabc"}]}
    )

    domain: Domain


class DomainListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"domains": [_SUMMARY], "next_cursor": None, "request_id": "rq_01kmx2v3q8f7t9n5r6w4y0zabc"},
            ]
        }
    )

    domains: list[DomainSummary]
    next_cursor: NextCursor
