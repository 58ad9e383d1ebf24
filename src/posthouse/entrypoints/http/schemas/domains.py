"""The shapes of domains and of the records that prove them."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from posthouse.entrypoints.http.schemas.shapes import Moment, NextCursor, Request, Response, described
from posthouse.flows.account.domains import KeyStage
from posthouse.rules.domain import RecordPurpose, RecordResult

_SUMMARY: Final[JsonDict] = {
    "id": "dm_01kmx2v3q8f7t9n5r6w4y0zabc",
    "name": "example.com",
    "verified": True,
    "vouched": False,
    "verified_at": "2026-11-15T09:30:00.000Z",
    "checked_at": "2026-11-15T09:30:00.000Z",
    "missing_since": None,
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
    "advice": "",
}
_DOMAIN: Final[JsonDict] = {**_SUMMARY, "rotating": False, "records": [_RECORD]}


class DomainRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "example.com"}]})

    name: Annotated[
        str,
        described(
            "What stands after the @ of senders. A subdomain is a registration of its own.", minLength=1, maxLength=254
        ),
    ]


class DnsRecord(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_RECORD]})

    purpose: Annotated[
        str,
        described(
            "`ownership` and `dkim_rsa` prove the domain, `dkim_ed25519` is recommended, `return_path` and `dmarc` are "
            "advice.",
            enum=[one.value for one in RecordPurpose],
        ),
    ]
    state: Annotated[
        str,
        described(
            "Of a key: `active` signs, `pending` signs once the record of the RSA key is seen, `previous` signed until "
            "lately. All else is `active`.",
            enum=[one.value for one in KeyStage],
        ),
    ]
    type: Annotated[str, described("The type of the record in DNS.", enum=["TXT"])]
    name: Annotated[str, described("The whole name; many DNS panels add the domain by themselves.")]
    value: Annotated[
        str | None, described("What to publish, and what is expected; null when it isn't yours to publish.")
    ]
    required: Annotated[bool, described("Whether the domain is not verified without it.")]
    result: Annotated[
        str | None,
        described(
            "Only in the answer of a check: `unknown` when DNS could not be asked, which counts for nothing.",
            enum=[*[one.value for one in RecordResult], None],
        ),
    ]
    found: Annotated[
        list[str] | None, described("Only in the answer of a check: what DNS has there; at most 10 values.")
    ]
    advice: Annotated[str, described("What to do, in plain words; empty when all is well.")]


class DomainSummary(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_SUMMARY]})

    id: str
    name: Annotated[str, described("In A-labels, lower case.")]
    verified: Annotated[bool, described("Whether mail may be sent from it.")]
    vouched: Annotated[bool, described("Whether the operator of the service vouches for it, so that DNS isn't asked.")]
    verified_at: Moment | None
    checked_at: Annotated[Moment | None, described("When DNS was last asked: daily, and whenever you verify it.")]
    missing_since: Annotated[
        Moment | None,
        described("Since when a required record is gone; after 7 days the domain is verified no more."),
    ]
    created_at: Moment


class Domain(DomainSummary):
    model_config = ConfigDict(json_schema_extra={"examples": [_DOMAIN]})

    rotating: Annotated[bool, described("Whether new keys wait for their record to be seen.")]
    records: Annotated[list[DnsRecord], described("What there is to publish, and to leave in DNS.")]


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
