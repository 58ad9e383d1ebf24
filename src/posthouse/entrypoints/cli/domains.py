"""Commands about sender domains."""

from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.entrypoints.cli import show
from posthouse.entrypoints.cli.desk import perform
from posthouse.entrypoints.cli.show import AccountGiven, AsJson

if TYPE_CHECKING:
    from posthouse.flows.administration import DomainView, Verification
    from posthouse.rules.domain import Record

domain = typer.Typer(no_args_is_help=True, help="Domains: what an account may send from.")

DomainGiven = Annotated[str, typer.Argument(metavar="DOMAIN", help="Such as example.com.")]


@domain.command("add")
def add(account: AccountGiven, domain: DomainGiven, as_json: AsJson = False) -> None:
    """Register a domain; prints the DNS records that its owner has to publish."""
    view = perform(lambda desk: desk.administration.add_domain(account, domain))
    if as_json:
        return show.write_json(show.domain(view))
    _write_records(view)
    return show.write_line(
        "\nPublish them (the first two prove the domain, the third is recommended), "
        f"then run `posthouse domain verify {account!r} {view.domain.name}`."
    )


@domain.command("verify")
def verify(
    account: AccountGiven,
    domain: DomainGiven,
    vouched: Annotated[
        bool, typer.Option("--vouched", help="Take my word for it: no DNS record is asked for, now or later.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look for a domain's DNS records; it may be sent from once the required ones are found."""
    checked = perform(lambda desk: desk.administration.verify_domain(account, domain, vouched=vouched))
    findings = [] if checked.judgement is None else [show.finding(one) for one in checked.judgement.findings]
    if as_json:
        show.write_json(
            {
                "name": checked.domain.name,
                "verified_at": checked.domain.verified_at,
                "missing_since": checked.domain.missing_since,
                "vouched": checked.domain.is_vouched_for,
                "findings": findings,
            }
        )
    else:
        _write_verification(checked)
    if checked.domain.verified_at is None:
        raise typer.Exit(1)


@domain.command("list")
def list_(
    account: AccountGiven,
    records: Annotated[bool, typer.Option("--records", help="Show the DNS records to publish, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show an account's domains."""
    views = perform(lambda desk: desk.administration.list_domains(account))
    if as_json:
        return show.write_json([show.domain(view) for view in views])
    if not views:
        return show.write_line("The account has no domains yet: add one with `posthouse domain add`.")
    show.write_table(
        [show.domain(view) for view in views],
        ("name", "verified_at", "vouched", "checked_at", "missing_since"),
    )
    if records:
        for view in views:
            _write_records(view)
    return None


def _write_records(view: "DomainView") -> None:
    for record in view.records.all:
        show.write_line(f"\nTXT    {record.name}{_note(record)}\nvalue  {record.value}")


def _note(record: "Record") -> str:
    return "" if record.is_required else "  (recommended)"


def _write_verification(checked: "Verification") -> None:
    row = checked.domain
    for finding in checked.judgement.findings if checked.judgement else ():
        show.write_line(f"{finding.result:<8} TXT {finding.record.name}{_note(finding.record)}")
        if finding.advice:
            show.write_line(f"  expected  {finding.record.value}")
            for value in finding.found:
                show.write_line(f"  found     {value}")
            show.write_line(f"  {finding.advice}")
    if row.verified_at is None:
        show.write_line(f"{row.name} is not verified.")
    elif row.is_vouched_for:
        show.write_line(f"{row.name} is verified: an operator vouches for it.")
    elif row.missing_since is not None:
        show.write_line(
            f"{row.name} is still verified, but falls back after 7 days without its records "
            f"(missing since {show.text(row.missing_since)})."
        )
    else:
        show.write_line(f"{row.name} is verified.")
