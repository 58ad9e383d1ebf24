"""A sender's domain: which records prove it, what a DNS lookup means, and how long a proof lasts."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules.domain import (
    NoTxtRecord,
    RecordResult,
    TxtAnswer,
    TxtUnknown,
    TxtValues,
    after_check,
    check_records,
    dns_host,
    ed25519_selector,
    records,
    zones,
)

WANTED = records("example.com", "token123", "ph1", "MIIBKEY")
TOKEN = TxtValues(("posthouse-verification=token123",))
KEY = TxtValues(("v=DKIM1; k=rsa; p=MIIBKEY",))
BOTH = records("example.com", "token123", "ph1", "MIIBKEY", "pe1", "32BYTES=")
ED25519 = TxtValues(("v=DKIM1; k=ed25519; p=32BYTES=",))
NOW = datetime(2026, 11, 15, tzinfo=UTC)
DAY = timedelta(days=1)


def test_the_records_are_below_the_domain() -> None:
    assert [(record.name, record.value, record.is_required) for record in BOTH.all] == [
        ("_posthouse.example.com", "posthouse-verification=token123", True),
        ("ph1._domainkey.example.com", "v=DKIM1; k=rsa; p=MIIBKEY", True),
        ("pe1._domainkey.example.com", "v=DKIM1; k=ed25519; p=32BYTES=", False),
    ]
    assert WANTED.all == BOTH.all[:2] == (WANTED.ownership, WANTED.dkim)
    assert [ed25519_selector(name) for name in ("ph1", "other")] == ["pe1", "peother"]


def test_both_records_verify_the_domain() -> None:
    judgement = check_records(WANTED, TOKEN, KEY)
    assert judgement.result is RecordResult.FOUND
    assert [finding.advice for finding in judgement.checks] == ["", ""]


@pytest.mark.parametrize(
    ("answer", "result", "is_published", "advice"),
    [
        (ED25519, RecordResult.FOUND, True, ""),
        (TxtValues(("v=DKIM1; p=32BYTES=",)), RecordResult.MISSING, False, "exactly as shown"),
        (TxtValues(("v=DKIM1; k=rsa; p=32BYTES=",)), RecordResult.MISSING, False, "exactly as shown"),
        (TxtValues(("v=DKIM1; k=ed25519; p=",)), RecordResult.MISSING, False, "not this one"),
        (NoTxtRecord(), RecordResult.MISSING, False, "No TXT record"),
        (TxtUnknown("time-out"), RecordResult.UNKNOWN, None, "no usable answer"),
    ],
)
def test_the_ed25519_record_is_checked_but_not_needed(
    answer: TxtAnswer, result: RecordResult, is_published: bool | None, advice: str
) -> None:
    judgement = check_records(BOTH, TOKEN, KEY, answer)
    assert judgement.result is RecordResult.FOUND
    assert judgement.ed25519 is not None
    assert judgement.ed25519.result is result
    assert advice in judgement.ed25519.advice
    assert ("recommended, not required" in judgement.ed25519.advice) is bool(advice)
    for was_published in (True, False):
        now_published = was_published if is_published is None else is_published
        assert judgement.is_ed25519_published(was_published) is now_published
    assert check_records(BOTH, TOKEN, NoTxtRecord(), answer).result is RecordResult.MISSING


@pytest.mark.parametrize(
    ("ownership", "dkim", "expected"),
    [
        (TOKEN, NoTxtRecord(), RecordResult.MISSING),
        (NoTxtRecord(), KEY, RecordResult.MISSING),
        (TOKEN, TxtUnknown("time-out"), RecordResult.UNKNOWN),
        (TxtUnknown("time-out"), KEY, RecordResult.UNKNOWN),
        (TxtUnknown("time-out"), NoTxtRecord(), RecordResult.MISSING),
        (TxtUnknown("time-out"), TxtUnknown("time-out"), RecordResult.UNKNOWN),
    ],
)
def test_both_records_are_needed_and_no_answer_is_unknown(
    ownership: TxtAnswer, dkim: TxtAnswer, expected: RecordResult
) -> None:
    judgement = check_records(WANTED, ownership, dkim)
    assert judgement.result is expected
    assert all(finding.advice for finding in judgement.checks if finding.result is not RecordResult.FOUND)


@pytest.mark.parametrize(
    "texts",
    [
        ("v=spf1 -all", "posthouse-verification=token123"),
        ("posthouse-verification=of-another-account", "posthouse-verification=token123"),
        (" posthouse-verification=token123 ",),
    ],
)
def test_the_token_may_be_next_to_other_records(texts: tuple[str, ...]) -> None:
    assert check_records(WANTED, TxtValues(texts), KEY).result is RecordResult.FOUND


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("posthouse-verification=token124", "another value"),
        ("posthouse-verification=TOKEN123", "another value"),
        ("token123", "another value"),
        ('"posthouse-verification=token123"', "quotation marks"),
    ],
)
def test_a_wrong_token_is_explained(text: str, advice: str) -> None:
    finding = check_records(WANTED, TxtValues((text,)), KEY).ownership
    assert finding.result is RecordResult.MISSING
    assert finding.found == (text,)
    assert advice in finding.advice


@pytest.mark.parametrize(
    "text",
    [
        "v=DKIM1; k=rsa; p=MIIBKEY", "v=DKIM1;k=rsa;p=MIIBKEY;", "v=DKIM1; p=MIIBKEY; k=rsa; t=s", "p=MIIBKEY",
        "v=DKIM1; k=rsa; p=MII BKE\tY", "  v = DKIM1 ; k = rsa ; p = MIIBKEY ",
    ],
)  # fmt: skip
def test_the_key_counts_in_any_format(text: str) -> None:
    assert check_records(WANTED, TOKEN, TxtValues((text,))).result is RecordResult.FOUND


@pytest.mark.parametrize(
    ("texts", "advice"),
    [
        (("v=DKIM1; k=rsa; p=OTHER",), "not this one"),
        (("v=DKIM1; k=rsa; p=",), "not this one"),
        (("v=DKIM1; k=rsa; p=MIIB",), "cut short"),
        (("v=spf1 -all",), "no DKIM key"),
        (("v=DKIM1; p=MIIBKEY", "v=DKIM1; p=OTHER"), "several DKIM keys"),
        (("v=DKIM1\\; k=rsa\\; p=MIIBKEY",), "without backslashes"),
        (('"v=DKIM1; k=rsa; p=MIIBKEY"',), "quotation marks"),
        (('"v=DKIM1; k=rsa; p=MIIBKEY',), "quotation marks"),
        (('v=DKIM1; k=rsa; p=MIIBKEY"',), "quotation marks"),
        (("v=DKIM1; k=ed25519; p=MIIBKEY",), "exactly as shown"),
    ],
)
def test_a_wrong_key_is_explained(texts: tuple[str, ...], advice: str) -> None:
    finding = check_records(WANTED, TOKEN, TxtValues(texts)).dkim
    assert finding.result is RecordResult.MISSING
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("verified_at", "missing_since", "result", "expected"),
    [
        (None, None, RecordResult.FOUND, (NOW, None)),
        (None, None, RecordResult.MISSING, (None, None)),
        (None, None, RecordResult.UNKNOWN, (None, None)),
        (NOW - DAY, None, RecordResult.FOUND, (NOW - DAY, None)),
        (NOW - DAY, None, RecordResult.MISSING, (NOW - DAY, NOW)),
        (NOW - DAY, None, RecordResult.UNKNOWN, (NOW - DAY, None)),
        (NOW - 30 * DAY, NOW - DAY, RecordResult.FOUND, (NOW - 30 * DAY, None)),
        (NOW - 30 * DAY, NOW - 6 * DAY, RecordResult.MISSING, (NOW - 30 * DAY, NOW - 6 * DAY)),
        (NOW - 30 * DAY, NOW - 7 * DAY, RecordResult.MISSING, (None, None)),
        (NOW - 30 * DAY, NOW - 9 * DAY, RecordResult.UNKNOWN, (NOW - 30 * DAY, NOW - 9 * DAY)),
    ],
)
def test_a_domain_stays_verified_for_a_week_of_missing_records(
    verified_at: datetime | None,
    missing_since: datetime | None,
    result: RecordResult,
    expected: tuple[datetime | None, datetime | None],
) -> None:
    assert after_check(verified_at, missing_since, result, NOW) == expected


# The host of the domain's DNS


@pytest.mark.parametrize(
    ("name_servers", "host"),
    [
        (["ada.ns.cloudflare.com."], "Cloudflare"),
        (["NS-1.AWSDNS-01.CO.UK."], "Amazon Route 53"),
        (["ns1-04.azure-dns.com.", "ns2-04.azure-dns.net."], "Azure DNS"),
        (["helium.ns.hetzner.de."], "Hetzner"),
        (["ns1.example.net.", "ns2.cloudflare.com."], "Cloudflare"),
        (["ns1.notcloudflare.com."], "notcloudflare.com"),
        (["ns1.example.net."], "example.net"),
        (["<b>.example.net.", "."], None),
        (["x." * 40 + "example."], None),
        ([], None),
    ],
)
def test_a_host_is_known_by_its_name_servers(name_servers: list[str], host: str | None) -> None:
    assert dns_host(name_servers) == host


def test_a_zone_may_begin_at_few_names() -> None:
    assert list(zones("a.b.c.d.e.example.org")) == [
        "a.b.c.d.e.example.org", "b.c.d.e.example.org", "c.d.e.example.org", "d.e.example.org",
    ]  # fmt: skip
    assert list(zones("example.org")) == ["example.org"]
