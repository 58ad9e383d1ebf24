"""A webhook's URL: one public server over HTTPS, without two possible readings."""

import itertools
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from posthouse.rules.public_address import is_public
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.webhook_url import FORBIDDEN_PORTS, URL_CHARACTERS_MAX, WebhookTarget, check_url
from tests.support.bad_input import bad_input

OWN_DOMAINS = ("posthouse.example.net", "Bounces.Example.NET.")
OWN_ADDRESSES = (IPv4Address("8.8.8.8"), IPv6Address("2606:4700::8"))
INWARD = ("127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "172.16.0.1", "0.0.0.0", "100.100.100.200")
PUBLIC = ("1.1.1.1", "93.184.216.34")


def checked(url: str, ports: tuple[int, ...] = ()) -> WebhookTarget:
    return check_url(url, own_domains=OWN_DOMAINS, own_addresses=OWN_ADDRESSES, ports=ports)


# The corpus


def urls_with_userinfo() -> Iterator[str]:
    infos = ("a", "a:b", "a:", ":b", ":", "", "example.com", "example.com:443", "a%40b", "a@b", "https:", "1.1.1.1")
    for info, host in itertools.product(infos, ("example.com", "127.0.0.1", "[::1]")):
        yield f"https://{info}@{host}/"
        yield f"https://{info}@{host}"
    yield "https://example.com\\@127.0.0.1/"
    yield "https://example.com%40127.0.0.1/"


def numbers_of(address: str) -> Iterator[str]:
    """One IPv4 address, as lenient readers take it."""
    a, b, c, d = map(int, address.split("."))
    whole, three, two = int(IPv4Address(address)), b << 16 | c << 8 | d, c << 8 | d
    yield from (f"{whole}", f"0x{whole:x}", f"0X{whole:X}", f"0{whole:o}", f"0x{whole:012x}", f"{whole}.")
    yield from (f"{a}.{three}", f"{a}.{b}.{two}", f"0x{a:x}.{three}", f"{a}.0x{three:x}", f"{a}.{b}.0x{two:x}")
    yield from (f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"{a}.{b}.{c}.0x{d:x}")
    yield from (f"{a:03d}.{b:03d}.{c:03d}.{d:03d}", f"00{a}.{b}.{c}.{d}", f"{a}.{b}.{c}.0{d}", f"{a}.{b}.{c}.{d}.")
    yield from (
        f"{a}.{b}.{c}.{d}.{d}", f"{a}.{b}.{c}", f"{a}..{b}.{c}.{d}", f"{a + 256}.{b}.{c}.{d}", f"x.{a}", f"x.0x{d:x}",
    )  # fmt: skip
    yield from (
        f"{a}.{b}.{c}.{d}%00", f"{a}%2e{b}%2e{c}%2e{d}", f"+{a}.{b}.{c}.{d}", f"{a}.{b}.{c}.-{d}", f"{whole}.0x",
    )  # fmt: skip


def urls_with_numbers() -> Iterator[str]:
    for address in (*INWARD, *PUBLIC):
        for number in numbers_of(address):
            yield f"https://{number}/"
    for address in INWARD:
        yield f"https://{address}/"
        yield f"https://{address}:443/events?a=b"
        yield f"HTTPS://{address}"


def urls_with_other_digits() -> Iterator[str]:
    for zero in ("\uff10", "\u0660", "\u06f0", "\u0966", "\u09e6", "\U0001d7ce", "\U0001d7f6", "\u2080"):
        table = {ord(str(digit)): chr(ord(zero) + digit) for digit in range(10)}
        for address in (*INWARD[:4], PUBLIC[0]):
            yield f"https://{address.translate(table)}/"
    circled = {ord("0"): "\u24ea"} | {ord(str(digit)): chr(0x245F + digit) for digit in range(1, 10)}
    for dot in ("\u3002", "\uff0e", "\uff61", "\u2024", "\ufe52", "\u00b7", "\u0701"):
        for host in ("127.0.0.1", "10.0.0.1", "1.1.1.1", "example.com", "localhost.localdomain", "169.254.169.254"):
            yield f"https://{host.replace('.', dot)}/"
    for address in INWARD:
        yield f"https://{address.translate(circled)}/"
    yield from (
        "https://ｌｏｃａｌｈｏｓｔ/", "https://ⓛocalhost/", "https://ⓔⓧⓐⓜⓟⓛⓔ.com/", "https://exam\u00adple.com/",
    )  # fmt: skip
    yield from ("https://exam\u200bple.com/", "https://exam\u2060ple.com/", "https://\u202eexample.com/")
    yield from ("https://example.com\u2044@x/", "https://example\u2025com/", "https://ⅷ.com/", "https://℡.com/")
    yield from ("https://example.com\uff0fpath/", "https://example.com\uff1a443/", "https://a\u0338.com\u2215/")
    yield from ("https://example.com／", "https://example.com？a", "https://example.com＃", "https://xn--.com/")
    yield from ("https://xn--a.com/", "https://xn--abc\u00fc.com/", "https://ab--cd.com/", "https://xn--0.com/")


def urls_with_ipv6() -> Iterator[str]:
    for address in (*INWARD, *PUBLIC):
        four = int(IPv4Address(address))
        disguises = {
            "mapped": 0xFFFF << 32 | four,
            "compatible": four,
            "translated": 0xFFFF0000 << 16 << 16 | four,
            "nat64": 0x64FF9B << 96 | four,
            "local nat64": 0x64FF9B0001 << 80 | four,
            "6to4": 0x2002 << 112 | four << 80 | 1,
            "teredo": 0x20010000 << 96 | four << 64 | (~four & 0xFFFFFFFF),
            "isatap, link-local": 0xFE80 << 112 | 0x5EFE << 32 | four,
        }
        for disguise in map(IPv6Address, disguises.values()):
            yield f"https://[{disguise.compressed}]/"
            yield f"https://[{disguise.exploded.upper()}]:443/"
        yield from (f"https://[::ffff:{address}]/", f"https://[::{address}]/", f"https://[64:ff9b::{address}]/")
        yield from (f"https://[{address}]/", f"https://[0:0:0:0:0:FFFF:{address}]")
    for special in ("::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1",
                    "2001:2::1", "2001:10::1", "2001:20::1", "3fff::1", "5f00::1", "4000::1",
                    "2620:4f:8000::1"):  # fmt: skip
        yield f"https://[{special}]/"
        yield f"https://[{special}]:443"
        yield f"https://[{special.upper()}%25eth0]/"
        yield f"https://{special}/"
    for zone in ("%eth0", "%25eth0", "%1", "%", "%25"):
        yield f"https://[2606:4700::1111{zone}]/"
        yield f"https://[fe80::1{zone}]/"
    yield from ("https://[2606:4700::1111/", "https://2606:4700::1111]/", "https://[]/", "https://[example.com]/")
    yield from ("https://[2606:4700::1111]x/", "https://[[2606:4700::1111]]/", "https://[v1.x]/", "https://[1.1.1.1]/")
    yield from ("https://x[2606:4700::1111]/", "https://[2606:4700::1111]443/", "https://[:::1]/", "https://[1::1::1]/")
    yield from ("https://[２606:4700::1111]/", "https://[2606:4700::11111]/", "https://[2606:4700::1111 ]/")


def urls_with_private_names() -> Iterator[str]:
    names = (
        "localhost", "LOCALHOST", "LocalHost", "localhost.", "localhost..", "localhost.localdomain", "foo.localhost",
        "foo.LocalHost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "broadcasthost", "intranet", "a",
        "example", "com", "printer.local", "Printer.LOCAL", "nas.lan", "router.home", "router.home.arpa", "x.corp",
        "x.internal", "x.Internal", "db.private", "x.intranet", "x.test", "x.example", "x.invalid", "x.onion", "x.alt",
        "x.localdomain", "x.mail", "1.0.0.127.in-addr.arpa", "kubernetes.default.svc", "api.default.svc.cluster.local",
        "metadata", "metadata.google.internal", "Metadata.Google.Internal", "metadata.goog", "METADATA.GOOG",
        "metadata.google.internal.", "instance-data", "instance-data.ec2.internal", "metadata.azure.internal",
        "metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net", "rancher-metadata",
        "posthouse.example.net", "PostHouse.Example.Net", "api.posthouse.example.net", "a.b.posthouse.example.net",
        "posthouse.example.net.", "bounces.example.net", "x.bounces.example.net", "8.8.8.8", "[2606:4700::8]",
        "[2606:4700:0:0:0:0:0:8]",
    )  # fmt: skip
    for name in names:
        yield f"https://{name}/"
        yield f"https://{name}:443/events"
        yield f"HTTPS://{name}?a=b"


def urls_with_broken_names() -> Iterator[str]:
    names = (
        "", ".", "..", ".example.com", "example..com", "example.com.", "example.com..", "-example.com", "example-.com",
        "exa_mple.com", "*.example.com", "exam!ple.com", "exam$ple.com", "exam%70le.com", "%65xample.com",
        "exam'ple.com",
        '"example.com"', "<example.com>", "{host}", "$HOST", "example.com,example.org", "example.com;a", "a=b.com",
        "example.com&x", "example.com(x)", f"{'a' * 64}.com", f"{'a.' * 127}com", "example.c|m", "example.com^",
        "`id`.com",
        "example.com~", "example.com+x", "example.1", "example.0x1f", "example.0x", "1.2.3.4.5.6.7",
    )  # fmt: skip
    for name in names:
        yield f"https://{name}/events"
        yield f"https://{name}"


def urls_with_control_characters() -> Iterator[str]:
    for code in (*range(0x21), 0x7F, *range(0x80, 0xA1), 0x2028, 0x2029, 0xFEFF, 0x3000, 0x200E):
        yield f"https://example.com/{chr(code)}"
        yield f"https://exam{chr(code)}ple.com/"
        yield f"{chr(code)}https://example.com/"
    yield "https://example.com/\r\nHost: 127.0.0.1"
    yield "https://example.com/ HTTP/1.1\r\nX: y"
    yield "https://example.com\t:443/"
    yield "ht\ntps://example.com/"


def urls_with_odd_ports() -> Iterator[str]:
    ports = (
        "", "0", "22", "25", "53", "465", "587", "3306", "5432", "6379",
        "0443", "00443", "+443", "-443", "443 ", " 443", "4 43", "443a",
        "x",
        "0x1bb", "443.0", "4e2", "65536", "66000", "65979", "99999", "999999999999999", "４４３", "٤٤٣",
        "443:443",
        ":443", "443:", "%34%34%33", "443@x", "443\\",
    )  # fmt: skip
    for port in ports:
        yield f"https://example.com:{port}/events"
        yield f"https://[2606:4700::1111]:{port}"


def urls_with_other_schemes() -> Iterator[str]:
    for scheme in ("http", "HTTP", "hTTp", "ftp", "file", "ws", "wss", "gopher", "dict", "ldap", "data", "javascript",
                   "jar", "https+unix", "unix", "smtp", "httpss", "ttps", "shttps", "view-source:https", "url:https",
                   "https:https", "ｈttps", "httpſ"):  # fmt: skip
        yield f"{scheme}://example.com/"
    yield from ("", "/", "//", "//example.com/", "example.com", "example.com/events", "www.example.com:443", "https")
    yield from ("https:", "https:/", "https://", "https:///", "https:////example.com/", "https:///example.com/")
    yield from ("https:/example.com/", "https:example.com", "https:\\\\example.com\\", "https:/\\example.com/")
    yield from ("https//example.com/", "https ://example.com/", ":https://example.com/", "https://?a", "https://#a")
    yield from ("https://:443/", "https://@/", "https://:@/", "https://[/", "https://]/", "https://%/")


def urls_with_odd_rests() -> Iterator[str]:
    for rest in ("#", "/#", "/#a", "?a#b", "#@example.com/", "/a#/b"):
        yield f"https://example.com{rest}"
    for rest in ("%", "%4", "%zz", "%4g", "%u0041", "a%", *'"<>^`{}|\\ü💌[]'):
        yield f"https://example.com/{rest}"
        if rest not in "[]":
            yield f"https://example.com/?{rest}"
    yield "https://example.com\\events"
    yield "https://example.com/" + "a" * URL_CHARACTERS_MAX
    yield "https://example.com/\ud800"
    yield "https://\udfff.com/"


CORPUS = sorted(
    {
        *urls_with_userinfo(), *urls_with_numbers(), *urls_with_other_digits(), *urls_with_ipv6(),
        *urls_with_private_names(), *urls_with_broken_names(), *urls_with_control_characters(),
        *urls_with_odd_ports(), *urls_with_other_schemes(), *urls_with_odd_rests(),
    }
)  # fmt: skip


@pytest.mark.rule("HOOK-06")
def test_every_url_of_the_corpus_is_refused() -> None:
    for url in CORPUS:
        with pytest.raises(Refusal) as caught:
            checked(url)
        code, text = caught.value.code, caught.value.text
        assert code is Code.INVALID_REQUEST, url
        assert text.startswith("`url` ") and text.endswith(".") and text.isprintable() and len(text) < 500, url  # noqa: PT018


# What is accepted, and how it is saved

ACCEPTED = [
    ("https://example.com", "https://example.com/"),
    ("https://example.com/events", "https://example.com/events"),
    ("https://example.com:443/events", "https://example.com/events"),
    ("https://example.com:8443/events", "https://example.com:8443/events"),
    ("https://example.com:80/", "https://example.com:80/"),
    ("https://example.com:1", "https://example.com:1/"),
    ("https://[2606:4700::1111]:65535/", "https://[2606:4700::1111]:65535/"),
    ("HTTPS://Example.COM/Events", "https://example.com/Events"),
    ("https://hooks.a-b.example.co.uk/a/b/c", "https://hooks.a-b.example.co.uk/a/b/c"),
    ("https://example.com?a=b", "https://example.com/?a=b"),
    ("https://example.com/?", "https://example.com/?"),
    ("https://example.com/a?b=c&d=e&f", "https://example.com/a?b=c&d=e&f"),
    ("https://example.com/a?b[]=c&b[]=d", "https://example.com/a?b[]=c&b[]=d"),
    ("https://example.com/a?next=https://127.0.0.1/", "https://example.com/a?next=https://127.0.0.1/"),
    ("https://example.com/?a@b", "https://example.com/?a@b"),
    ("https://example.com/@user/events", "https://example.com/@user/events"),
    ("https://example.com/a:b;c=d,e!$&'()*+", "https://example.com/a:b;c=d,e!$&'()*+"),
    ("https://example.com/%C3%BC%20%2F", "https://example.com/%C3%BC%20%2F"),
    ("https://example.com/a//b/../c/./", "https://example.com/a//b/../c/./"),
    ("https://example.com/~user/-_.", "https://example.com/~user/-_."),
    ("https://example.com/?a?b/c", "https://example.com/?a?b/c"),
    ("https://1.1.1.1/", "https://1.1.1.1/"),
    ("https://93.184.216.34:443/events", "https://93.184.216.34/events"),
    ("https://[2606:4700::1111]/", "https://[2606:4700::1111]/"),
    ("https://[2606:4700:0:0:0:0:0:1111]:443/a", "https://[2606:4700::1111]/a"),
    ("https://[2A00:1450:4001:80E::2003]", "https://[2a00:1450:4001:80e::2003]/"),
    ("https://bücher.de/", "https://xn--bcher-kva.de/"),
    ("https://BÜCHER.de/", "https://xn--bcher-kva.de/"),
    ("https://xn--bcher-kva.de/", "https://xn--bcher-kva.de/"),
    ("https://straße.de/", "https://xn--strae-oqa.de/"),
    ("https://例え.jp/", "https://xn--r8jz45g.jp/"),
    ("https://пример.рф/", "https://xn--e1afmkfd.xn--p1ai/"),
    ("https://1password.com/", "https://1password.com/"),
    ("https://0x7f.com/", "https://0x7f.com/"),
    ("https://127.0.0.1.example.com/", "https://127.0.0.1.example.com/"),
    ("https://localhost.example.com/", "https://localhost.example.com/"),
    ("https://notposthouse.example.net/", "https://notposthouse.example.net/"),
    ("https://example.net/", "https://example.net/"),
    ("https://my.locals/", "https://my.locals/"),
    ("https://a.b/", "https://a.b/"),
    (f"https://{'a' * 63}.com/", f"https://{'a' * 63}.com/"),
    ("https://abcdef0123.execute-api.eu-west-1.amazonaws.com/prod", None),
]


@pytest.mark.parametrize(("url", "saved"), ACCEPTED)
def test_a_public_url_is_accepted_and_normalised(url: str, saved: str | None) -> None:
    target = checked(url)
    assert target.url == (saved or url)
    assert target.url == f"https://{target.authority}{target.path_and_query}"
    assert checked(target.url) == target


def test_the_parts_are_returned() -> None:
    assert checked("https://Example.com:8443?a=b", (443, 8443)) == WebhookTarget(
        "example.com", 8443, "/?a=b", "https://example.com:8443/?a=b"
    )
    target = checked("https://[2606:4700::1111]:8443/", (443, 8443))
    assert (target.host, target.authority) == ("2606:4700::1111", "[2606:4700::1111]:8443")
    assert target.address == IPv6Address("2606:4700::1111")
    assert checked("https://1.1.1.1/").address == IPv4Address("1.1.1.1")
    assert checked("https://example.com/").address is None


@pytest.mark.rule("HOOK-06")
def test_the_operator_may_list_the_ports_that_are_accepted() -> None:
    with pytest.raises(Refusal, match="use port 443 or 8443"):
        checked("https://example.com:80/", (8443, 443))
    with pytest.raises(Refusal, match="use port 8443"):
        checked("https://example.com/", (8443,))
    assert checked("https://example.com:25/", (25,)).port == 25


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("http://example.com/", "must begin with https://"),
        ("https://user:pass@example.com/", "leave it out; events are authenticated by their signature"),
        ("https://example.com/#a", "leave out the #"),
        ("https://example.com./", "leave the dot out"),
        ("https://localhost/", "single label"),
        ("https://printer.local/", "not public"),
        ("https://2130706433/", "four decimal numbers"),
        ("https://127.0.0.1/", "not public"),
        ("https://api.posthouse.example.net/", "this service itself"),
        ("https://example.com/ü", "percent-encode"),
        ("https://example.com:25/", "port 25, which belongs to another service: use 443"),
        ("https://example.com:70000/", "not from 1 to 65535"),
        (" https://example.com/", "white space"),
    ],
)
def test_a_refusal_says_what_to_do(url: str, advice: str) -> None:
    with pytest.raises(Refusal) as refused:
        checked(url)
    assert advice in refused.value.text


# Anything

_parts = some.one_of(
    some.text(max_size=20),
    some.sampled_from(
        ["https://", "example.com", "127.0.0.1", "[", "]", "::1", "@", ":", "443", "/", "?", "#", "%", "."]
    ),
    some.ip_addresses().map(str),
)


@bad_input("Webhook URLs", 1_000)
@given(some.lists(_parts, max_size=8).map("".join))
@example("https://[2606:4700::1111]")
def test_any_url_is_refused_or_a_public_target(text: str) -> None:
    for url in (text, f"https://{text}"):
        try:
            target = checked(url)
        except Refusal:
            continue
        assert target.url.isascii()
        assert target.url.isprintable()
        assert not set(target.url) & set(' #\\@"<>') or "@" not in target.authority
        assert 1 <= target.port <= 65_535
        assert target.port not in FORBIDDEN_PORTS
        assert target.path_and_query.startswith("/")
        assert target.address is None or is_public(target.address, OWN_ADDRESSES)
        assert checked(target.url) == target


@bad_input("Webhook URLs", 500)
@given(some.ip_addresses())
def test_a_literal_address_is_checked_like_any_other(address: IPv4Address | IPv6Address) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    try:
        target = checked(f"https://{host}/")
    except Refusal:
        assert not is_public(address, OWN_ADDRESSES)
    else:
        assert ip_address(target.host) == address
        assert is_public(address, OWN_ADDRESSES)
