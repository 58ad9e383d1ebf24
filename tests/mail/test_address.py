"""An address is read strictly, in linear time, and what is accepted can't smuggle anything."""

import string

import pytest
from email_validator import EmailNotValidError, validate_email
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from posthouse.mail.address import AddressError, Mailbox, parse_domain, parse_mailbox
from tests.support.bad_input import bad_input, inputs
from tests.support.processor_time import processor_seconds

ATEXT = string.ascii_letters + string.digits + "!#$%&'*+/=?^_`{|}~-"

ACCEPTED = {
    "a@b.c1": Mailbox("", "a", "b.c1"),
    "ada@example.com": Mailbox("", "ada", "example.com"),
    "Ada.Lovelace+tag@Mail.Example.COM": Mailbox("", "Ada.Lovelace+tag", "mail.example.com"),
    "!#$%&'*+/=?^_`{|}~-@example.com": Mailbox("", "!#$%&'*+/=?^_`{|}~-", "example.com"),
    "a@b.c": Mailbox("", "a", "b.c"),
    "a@1.example": Mailbox("", "a", "1.example"),
    "a@1-1.b2": Mailbox("", "a", "1-1.b2"),
    "<ada@example.com>": Mailbox("", "ada", "example.com"),
    '"" <ada@example.com>': Mailbox("", "ada", "example.com"),
    "Ada <ada@example.com>": Mailbox("Ada", "ada", "example.com"),
    "Ada<ada@example.com>": Mailbox("Ada", "ada", "example.com"),
    "Ada   Lovelace   <ada@example.com>": Mailbox("Ada Lovelace", "ada", "example.com"),
    "Acme Inc. <ada@example.com>": Mailbox("Acme Inc.", "ada", "example.com"),
    "O'Brien & Søn <ada@example.com>": Mailbox("O'Brien & Søn", "ada", "example.com"),
    "山田 太郎 <ada@example.com>": Mailbox("山田 太郎", "ada", "example.com"),
    "👩‍💻 <ada@example.com>": Mailbox("👩‍💻", "ada", "example.com"),
    '"Lovelace, Ada" <ada@example.com>': Mailbox("Lovelace, Ada", "ada", "example.com"),
    r'"Ada \"Countess\" \\ L" <ada@example.com>': Mailbox(r'Ada "Countess" \ L', "ada", "example.com"),
    'Ada "the Countess" Lovelace <a@b.example>': Mailbox("Ada the Countess Lovelace", "a", "b.example"),
    '"ada@other.example <x@y.example>" <a@b.example>': Mailbox("ada@other.example <x@y.example>", "a", "b.example"),
    '" spaced " <a@b.example>': Mailbox(" spaced ", "a", "b.example"),
    '"=?utf-8?q?a=0D=0ABcc:_x?=" <a@b.example>': Mailbox("=?utf-8?q?a=0D=0ABcc:_x?=", "a", "b.example"),
    "ada@müller.example": Mailbox("", "ada", "xn--mller-kva.example"),
    "ada@MÜLLER.example": Mailbox("", "ada", "xn--mller-kva.example"),
    "ada@xn--mller-kva.example": Mailbox("", "ada", "xn--mller-kva.example"),
    "ada@XN--MLLER-KVA.example": Mailbox("", "ada", "xn--mller-kva.example"),
    "ada@straße.example": Mailbox("", "ada", "xn--strae-oqa.example"),
    "ada@例え。テスト": Mailbox("", "ada", "xn--r8jz45g.xn--zckzah"),
    "ada@ｅｘａｍｐｌｅ．com": Mailbox("", "ada", "example.com"),
    f"{'a' * 64}@example.com": Mailbox("", "a" * 64, "example.com"),
    f"a@{'b' * 63}.example": Mailbox("", "a", "b" * 63 + ".example"),
    f"a@{'b.' * 125}cc": Mailbox("", "a", "b." * 125 + "cc"),
    f"{'N' * 256} <a@b.example>": Mailbox("N" * 256, "a", "b.example"),
    f'"{chr(92) + chr(34)}{"N" * 255}" <a@b.example>': Mailbox('"' + "N" * 255, "a", "b.example"),
}

REFUSED = {
    "a.@example.net": "dot",
    "": "is empty",
    "ada": "has no @",
    "@example.com": "nothing before the @",
    "ada@": "has no domain",
    "ada@example": "single label",
    "ada@localhost": "single label",
    "ada@éxample": "single label",
    " ada@example.com": "white space",
    "ada@example.com ": "white space",
    "ada @example.com": "holds a space",
    "ada@ example.com": "domain",
    "ada@exam ple.com": "domain",
    "Ada < ada@example.com>": "holds a space",
    "Ada <ada@example.com >": "domain",
    "Ada <>": "has no @",
    "Ada <ada@example.com": "misplaced angle brackets",
    "ada@example.com>": "without a <",
    "Ada <ada@example.com> Lovelace": "misplaced angle brackets",
    "<<ada@example.com>>": "double quotes",
    "<ada@example.com><eve@example.com>": "double quotes",
    "ada@example.com <eve@example.com>": "double quotes",
    "=?utf-8?q?a=0D=0ABcc:_x?= <a@b.example>": "double quotes",
    "Lovelace, Ada <ada@example.com>": "double quotes",
    '"Ada <ada@example.com>': "double quotes",
    '"Ada\\" <ada@example.com>': "double quotes",
    'Ada" <ada@example.com>': "double quotes",
    "Ada (Countess) <ada@example.com>": "double quotes",
    "ada@example.com, eve@example.com": "more than one address",
    "ada@example.com,eve@example.com": "more than one address",
    "ada@example.com; eve@example.com": "more than one address",
    "ada@example.com eve@example.com": "more than one @",
    "friends: ada@example.com;": "is a group",
    "friends:;": "has no @",
    "<@relay.example:ada@example.com>": "source route",
    "ada(comment)@example.com": "comment",
    "ada@example.com (Ada)": "comment",
    '"ada lovelace"@example.com': "quoted local part",
    '"ada"@example.com': "quoted local part",
    "ada@[192.0.2.1]": "address literal",
    "ada@[IPv6:2001:db8::1]": "address literal",
    "ada@192.0.2.1": "not a number",
    "ada@example.123": "not a number",
    "adá@example.com": "outside ASCII",
    "ada＠example.com": "has no @",
    ".ada@example.com": "has a dot",
    "ada.@example.com": "has a dot",
    "a..da@example.com": "has a dot",
    "a\\b@example.com": "has a character",
    "ada@.example.com": "domain",
    "ada@example..com": "domain",
    "ada@example.com.": "domain",
    "ada@-example.com": "domain",
    "ada@example-.com": "domain",
    "ada@exa_mple.com": "domain",
    "ada@ab--cd.example": "domain",
    "ada@xn--a.example": "domain",
    # Another spelling in Punycode of what xn--bbk stands for.
    "ada@xn---bbk.example": "domain",
    "ada@xn--example.com": "domain",
    "ada@℀.example": "domain",
    f"{'a' * 65}@example.com": "more than 64 characters",
    f"a@{'b' * 64}.example": "domain",
    f"aa@{'b.' * 125}cc": "longer than 254",
    f"a@{'b.' * 126}cc": "longer than 253",
    f"{'N' * 257} <a@b.example>": "longer than 256",
    "x" * 2_000: "longer than 1024",
}

CONTROLS = ["\r", "\n", "\0", "\t", "\x0b", "\x1b", "\x7f", "\x85", "\x9f", "\u2028", "\u2029", "\ud800", "\udfff"]


@pytest.mark.parametrize(("text", "mailbox"), ACCEPTED.items())
def test_a_bare_or_named_address_is_accepted(text: str, mailbox: Mailbox) -> None:
    assert parse_mailbox(text) == mailbox


@pytest.mark.rule("ADDR-03", "ADDR-09", "ADDR-10")
@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_anything_else_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        parse_mailbox(text)


@pytest.mark.rule("ADDR-08")
@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
@pytest.mark.parametrize(
    "pattern",
    [
        "{}ada@example.com", "a{}da@example.com", "ada@exa{}mple.com", "ada@example.com{}",
        "A{}da <ada@example.com>", '"A{}da" <ada@example.com>', "Ada <ada@example.com>{}", "Ada <a{}@example.com>",
    ],
)  # fmt: skip
def test_a_control_character_is_refused_anywhere(pattern: str, control: str) -> None:
    with pytest.raises(AddressError, match="control character"):
        parse_mailbox(pattern.format(control))


@pytest.mark.parametrize(
    ("text", "domain"),
    {
        "example.com": "example.com",
        "Mail.EXAMPLE.com": "mail.example.com",
        "müller.example": "xn--mller-kva.example",
        "bücher。example": "xn--bcher-kva.example",
    }.items(),
)
def test_a_domain_is_read_into_lower_case_a_labels(text: str, domain: str) -> None:
    assert parse_domain(text) == domain


@pytest.mark.parametrize(
    "text",
    [
        "", "example", "example.com.", ".example.com", "a b.com", "ada@example.com", "exa_mple.com", "1.2.3.4",
        "[1.2.3.4]", "example.com\n", "example.com\0", "ex\u2028ample.com", "a" * 64 + ".com", "a." * 500 + "com",
        "*.example.com", "https://example.com", "example.com/x", "exa<mple.com", "xn--.com", "\ud800.com",
    ],
    ids=lambda text: ascii(text)[:24],
)  # fmt: skip
def test_a_domain_that_dns_does_not_allow_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_domain(text)


@pytest.mark.rule("ADDR-05")
def test_two_spellings_of_an_address_have_the_same_key() -> None:
    first, second = parse_mailbox("Ada@Example.com"), parse_mailbox("A <aDA@EXAMPLE.COM>")
    assert first.key == second.key == "ada@example.com"
    assert (first.address, second.address) == ("Ada@example.com", "aDA@example.com")


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10**6, "a." * 10**6 + "@b.c", "a@" + "b." * 10**6 + "-", "a@" + "1." * 10**6, '"' * 10**6 + "<a@b.c>",
        '"' + "\\a" * 500 + "<a@b.c>", "a " * 400 + "(<a@b.c>", "a@" + "é" * 250 + ".c", "a@" + "xn--" * 60 + ".c",
        "a@" + "é." * 120 + "1", "a@" + "\u0301" * 250, "<" * 500 + ">" * 500,
    ],
    ids=lambda text: f"{ascii(text)[:12]}-{len(text)}",
)  # fmt: skip
def test_hostile_length_and_nesting_is_refused_quickly(text: str) -> None:
    def parsed() -> None:
        with pytest.raises(AddressError):
            parse_mailbox(text)

    assert processor_seconds(parsed, enough=0.25) < 0.25


def is_valid_elsewhere(address: str) -> bool:
    """The opinion of email-validator, without DNS and without its list of special-use names."""
    try:
        validate_email(
            address,
            check_deliverability=False,
            globally_deliverable=False,
            test_environment=True,
            allow_smtputf8=False,
            strict=True,
        )
    except EmailNotValidError as error:
        # It refuses names such as .example and .invalid, which documentation and test mode need.
        return "special-use" in str(error)
    return True


def assert_harmless(mailbox: Mailbox) -> None:
    address = mailbox.address
    assert address.isascii()
    assert address.isprintable()
    assert not set(address) & set(' <>()[]",:;\\')
    assert address.count("@") == 1
    assert len(address) <= 254
    assert mailbox.domain == mailbox.domain.lower()
    assert not any(character in mailbox.name for character in CONTROLS)


letters = st.sampled_from("aZ09éßñя中。．xn--_ ")
near_addresses = st.builds(
    "{}{}{}".format,
    st.text(st.sampled_from("aB3.+'-\"(),:;<>\\ é\0\r\n@"), max_size=12),
    st.sampled_from(["@", "@", "@", "＠", " @", ""]),
    st.lists(st.text(letters, max_size=8), max_size=4).map(".".join)
    | st.from_regex(r"[a-z0-9.-]{1,30}", fullmatch=True),
)
near_mailboxes = st.builds(
    "{}{}<{}>{}".format,
    st.text(st.sampled_from('ab.",\\()<>@:;é中\0\r\n\u2028'), max_size=10),
    st.sampled_from(["", " ", "  "]),
    near_addresses,
    st.sampled_from(["", "", "", " ", ">", ";", ", a@b.c"]),
)


@bad_input("Addresses", 1_000)
@given(near_addresses | near_mailboxes | st.text(max_size=40))
@example("a@xn--0.com")
@example("a@a\u200db.com")
def test_an_accepted_address_is_valid_for_email_validator(text: str) -> None:
    try:
        mailbox = parse_mailbox(text)
    except AddressError:
        return
    assert_harmless(mailbox)
    # IDNA allows the joiners in certain scripts; email-validator refuses all format characters.
    assume("\u200c" not in text and "\u200d" not in text)
    assert is_valid_elsewhere(mailbox.address)


atoms = st.text(st.sampled_from(ATEXT), min_size=1, max_size=20)
locals_ = st.lists(atoms, min_size=1, max_size=3).map(".".join)
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter(lambda label: label[2:4] != "--")
domains = st.tuples(st.lists(labels, min_size=1, max_size=3), st.sampled_from(["example", "com", "co", "x1"])).map(
    lambda parts: ".".join([*parts[0], parts[1]])
)
names = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029"), min_size=1, max_size=60
)


@settings(max_examples=inputs(600), deadline=None)
@given(locals_, domains, names)
def test_every_plain_address_is_accepted_with_any_name(local: str, domain: str, name: str) -> None:
    assert parse_mailbox(f"{local}@{domain}") == Mailbox("", local, domain)
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_mailbox(f'"{quoted}" <{local}@{domain}>') == Mailbox(name, local, domain)


@bad_input("Addresses", 600)
@given(st.lists(st.text(st.characters(), min_size=1, max_size=8), min_size=1, max_size=4).map(".".join))
def test_a_domain_is_either_refused_or_a_fixed_point(text: str) -> None:
    try:
        domain = parse_domain(text)
    except AddressError:
        return
    assert parse_domain(domain) == domain
    assert_harmless(Mailbox("", "a", domain))
