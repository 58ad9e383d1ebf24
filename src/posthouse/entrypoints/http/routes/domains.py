"""Domains and their DNS records."""

from typing import Annotated, Final

from fastapi import Path
from pydantic.config import JsonDict

from posthouse.entrypoints.http.operation import Operations, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor
from posthouse.entrypoints.http.shapes import (
    DeletedResponse,
    NextCursor,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    VerifiedAt,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.domains import DomainRow, Domains, DomainView, KeyStage, ShownRecord, results_of
from posthouse.flows.shared.principal import Caller
from posthouse.rules import ids
from posthouse.rules.credential import Role, Scope
from posthouse.rules.domain import RecordPurpose, RecordResult

# The owner of a name controls how much DNS returns for it.
FOUND_SHOWN_MAX: Final = 10
FOUND_CHARACTERS_SHOWN_MAX: Final = 1_000

router = Operations("Domains", Scope.DOMAINS)

MaySend = Annotated[bool, described("Whether mail may be sent from it.")]
_Name = Annotated[str, Path(description="The domain, such as `example.com`.")]

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


class DomainRequest(RequestModel):
    model_config = examples({"name": "example.com"})

    name: Annotated[
        str,
        described(
            "The part after the @ of sender addresses. A subdomain is registered separately.",
            minLength=1,
            maxLength=254,
        ),
    ]


class DnsRecord(Shown):
    model_config = examples(_RECORD)

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
    value: Annotated[str | None, described("The value to publish; null if it is not yours to publish.")]
    required: Annotated[bool, described("Whether the domain needs it to be verified.")]
    result: Annotated[
        str | None,
        described(
            "The last check's result; `unknown` if DNS did not answer, which changes nothing. Null before the first.",
            enum=[*[result.value for result in RecordResult], None],
        ),
    ]
    found: Annotated[
        list[str] | None,
        described("The values that the last check found in DNS: at most 10; read again later, at most 5."),
    ]
    checked_at: Annotated[Timestamp | None, described("When it was last checked; null before the first check.")]
    advice: Annotated[str, described("What to do, in plain words; empty if nothing.")]


class RecordFinding(Shown):
    purpose: Annotated[str, described("The record.", enum=[purpose.value for purpose in RecordPurpose])]
    result: Annotated[str, described("What was found in DNS.", enum=[result.value for result in RecordResult])]


class DomainSummary(Shown):
    model_config = examples(_SUMMARY)

    id: Annotated[ids.DomainId, id_text(ids.DOMAIN)]
    name: Annotated[str, described("In A-labels and lower case.")]
    verified: MaySend
    vouched: Annotated[
        bool,
        described("Whether the operator of the service vouches for it, so that DNS is not checked."),
        read_from("is_vouched_for"),
    ]
    shared: Annotated[
        bool,
        described(
            "Whether it is the operator's domain, shared with all accounts: mail from it may go only to members of the "
            "account and to the simulator, and it can't be changed or removed."
        ),
        read_from("is_shared"),
    ]
    verified_at: VerifiedAt
    checked_at: Annotated[Timestamp | None, described("The last DNS check: daily, and whenever you verify the domain.")]
    missing_since: Annotated[
        Timestamp | None,
        described("Since when a required record has been missing; after 7 days the domain is no longer verified."),
    ]
    dns_host: Annotated[
        str | None,
        described(
            "Who hosts the domain's DNS, guessed from its name servers at the last `verify`; for an unknown host, the "
            "domain of its name servers. Null if DNS did not say."
        ),
    ]
    findings: Annotated[list[RecordFinding], described("The results of the last check; empty before the first.")]
    created_at: Timestamp


class Domain(DomainSummary):
    model_config = examples(_DOMAIN)

    rotating: Annotated[bool, described("Whether new keys are waiting until their record is found.")]
    records: Annotated[list[DnsRecord], described("The records to publish in DNS and to leave there.")]


class DomainResponse(Response):
    model_config = examples({"domain": _DOMAIN})

    domain: Domain


class DomainListResponse(Response):
    model_config = examples({"domains": [_SUMMARY], "next_cursor": None})

    domains: list[DomainSummary]
    next_cursor: NextCursor


@router.get("/v1/domains", Role.VIEWER)
async def list_domains(
    caller: Caller, domains: Domains, limit: PageSize = PAGE_DEFAULT, cursor: Cursor = None
) -> DomainListResponse:
    """The account's domains, newest first, without their records"""
    page = await domains.page(caller.account_id, limit, cursor)
    return DomainListResponse(domains=[_summary(row) for row in page.items], next_cursor=page.next_cursor)


@router.post("/v1/domains", Role.ADMIN, stores=True, status=201, errors=(409,))
async def add_domain(caller: Caller, body: DomainRequest, domains: Domains) -> DomainResponse:
    """Add a domain; the response has the DNS records to publish"""
    return _response(await domains.add(caller.account_id, body.name, caller.actor))


@router.get("/v1/domains/{name}", Role.VIEWER)
async def get_domain(caller: Caller, name: _Name, domains: Domains) -> DomainResponse:
    """A domain with its DNS records"""
    return _response(await domains.get(caller.account_id, name))


@router.post("/v1/domains/{name}/verify", Role.ADMIN, errors=(409,))
async def verify_domain(caller: Caller, name: _Name, domains: Domains) -> DomainResponse:
    """Check the domain's records in DNS now; at most once every 5 seconds"""
    return _response((await domains.verify(caller.account_id, name, caller.actor)).view)


@router.post("/v1/domains/{name}/rotate", Role.ADMIN, stores=True, errors=(409,))
async def rotate_domain_keys(caller: Caller, name: _Name, domains: Domains) -> DomainResponse:
    """Create new DKIM keys; they sign once their record is found in DNS, and the current keys sign until then"""
    return _response(await domains.rotate(caller.account_id, name, caller.actor))


@router.delete("/v1/domains/{name}", Role.ADMIN)
async def remove_domain(caller: Caller, name: _Name, domains: Domains) -> DeletedResponse:
    """Remove a domain and its keys; mail from it that is still queued is sent unsigned"""
    await domains.remove(caller.account_id, name, caller.actor)
    return DeletedResponse(deleted=True)


def _summary(row: DomainRow) -> DomainSummary:
    return DomainSummary.of(row, verified=row.verified_at is not None, findings=_findings(row))


def _response(view: DomainView) -> DomainResponse:
    row, records = view.domain, [_record(line) for line in view.lines]
    domain = Domain.of(
        row,
        verified=row.verified_at is not None,
        findings=_findings(row),
        rotating=view.waiting is not None,
        records=records,
    )
    return DomainResponse(domain=domain)


def _findings(row: DomainRow) -> list[RecordFinding]:
    return [RecordFinding(purpose=purpose, result=result) for purpose, result in results_of(row)]


def _record(line: ShownRecord) -> DnsRecord:
    record, finding = line.record, line.finding
    found = None
    if finding is not None:
        found = [value[:FOUND_CHARACTERS_SHOWN_MAX] for value in finding.found[:FOUND_SHOWN_MAX]]
    return DnsRecord.of(
        line,
        purpose=record.purpose,
        state=line.stage,
        type="TXT",
        name=record.name,
        value=record.value or None,
        required=record.is_required,
        result=None if finding is None else finding.result,
        found=found,
    )
