"""Commands about sender domains."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform_for
from posthouse.cli.output import AccountGiven, AsJson
from posthouse.mail.reply import printable
from posthouse.rules.credential import OPERATOR

if TYPE_CHECKING:
    from posthouse.flows.account.domains import ShownRecord, Verification

domain = typer.Typer(no_args_is_help=True)

DomainGiven = Annotated[str, typer.Argument(metavar="DOMAIN", help="Such as example.com.")]


@domain.command("add")
def add(account: AccountGiven, domain: DomainGiven, as_json: AsJson = False) -> None:
    """Register a domain; prints the DNS records that its owner has to publish."""
    view = perform_for(account, lambda flows, at: flows.domains.add(at, domain, OPERATOR))
    if as_json:
        return output.write_json(output.domain(view))
    _write_records(view.lines)
    return output.write_line(
        "\nPublish them (the first two prove the domain, the others are recommended), "
        f"then run `posthouse domain verify {account!r} {view.domain.name}`."
    )


@domain.command("verify")
def verify(
    account: AccountGiven,
    domain: DomainGiven,
    vouched: Annotated[
        bool, typer.Option("--vouched", help="Vouch for the domain: no DNS record is required, now or later.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a domain's DNS records; mail may be sent from it once the required records are found."""
    checked = perform_for(account, lambda flows, at: flows.domains.verify(at, domain, OPERATOR, vouched=vouched))
    findings = [output.finding(line.finding) for line in _checked(checked) if line.finding is not None]
    if as_json:
        output.write_json(
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
    views = perform_for(account, lambda flows, at: flows.domains.all(at))
    if as_json:
        return output.write_json([output.domain(view) for view in views])
    if not views:
        return output.write_line("The account has no domains yet: add one with `posthouse domain add`.")
    output.write_table(
        [output.domain(view) for view in views],
        ("name", "verified_at", "vouched", "checked_at", "missing_since"),
    )
    if records:
        for view in views:
            _write_records(view.lines)
    return None


@domain.command("rotate")
def rotate(account: AccountGiven, domain: DomainGiven, as_json: AsJson = False) -> None:
    """Make new DKIM keys, which sign once their record is seen; prints the records to publish."""
    view = perform_for(account, lambda flows, at: flows.domains.rotate(at, domain, OPERATOR))
    if as_json:
        return output.write_json(output.domain(view))
    _write_records([line for line in view.lines if line.stage == "pending"])
    return output.write_line(
        "\nPublish them next to those of the present keys, which stay until a week after the new keys begin to sign: "
        f"within an hour, or with `posthouse domain verify {account!r} {view.domain.name}`."
    )


@domain.command("remove")
def remove(account: AccountGiven, domain: DomainGiven, as_json: AsJson = False) -> None:
    """Remove a domain and its keys; mail from it that is still queued goes out unsigned."""
    perform_for(account, lambda flows, at: flows.domains.remove(at, domain, OPERATOR))
    output.write_done(f"{domain} is removed.", {"removed": domain}, as_json=as_json)


def _write_records(lines: "Sequence[ShownRecord]") -> None:
    for line in lines:
        if line.record.value:
            output.write_line(f"\nTXT    {line.record.name}{_note(line)}\nvalue  {line.record.value}")


def _note(line: "ShownRecord") -> str:
    if line.stage != "active":
        return f"  ({line.stage})"
    return "" if line.record.is_required else "  (recommended)"


def _checked(checked: "Verification") -> "Sequence[ShownRecord]":
    """The records that DNS was asked for: none if the operator vouches."""
    return () if checked.judgement is None else checked.view.lines


def _write_verification(checked: "Verification") -> None:
    row = checked.domain
    for line in _checked(checked):
        if line.finding is None:
            continue
        output.write_line(f"{line.finding.result:<8} TXT {line.record.name}{_note(line)}")
        if line.advice:
            if line.record.value:
                output.write_line(f"  expected  {line.record.value}")
            for value in line.finding.found:
                output.write_line(f"  found     {printable(value)}")
            output.write_line(f"  {line.advice}")
    if row.verified_at is None:
        output.write_line(f"{row.name} is not verified.")
    elif row.is_vouched_for:
        output.write_line(f"{row.name} is verified: an operator vouches for it.")
    elif row.missing_since is not None:
        output.write_line(
            f"{row.name} is still verified, but falls back after 7 days without its records "
            f"(missing since {output.text(row.missing_since)})."
        )
    else:
        output.write_line(f"{row.name} is verified.")
