"""A corpus of bad input: bodies, credentials and raw requests that no well-behaved client sends."""

# ruff: noqa: E501 (a table of bytes reads better unbroken)

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MIB: Final = 1024 * 1024
BODY_BYTES_MAX: Final = 16 * MIB

_DEEP: Final = 100_000
_LONG: Final = "x" * 100_000

# Values that are wrong, or odd, for every field there is.
ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 1e308, 2**63, 2**64, -(2**127), "", " ", "\t", "\r\n", "a\r\nBcc: x@y.example",
    "\x00", "a\x00b", "\x7f", "\x85", "\u2028", "\ufeff", "\U0010ffff", "é", "ñ@ñ.example", "💌", _LONG,
    [], [None], [[]], [1], [""], ["\x00"], [{}], ["a@b.example"] * 51, {}, {"a": None}, {"": ""}, {"a": {"b": []}},
    {"\x00": "\x00"}, {"a\r\nb": "c"}, {"from": "x"}, "{{", "{{ a }}", "=?utf-8?q?a=0D=0ABcc:_x@y?=", "<>", "@", "a@",
    "@b", "a@b", "a@b@c.example", "a@[127.0.0.1]", "\"a\"@b.example", "a@b..example", "a@-b.example", "a,b@c.example",
    "a@" + "b." * 200 + "example", "x" * 65 + "@b.example", "x" * 300 + "@b.example", "Ada <a@b.example", "a@b.example>",
    "Ada <<a@b.example>>", "(comment) a@b.example", "group: a@b.example;", "a@xn--.example", "a@\u0130.example",
    "a@b.example\n", "a@b.example\x00", "%00", "../../etc/passwd", "' OR 1=1 --", "$1", "\\", "\"",
)  # fmt: skip

FIELDS: Final = (
    "from", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "template", "variables", "headers", "tags",
    "attachments", "unknown", "From", "replyTo", "",
)  # fmt: skip
ATTACHMENT_FIELDS: Final = ("filename", "content", "content_type", "content_id", "unknown")


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    body: bytes


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def odd_bodies(mail: Mapping[str, Any]) -> Iterator[Input]:
    """A valid message with one odd value: every value in every field."""
    for field in FIELDS:
        for number, value in enumerate(ODD_VALUES):
            yield Input(f"{field} = value {number}", _json({**mail, field: value}))
        if field in mail:
            yield Input(f"{field} missing", _json({name: value for name, value in mail.items() if name != field}))
    for field in ATTACHMENT_FIELDS:
        for number, value in enumerate(ODD_VALUES):
            attachment = {"filename": "a.txt", "content": "aGVsbG8=", field: value}
            yield Input(f"attachments[0].{field} = value {number}", _json({**mail, "attachments": [attachment]}))
    for number, value in enumerate(ODD_VALUES):
        yield Input(f"headers.X-A = value {number}", _json({**mail, "headers": {"X-A": value}}))
        yield Input(f"variables.a = value {number}", _json({**mail, "template": "t", "variables": {"a": value}}))
        if isinstance(value, str):
            yield Input(f"header named value {number}", _json({**mail, "headers": {value: "x"}}))


def broken_json(mail: Mapping[str, Any]) -> Iterator[Input]:
    """What is not JSON, or JSON that parsers disagree about."""
    whole = _json(mail)
    inside = whole[:-1] + b","
    yield Input("empty", b"")
    yield Input("white space", b" \r\n\t ")
    yield Input("a BOM before it", b"\xef\xbb\xbf" + whole)
    yield Input("UTF-16", json.dumps(mail).encode("utf-16"))
    yield Input("UTF-32", json.dumps(mail).encode("utf-32"))
    yield Input("Latin-1", json.dumps({**mail, "text": "é"}, ensure_ascii=False).encode("latin-1"))
    for byte in (b"\x00", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xff\xfe"):
        yield Input(f"bytes {byte.hex()} in a string", inside + b'"html":"' + byte + b'"}')
        yield Input(f"bytes {byte.hex()} in a name", inside + b'"' + byte + b'":1}')
        yield Input(f"bytes {byte.hex()} after it", whole + byte)
    for number in range(1, len(whole), 7):
        yield Input(f"cut after {number} bytes", whole[:number])
    for literal in (
        b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"1e-400", b"0x10", b"01", b"+1", b".5", b"1.", b"1e",
        b"9" * 5_000, b"-" + b"9" * 5_000, b"9" * 1_000_000, b"0." + b"9" * 5_000, b"1" + b"0" * 400 + b".0", b"True",
        b"None", b"undefined", b"'a'", b"`a`", b"//", b"/**/1", b"\\u0061", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u"',
        b'"\\x41"', b'"\\u0000"', b'"a\nb"', b'"', b"[1,]", b"{,}", b'{"a":1,}', b'{"a"}', b'{1:1}',
    ):  # fmt: skip
        name = literal[:20].decode("latin-1")
        yield Input(f"text is {name}", inside + b'"html":' + literal + b"}")
        yield Input(f"a variable is {name}", inside[:-1] + b',"template":"t","variables":{"a":' + literal + b"}}")
        yield Input(f"nothing but {name}", literal)
    for key in ("to", "text", "subject", "unknown"):
        yield Input(f"{key} twice", inside + f'"{key}":"a@b.example","{key}":7}}'.encode())
        yield Input(
            f"{key} 10,000 times", inside + f'"{key}":"a@b.example",'.encode() * 10_000 + b'"to":"a@b.example"}'
        )
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")):
        for depth in (100, 128, 201, 255, 1_000, _DEEP):
            deep = opening * depth + b"1" + closing * depth
            yield Input(f"{opening.decode()} {depth} deep", deep)
            yield Input(f"variables {opening.decode()} {depth} deep", inside + b'"variables":' + deep + b"}")
        yield Input(f"{opening.decode()} {_DEEP} deep and never closed", opening * _DEEP)
    yield Input("a lone surrogate in a name", inside + b'"\\ud800":1}')
    for text in ("[]", '"a"', "1", "null", "true", "{}", "[{}]"):
        yield Input(f"only {text}", text.encode())


def large_bodies(mail: Mapping[str, Any], size: int) -> Iterator[Input]:
    """At the limits and beyond them; what is slow or large inside must not be noticeable outside.

    `size` is that of what has too many or too long parts, in MiB or 100,000.
    """
    count = 100_000 * size
    whole = _json(mail)
    for length in (BODY_BYTES_MAX, BODY_BYTES_MAX + 1):
        yield Input(f"{length} bytes, white space", whole + b" " * (length - len(whole)))
        capacity = length - len(_json({**mail, "text": ""}))
        yield Input(f"{length} bytes, one long text", _json({**mail, "text": "x" * capacity}))
        yield Input(f"{length} bytes, one long name", _named("x", length, whole))
    for more in (-1, 0, 1):
        yield Input(f"a text of 10 MiB {more:+}", _json({**mail, "text": "x" * (10 * MIB + more)}))
    raw = b"\x00" * (7 * MIB)
    content = base64.b64encode(raw).decode()
    for extra in (0, 350_000, 400_000, 500_000):
        grown = content + "A" * (4 * (extra // 4))
        yield Input(f"an attachment of {len(grown)} base64 characters", _attached(mail, grown))
    yield Input("many addresses", _json({**mail, "to": ["a@b.example"] * count}))
    yield Input("many other addresses", _json({**mail, "to": [f"{n:x}@b.io" for n in range(count)]}))
    for field, item in (("to", b"0,"), ("tags", b"null,"), ("attachments", b"{},"), ("bcc", b"[],")):
        items = item * (size * MIB // len(item))
        yield Input(f"{field}: much of {item.decode()}", _listed(whole, field, items))
    yield Input("many headers", _json({**mail, "headers": {f"X-{n}": "" for n in range(count)}}))
    yield Input("many variables", _json({**mail, "template": "t", "variables": {str(n): n for n in range(count)}}))
    yield Input("many wrong headers", _json({**mail, "headers": {f"X-{n}": n for n in range(count)}}))
    yield Input("many unknown fields", _json({**mail, **{f"a{n}": 0 for n in range(count)}}))
    yield Input("a long unknown field", _json({**mail, "x" * 4 * MIB: 0}))
    yield Input("a long address", _json({**mail, "to": "x" * size * MIB + "@b.example"}))
    yield Input("a long domain", _json({**mail, "to": "a@" + "b." * (size * MIB // 2) + "example"}))
    yield Input("a long display name", _json({**mail, "to": "é" * 2 * MIB + " <a@b.example>"}))
    yield Input("a long name of many quotes", _json({**mail, "to": '"' + '\\"' * 2 * MIB + '" <a@b.example>'}))
    yield Input("many angle brackets", _json({**mail, "to": "<" * 4 * MIB}))
    yield Input("a long subject", _json({**mail, "subject": "x" * 8 * MIB}))
    yield Input("a long content type", _json({**mail, "attachments": [
        {"filename": "a", "content": "", "content_type": "a/b" + ';c="\\"' * MIB}]}))  # fmt: skip
    yield Input("a content type of many spaces", _json({**mail, "attachments": [
        {"filename": "a", "content": "", "content_type": "a/b" + " " * 250}]}))  # fmt: skip
    yield Input("base64 of white space", _attached(mail, " " * 15 * MIB))
    yield Input("text of line feeds", _json({**mail, "text": "\n" * 5 * MIB}))
    yield Input("text of equals signs", _json({**mail, "text": "=é" * 1 * MIB}))
    yield Input("10 MiB digits", _json(mail)[:-1] + b',"text":' + b"9" * 10 * MIB + b"}")


def _named(mail: str, size: int, whole: bytes) -> bytes:
    frame = whole[:-1] + b',"":0}'
    return whole[:-1] + b',"' + mail.encode() * (size - len(frame)) + b'":0}'


def _attached(mail: Mapping[str, Any], content: str) -> bytes:
    return _json({**mail, "attachments": [{"filename": "a.bin", "content": content}]})


def _listed(whole: bytes, field: str, items: bytes) -> bytes:
    return whole[:-1] + f',"{field}":['.encode() + items.rstrip(b",") + b"]}"


def authorizations(username: str, password: str, token: str) -> list[bytes]:
    """Values of the Authorization header that open nothing; none contains a byte that HTTP forbids."""

    def basic(user: bytes, secret: bytes = password.encode()) -> bytes:
        return b"Basic " + base64.b64encode(user + b":" + secret)

    name = username.encode()
    head, payload, signature = [*token.removeprefix("Bearer ").encode().split(b"."), b"", b""][:3]
    return [
        b"", b"Basic", b"Basic ", b"Basic =", b"Basic ====", b"Basic \xff\xfe", b"basic  ", b"Bearer", b"Bearer ", b"Bearer .",
        b"Bearer ..", b"Bearer a.b.c", b"Digest x", b"Negotiate " + b"A" * 4_000, b"x" * 8_000, b"Basic " + b"A" * 60_000,
        b"Bearer " + b"A" * 60_000, b"Bearer ph_live_", b"Bearer ph_live_" + b"a" * 43, b"Bearer ph_test_" + b"\xe9" * 43,
        basic(b"\x00"), basic(name + b"\x00"), basic(b"\x00" + name), basic(name, b"\x00"), basic(name, password.encode() + b"\x00"),
        basic(b""), basic(b"", b""), basic(b":"), basic(name.upper()), basic(b"\xff\xfe"), basic("é".encode("latin-1")),
        basic("é".encode()), basic(b"\xed\xa0\x80"), basic(b"x" * 5_000), basic(b"' OR 1=1 --"), basic(name + b"\r\n"), basic(name, b""),
        b"Basic " + base64.b64encode(name), b"Basic " + name + b":" + password.encode(),
        b"Bearer " + password.encode(), b"Bearer " + head + b"." + payload + b".",
        b"Bearer " + head + b"." + payload, b"Bearer " + payload + b"." + head + b"." + signature,
        b"Bearer " + base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=") + b"." + payload + b".",
        b"Bearer " + base64.urlsafe_b64encode(b'{"alg":"HS256","crit":["b64"],"b64":false}').rstrip(b"=") + b"." + payload + b"." + signature,
        b"Bearer " + base64.urlsafe_b64encode(b"[" * 20_000).rstrip(b"=")[:7_000] + b"." + payload + b"." + signature,
        b"Bearer " + base64.urlsafe_b64encode(b'{"alg":1e400}').rstrip(b"=") + b"." + payload + b"." + signature,
        b"Bearer " + head + b"." + base64.urlsafe_b64encode(b"[" * 5_000).rstrip(b"=") + b"." + signature,
    ]  # fmt: skip


ODD_SEGMENTS: Final = (
    "%00", "%0a", "%0d%0aX: y", "%ff", "%ed%a0%80", "%c0%af", "%2e%2e", "%2f", "..", ".", "%", "%zz", "a%00b", "em_",
    "em_" + "0" * 26, "em_" + "z" * 26, "em_" + "7" + "z" * 25, "em_" + "0" * 25 + "%00", "em_" + "O" * 26, "em_" + "é",
    "%e9", "%F0%9F%92%8C", "x" * 5_000, "a" * 64, "a" * 65, "-a", "A", "*", "?a=b", "#a", ";a=b", "%3f", "%23", "'", "%22",
    "{id}", "null", "0", "-1", "a/b", "a/", "/", "//", "%5c", "a%20b", "%E2%80%A8", "%7f",
)  # fmt: skip

ODD_QUERIES: Final = (
    "limit=0", "limit=101", "limit=-1", "limit=", "limit=1.5", "limit=%00", "limit=" + "9" * 5_000, "limit=%D9%A1", "limit=1&limit=2",
    "limit=NaN", "limit", "=", "&&&", "cursor=", "cursor=%00", "cursor=a%00b", "cursor=%ff", "cursor=%ed%a0%80", "cursor=" + "x" * 5_000,
    "cursor=a&cursor=b", "unknown=1", "cursor='", "cursor=%F0%9F%92%8C", "limit=+1", "limit=%201", "limit=1e2", "limit=1_0", "%00=%00", "cursor=%",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RawRequest:
    """Bytes for a bare connection. `is_http` is False where a parser may refuse the message in its own words."""

    name: str
    sent: bytes
    is_http: bool = True
    answers: int = 1
    statuses: frozenset[int] = frozenset()


def raw_requests(authorization: str, mail: Mapping[str, Any]) -> Iterator[RawRequest]:
    body = _json(mail)
    credential = f"Authorization: {authorization}\r\n".encode()
    common = b"Host: posthouse.test\r\n" + credential + b"Content-Type: application/json\r\n"
    length = f"Content-Length: {len(body)}\r\n".encode()
    chunked = b"Transfer-Encoding: chunked\r\n"
    chunks = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    close = b"Connection: close\r\n"

    def post(headers: bytes, sent: bytes, line: bytes = b"POST /emails HTTP/1.1") -> bytes:
        return line + b"\r\n" + common + headers + b"\r\n" + sent

    def key(number: int) -> bytes:
        return f"Idempotency-Key: raw-{number}\r\n".encode()

    yield RawRequest("two lengths that differ", post(key(1) + length + b"Content-Length: 1\r\n", body), is_http=False)
    yield RawRequest("two lengths alike", post(key(2) + length + length, body), is_http=False)
    yield RawRequest("a list of lengths", post(key(3) + b"Content-Length: 1, 1\r\n", body), is_http=False)
    yield RawRequest("a length and chunks", post(key(4) + length + chunked, chunks), is_http=False)
    yield RawRequest("chunks and a length", post(key(5) + chunked + length, chunks), is_http=False)
    for number, value in enumerate(
        (b"-1", b"+5", b"0x10", b"1e3", b"", b"9" * 30, b"18446744073709551616", b"five", b"5 5")
    ):
        name = value.decode()
        yield RawRequest(
            f"length {name}", post(key(10 + number) + b"Content-Length: " + value + b"\r\n", body), is_http=False
        )
    for number, value in enumerate(
        (b"chunked, chunked", b"identity", b"gzip, chunked", b"x", b"chunked\x0b", b" chunked", b"Chunked")
    ):
        given = b"Transfer-Encoding: " + value + b"\r\n"
        yield RawRequest(f"transfer {value!r}", post(key(30 + number) + given, chunks), is_http=False)
    for number, sent in enumerate((
        b"zz\r\n", b"-1\r\n\r\n", b"FFFFFFFFFFFFFFFFFF\r\n", b"1\r\nab\r\n", b"1;" + b"x" * 100_000 + b"\r\n{\r\n0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n", b"\r\n", b"5\n{}   \n0\n\n",
    )):  # fmt: skip
        yield RawRequest(f"chunk {number}", post(key(40 + number) + chunked, sent), is_http=False)
    yield RawRequest("no length at all", post(key(60), b""))
    yield RawRequest("length 0", post(key(61) + b"Content-Length: 0\r\n", b""))
    yield RawRequest("chunked, empty", post(key(62) + chunked, b"0\r\n\r\n"))
    yield RawRequest("chunked", post(key(63) + chunked, chunks), statuses=frozenset({202}))
    yield RawRequest(
        "a too long body is announced", post(key(64) + b"Content-Length: 16777217\r\n", b"{"), statuses=frozenset({413})
    )
    yield RawRequest(
        "a far too long body is announced",
        post(key(65) + b"Content-Length: 999999999999\r\n", b"{"),
        statuses=frozenset({413}),
    )
    yield RawRequest("expects 100", post(key(66) + length + b"Expect: 100-continue\r\n" + close, body))
    yield RawRequest("expects something", post(key(67) + length + b"Expect: a-miracle\r\n", body))
    yield RawRequest("absolute form", post(key(70) + length, body, b"POST http://elsewhere.test/emails HTTP/1.1"))
    for number, target in enumerate((
        b"*", b"", b"emails", b"//emails", b"/emails/", b"/emails?", b"/emails?a=b", b"/emails#a", b"/emails;a", b"/%65mails", b"/EMAILS",
        b"/emails%00", b"/./emails", b"/a/../emails", b"http:///emails", b"http://[::1/emails", b"elsewhere.test:443", b"\\emails",
        b"/\xff", b"/\xc3\xa9", b"/" + b"x" * 60_000, b"/ emails", b"/emails\x00", b"/%", b"/%zz", b"/docs", b"/openapi.json", b"?", b"/",
    )):  # fmt: skip
        is_plain = target.startswith(b"/") and all(33 <= byte < 127 for byte in target)
        yield RawRequest(
            f"target {target[:30]!r}",
            post(key(100 + number) + length, body, b"POST " + target + b" HTTP/1.1"),
            is_http=is_plain,
        )
    for method in (b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"PATCH", b"DELETE", b"GET", b"PROPFIND", b"QUERY", b"PURGE"):
        for target in (b"/emails", b"/emails/em_1", b"/v1/templates", b"/healthz", b"/nowhere"):
            yield RawRequest(
                f"{method.decode()} {target.decode()}",
                method + b" " + target + b" HTTP/1.1\r\n" + common + close + b"\r\n",
            )
    for line in (b"CONNECT elsewhere.test:443 HTTP/1.1", b"BREW /emails HTTP/1.1", b"post /emails HTTP/1.1", b"OPTIONS * HTTP/1.1",
                 b"POST /emails HTTP/0.9", b"POST /emails HTTP/2.0", b"POST /emails HTTP/9.9", b"POST /emails", b"POST  /emails  HTTP/1.1",
                 b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x", b"EHLO x", b"\x00" * 100, b"GET /\x00 HTTP/1.1"):  # fmt: skip
        yield RawRequest(f"line {line[:30]!r}", post(key(200) + length, body, line), is_http=False)
    yield RawRequest("HTTP/1.0", post(key(210) + length, body, b"POST /emails HTTP/1.0"), statuses=frozenset({202}))
    yield RawRequest("HTTP/1.0 without a host", b"GET /healthz HTTP/1.0\r\n\r\n", statuses=frozenset({200}))
    yield RawRequest("HTTP/1.1 without a host", b"GET /healthz HTTP/1.1\r\n\r\n", is_http=False)
    yield RawRequest(
        "upgrade to a web socket",
        b"GET /emails HTTP/1.1\r\n"
        + common
        + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    )
    yield RawRequest(
        "upgrade to HTTP/2",
        post(
            key(211)
            + length
            + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
            body,
        ),
    )
    for number, line in enumerate((
        b"X-Empty:\r\n", b"X-Empty\r\n", b": value\r\n", b"X Y: z\r\n", b"X\x00Y: z\r\n", b"X-Nul: \x00\r\n", b"X-High: \xff\xfe\r\n",
        b"X-Fold: a\r\n b\r\n", b" X-Lead: a\r\n", b"X-Cr: a\rb\r\n", b"X-Lf: a\n", b"X-Tab:\ta\t\r\n", b"X-Colon : a\r\n", b"X-" + b"a" * 60_000 + b": b\r\n",
        b"X-Long: " + b"a" * 60_000 + b"\r\n", b"X-Many: a\r\n" * 500, b"Content-Type: text/plain\r\n", b"Content-Encoding: gzip\r\n",
        b"Authorization: Basic eA==\r\n", b"Idempotency-Key: another\r\n", b"Host: other.test\r\n", b"X-Request-ID: mine\r\n", b"Transfer-Encoding:\r\n",
        b"X-Forwarded-For: ' OR 1=1\r\n", b"X-HTTP-Method-Override: DELETE\r\n", b"Range: bytes=0-1\r\n", b"Accept: text/xml\r\n", b"Cookie: a=b\r\n",
    )):  # fmt: skip
        yield RawRequest(f"header {line[:30]!r}", post(key(220 + number) + length + line, body), is_http=False)
    for value in (b"", b" ", b"\t", b"x" * 255, b"x" * 256, b"\xff", b"\xc3\xa9", b"a b", b"'", b"\x7f", b"\x01", b"\x00", b"%00"):  # fmt: skip
        is_text = all(byte >= 32 and byte != 127 for byte in value.replace(b"\t", b" "))
        given = b"Idempotency-Key: " + value + b"\r\n"
        yield RawRequest(f"key {value[:10]!r}", post(given + length, body), is_http=is_text)
    for number, value in enumerate((
        b"", b"text/plain", b"application/jsonx", b"application/json;", b"application/json; charset=latin-1", b"application/json; charset=utf-8",
        b"APPLICATION/JSON", b"application/json, text/plain", b"multipart/form-data; boundary=x", b"application/json; charset=\xff", b"x" * 5_000, b"*/*",
    )):  # fmt: skip
        head = b"Host: posthouse.test\r\n" + credential + key(300 + number) + b"Content-Type: " + value + b"\r\n"
        yield RawRequest(f"type {value[:30]!r}", b"POST /emails HTTP/1.1\r\n" + head + length + b"\r\n" + body)
    request = post(key(350) + length, body)
    yield RawRequest("ten requests in one go", request * 10, answers=10, statuses=frozenset({202, 409}))
    other = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    yield RawRequest(
        "different requests in one go", other + request + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" + other, answers=4
    )
    yield RawRequest(
        "a request behind one that is refused", post(b"Content-Length: 5\r\n", b"{}   ") + other, answers=2
    )
    yield RawRequest("white space before it", b"\r\n\r\n" + request)
    yield RawRequest(
        "a smuggled request",
        post(key(351) + b"Content-Length: 2\r\nTransfer-Encoding : chunked\r\n", b"0\r\n\r\n" + other),
        is_http=False,
    )
