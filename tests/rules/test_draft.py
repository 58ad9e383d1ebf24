"""A draft keeps every rule that needs no account; a refusal names the field and the fix."""

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules import limits
from posthouse.rules.draft import RESERVED_HEADERS, AttachmentRequest, Draft, compose
from posthouse.rules.refusal import Code, Refusal
from tests.support.bad_input import bad_input, spoiled

CONTROLS = ["\r", "\n", "\r\nBcc: x@example.com", "\r\n folded", "\0", "\x07", "\x1b", "\x7f", "\x85", "\t"]
# That no header may have.
HEADER_NAMES = ["X A", "X:A", "", "Xé", *[f"X-{control}" for control in CONTROLS]]
# Of the header, only we write these.
RESERVED = [
    "From", "To", "Cc", "Bcc", "Subject", "Reply-To", "Sender", "Date", "Message-ID", "MIME-Version",
    "Content-Type", "Content-Transfer-Encoding", "Content-ID", "Content-Anything", "Return-Path", "Received",
    "Received-SPF", "DKIM-Signature", "DomainKey-Signature", "ARC-Seal", "ARC-Message-Signature",
    "ARC-Authentication-Results", "Authentication-Results", "Resent-From", "Resent-Bcc", "Resent-Anything",
    "Delivered-To", "Errors-To", "Bounces-To", "X-Service-Tag", "CFBL-Address", "CFBL-Feedback-ID",
    "TLS-Required",
]  # fmt: skip


def draft(**changes: Any) -> Draft:
    fields: dict[str, Any] = {"sender": "a@example.com", "to": ["b@example.com"], "subject": "Hi", "text": "x"}
    return compose(**(fields | changes))


def attachment(**changes: Any) -> AttachmentRequest:
    fields: dict[str, Any] = {"filename": "a.txt", "content": base64.b64encode(b"hello").decode()}
    return AttachmentRequest(**(fields | changes))


def refused(code: Code, naming: str, **changes: Any) -> None:
    with pytest.raises(Refusal) as caught:
        draft(**changes)
    assert caught.value.code is code
    assert naming in caught.value.text


@pytest.mark.rule("ADDR-05", "ADDR-06")
def test_recipients_are_unique_over_all_fields() -> None:
    made = draft(
        to=["Ada <Ada@Example.com>", "bob@example.com"],
        cc=["ADA@example.COM", "eve@bücher.example"],
        bcc=["bob@EXAMPLE.com", "Eve@xn--bcher-kva.example"],
    )
    assert [(recipient.field, recipient.email, recipient.destination) for recipient in made.recipients] == [
        ("to", "Ada@example.com", "example.com"),
        ("to", "bob@example.com", "example.com"),
        ("cc", "eve@xn--bcher-kva.example", "xn--bcher-kva.example"),
    ]


def test_request_fields_are_returned_as_given() -> None:
    made = draft(sender="Acme <A@Example.com>", to=["Ada <Ada@Example.com>"], reply_to="R <r@example.com>")
    assert made.request_fields.sender == "Acme <A@Example.com>"
    assert made.request_fields.to == ("Ada <Ada@Example.com>",)
    assert made.request_fields.reply_to == "R <r@example.com>"


@pytest.mark.rule("ADDR-07")
def test_fifty_unique_recipients_fit_and_the_fifty_first_does_not() -> None:
    many = [f"u{number}@example.com" for number in range(50)]
    assert len(draft(to=many, cc=many).recipients) == 50
    refused(Code.INVALID_REQUEST, "51", to=many, bcc=["u50@example.com"])


def test_a_million_addresses_are_refused_without_being_parsed() -> None:
    refused(Code.INVALID_REQUEST, "1000000", to=["not an address"] * 1_000_000)


@pytest.mark.rule(
    "ATT-02", "ATT-05", "ATT-06", "ATT-09", "HEAD-04", "HEAD-05", "HEAD-06", "HEAD-07", "HEAD-08", "HEAD-09", "HEAD-10",
    "SEND-07", "SEND-10", "SEND-12", "SEND-15", "TAG-02",
)  # fmt: skip
@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"to": []}, "`to`"),
        ({"sender": "nobody"}, "`from`"),
        ({"cc": ["fine@example.com", "a@b"]}, "`cc[1]`"),
        ({"reply_to": "a@example.com, b@example.com"}, "`reply_to`"),
        ({"subject": "x" * 501}, "501"),
        *[({"subject": given}, "`subject`") for given in (None, "", *[f"a{sign}b" for sign in (*CONTROLS, "\u2028")])],
        *[({"text": given}, "empty") for given in (None, "")],
        ({"text": "a\0b"}, "`text`"),
        ({"html": "a\0b"}, "`html`"),
        ({"template": "welcome"}, "`template`"),
        ({"variables": {}}, "`variables`"),
        ({"text": None, "template": "Not An Alias"}, "`template`"),
        ({"text": None, "template": "t", "variables": {str(n): "" for n in range(33)}}, "33"),
        ({"text": None, "template": "t", "variables": {"a": "x\0"}}, "`variables.a`"),
        ({"headers": {f"X-{number}": "" for number in range(51)}}, "51"),
        ({"headers": {"X" * 77: "b"}}, "77"),
        *[({"headers": {name: "b"}}, "header name") for name in HEADER_NAMES],
        *[({"headers": {"X-A": f"a{control}b"}}, "headers.X-A") for control in CONTROLS if control != "\t"],
        ({"headers": {"X-A": "é" * 500}}, "1000 bytes"),
        ({"headers": {"X-A": "b", "x-a": "c"}}, "'x-a'"),
        *[
            ({"headers": {name: "<é@example.com>"}}, f"headers.{name}")
            for name in ("References", "In-Reply-To", "List-Unsubscribe", "list-unsubscribe-post")
        ],
        ({"headers": {f"X-{number}": "y" * 990 for number in range(17)}}, "in all"),
        ({"tags": ["x"] * 21}, "21"),
        *[({"tags": [tag]}, "`tags`") for tag in ("", "x" * 129, *[f"a{control}b" for control in CONTROLS])],
        ({"attachments": [attachment()] * 21}, "21"),
        *[
            ({"attachments": [attachment(content=given)]}, "attachments[0].content")
            for given in ("####", "aGk", "aG-_", "aGé=")
        ],
        *[
            ({"attachments": [attachment(filename=given)]}, "attachments[0].filename")
            for given in ("a/b", "a\\b", "..", "", "x" * 256, *[f"a{control}b" for control in CONTROLS])
        ],
        *[
            ({"attachments": [attachment(content_id=given)]}, "attachments[0].content_id")
            for given in ("a b", "<logo>", "logo\r\nX: y", "lögo", "a/b", "x" * 129)
        ],
        ({"attachments": [attachment(content_id="a"), attachment(content_id="a")]}, "content_id"),
        *[
            ({"attachments": [attachment(content_type=given)]}, "attachments[0].content_type")
            for given in (
                "text", "text/", "/plain", "text/plain; charset", "text/plain; charset=", "te xt/plain",
                "text/plain; a=b\0", "text/plän", "text/plain/more", "text/plain,text/html",
            )
        ],
        ({"attachments": [attachment(content_type="multipart/mixed")]}, "multipart"),
        ({"attachments": [attachment(content_type="Message/RFC822")]}, "message"),
        ({"attachments": [attachment(content_type="text/plain\r\nBcc: x")]}, "attachments[0].content_type"),
        ({"attachments": [attachment(content_type="text/plain; a=" + "x" * 255)]}, "255"),
    ],
)  # fmt: skip
def test_an_invalid_field_is_refused_by_name(changes: dict[str, Any], naming: str) -> None:
    refused(Code.INVALID_REQUEST, naming, **changes)


@pytest.mark.rule("HEAD-02")
@pytest.mark.parametrize("name", sorted({*map(str.lower, RESERVED), *map(str.lower, RESERVED_HEADERS)}))
def test_reserved_header_names_are_refused_in_any_case(name: str) -> None:
    for spelling in (name, name.upper(), name.title()):
        refused(Code.INVALID_REQUEST, "reserved", headers={spelling: "x"})


@pytest.mark.rule("ATT-07", "HEAD-05", "HEAD-07", "SEND-07", "SEND-11", "TAG-02")
def test_the_longest_and_the_most_are_accepted() -> None:
    made = draft(
        subject="💌" * 500,
        headers={"X" * 76: "1", "X-Long": "é" * 499} | {f"X-{number}": "" for number in range(48)},
        tags=["t" * 128, *[f"tag-{number}" for number in range(19)]],
        attachments=[attachment(content_id=f"{number}" + "c" * 126) for number in range(10, 20)]
        + [attachment(filename="f" * 255, content_type="text/plain; x=" + "v" * 240)] * 10,
    )
    assert (len(made.headers), len(made.tags), len(made.attachments)) == (50, 20, 20)
    assert draft(text=None, template="t", variables={str(number): "" for number in range(32)})


@pytest.mark.rule("ATT-04")
@pytest.mark.parametrize(
    ("filename", "expected"),
    {
        "a.pdf": "application/pdf",
        "a.PNG": "image/png",
        "a.jpg": "image/jpeg",
        "a.txt": "text/plain",
        "a.csv": "text/csv",
        "a.html": "text/html",
        "a.ics": "text/calendar",
        "a.zip": "application/zip",
        "a.json": "application/json",
        "a.docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "a.unknown-extension": "application/octet-stream",
        "README": "application/octet-stream",
        ".env": "application/octet-stream",
    }.items(),
)
def test_the_extension_decides_the_type_when_none_is_given(filename: str, expected: str) -> None:
    (made,) = draft(attachments=[attachment(filename=filename)]).attachments
    assert made.content_type == expected


@pytest.mark.parametrize(
    "name", ["List-Unsubscribe", "References", "In-Reply-To", "Auto-Submitted", "Feedback-ID", "X-A"]
)
def test_other_header_names_are_allowed(name: str) -> None:
    assert draft(headers={name: "value"}).headers == ((name, "value"),)


def test_the_one_click_header_is_returned_and_never_written() -> None:
    headers = {"X-A": "1", "x-service-UNSUBSCRIBE": "one-click"}
    made = draft(headers=headers, tags=["list:news"])
    assert made.headers == (("X-A", "1"),)
    assert dict(made.request_fields.headers) == headers
    assert (made.mailing_list, made.one_click) == ("news", True)


@pytest.mark.rule("UNSUB-05")
def test_the_customers_own_list_unsubscribe_wins() -> None:
    made = draft(headers={"LIST-unsubscribe": "<https://a>"}, tags=["one-click-unsubscribe", "list:news"])
    assert (made.mailing_list, made.one_click) == ("news", False)
    assert made.headers == (("LIST-unsubscribe", "<https://a>"),)


def test_only_list_unsubscribe_post_is_refused_with_one_click() -> None:
    half = {"list-unsubscribe-POST": "List-Unsubscribe=One-Click"}
    one_click = ["one-click-unsubscribe", "list:news"]
    refused(Code.INVALID_REQUEST, "leave it out for one-click", headers=half, tags=one_click)
    # With its other half, or without the option, it is the customer's own business.
    assert draft(headers={**half, "List-Unsubscribe": "<https://a>"}, tags=one_click).headers
    assert draft(headers=half, tags=["list:news"]).headers


@pytest.mark.rule("ATT-03", "ATT-04", "ATT-05")
def test_attachments_are_decoded_and_typed_by_our_own_table() -> None:
    made = draft(
        attachments=[
            attachment(content=" aGVs\r\nbG8=\t"),
            attachment(filename="a.PDF"),
            attachment(filename="noextension"),
            attachment(filename="x.ics", content_type="text/calendar; method=REQUEST"),
            attachment(filename="q", content_type='text/plain; name="a \\" b"'),
        ]
    )
    assert [attached.content for attached in made.attachments] == [b"hello"] * 5
    assert [attached.content_type for attached in made.attachments] == [
        "text/plain", "application/pdf", "application/octet-stream", "text/calendar; method=REQUEST",
        'text/plain; name="a \\" b"',
    ]  # fmt: skip


@pytest.mark.rule("SIZE-05")
def test_a_large_text_is_refused_and_large_attachments_are_before_decoding() -> None:
    refused(Code.PAYLOAD_TOO_LARGE, "10 MiB", text="x" * (limits.MIME_BYTES_MAX + 1))
    # Not base64 at all: the size is judged first.
    refused(Code.PAYLOAD_TOO_LARGE, "10 MiB", attachments=[attachment(content="#" * (limits.MIME_BYTES_MAX + 1))])


def test_attachments_without_text_are_a_message() -> None:
    assert draft(text=None, attachments=[attachment()]).attachments


@bad_input("MIME writer", 500)
@given(st.text(max_size=300))
def test_an_accepted_content_type_has_no_line_break(given: str) -> None:
    try:
        made = draft(attachments=[attachment(content_type=given)])
    except Refusal:
        return
    assert made.attachments[0].content_type.isprintable()
    assert made.attachments[0].content_type.isascii()


near_base64 = spoiled(
    [base64.b64encode(bytes(range(size))) for size in (0, 1, 2, 3, 60)] + [base64.encodebytes(bytes(range(200)))],
    [b"=", b"==", b"===", b"\r\n", b" ", b"\t", b"-", b"_", b"A", b"/", b"+", b"\0", b"\xc3\xa9", b"%3D", b","],
).map(lambda raw: raw.decode("latin-1"))


@pytest.mark.rule("ATT-03")
@bad_input("Base64", 1_000)
@given(near_base64 | st.text(max_size=40) | st.binary(max_size=60).map(lambda raw: base64.b64encode(raw).decode()))
def test_base64_content_is_decoded_strictly_or_refused(content: str) -> None:
    bare = content.translate(dict.fromkeys(map(ord, " \t\r\n\v\f")))
    if re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", bare):
        made = draft(attachments=[attachment(content=content)])
        assert made.attachments[0].content == base64.b64decode(bare)
    else:
        refused(Code.INVALID_REQUEST, "not valid base64", attachments=[attachment(content=content)])
