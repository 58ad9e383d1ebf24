"""The host of a domain's DNS, guessed from its name servers."""

import pytest

from posthouse.rules.domain import dns_host, zones


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
