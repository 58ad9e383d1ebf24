"""Size limits, enforced as early as possible, and the stored message."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import pytest

from tests.support.eventually import HANG_SECONDS
from tests.support.service import ABSENT, Service, Tenant

MIB = 1024 * 1024


def head(tenant: Tenant, *lines: str) -> bytes:
    """The raw head of a send request."""
    fixed = [
        "POST /emails HTTP/1.1",
        "Host: localhost",
        f"Authorization: {tenant.basic}",
        f"Idempotency-Key: {tenant.new_key()}",
        "Content-Type: application/json",
    ]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


@pytest.mark.rule("SIZE-01", "CODE-10")
async def test_a_content_length_over_16_mib_is_refused_before_the_body_is_sent(
    service: Service, regular: Tenant
) -> None:
    before = await regular.state()
    answer = await service.raw(head(regular, f"Content-Length: {16 * MIB + 1}"))
    assert answer.is_refusal(413, "payload_too_large")
    assert answer.headers["X-Request-ID"] == answer.body["request_id"]
    assert await regular.state() == before


@pytest.mark.rule("SIZE-01", "ORDER-02")
async def test_a_client_that_sends_all_before_reading_gets_the_413(regular: Tenant) -> None:
    await regular.refuses(ABSENT, 413, "payload_too_large", data=b"{" * (17 * MIB))


@pytest.mark.rule("SIZE-02")
async def test_a_chunked_body_is_refused_as_soon_as_it_passes_16_mib(service: Service, regular: Tenant) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head(regular, "Transfer-Encoding: chunked"))
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answered = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    written = 0
    try:
        # The body never ends: only a server that counts while it reads can respond.
        while not answered.done() and written < 64 * MIB:
            writer.write(chunk)
            written += 0x10000
            await asyncio.wait_for(writer.drain(), HANG_SECONDS)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    response = await asyncio.wait_for(answered, HANG_SECONDS)
    assert response.startswith(b"HTTP/1.1 413")
    assert written <= 32 * MIB
    writer.close()


@pytest.mark.rule("SIZE-02")
async def test_a_small_chunked_body_is_an_ordinary_request(regular: Tenant) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        body = json.dumps(regular.mail()).encode()
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    await regular.accepts(data=chunks())


@pytest.mark.rule("SIZE-03")
@pytest.mark.parametrize(
    "content",
    [
        # 7.8 MiB are below the limit, but above it as base64.
        {"attachments": [{"filename": "a.bin", "content": base64.b64encode(bytes(7_800 * 1024)).decode()}]},
        {"attachments": [{"filename": f"{n}.bin", "content": base64.b64encode(bytes(MIB)).decode()} for n in range(8)]},
        {"text": "x" * (10 * MIB + 1)},
        {"html": "x" * (5 * MIB), "text": "y" * (5 * MIB)},
    ],
    ids=["attachment", "attachments", "text", "text and html"],
)  # fmt: skip
async def test_a_message_over_10_mib_is_refused(regular: Tenant, content: dict[str, object]) -> None:
    await regular.refuses(regular.mail() | content, 413, "payload_too_large", "10 MiB")


@pytest.mark.rule("SIZE-03", "SIZE-04")
async def test_the_limit_of_10_mib_is_exact(regular: Tenant) -> None:
    line = "x" * 62 + "\r\n"
    lines = 10 * MIB // len(line) - 50
    small = await regular.accepts(regular.mail(text=line * lines))
    missing = 10 * MIB - len(await regular.mime(small["id"]))
    assert 0 < missing < 50 * len(line)
    # Short lines of ASCII are stored unchanged, so each character adds a byte.
    rest = [line[:-2][: max(0, missing - start - 2)] + "\r\n" for start in range(0, missing, len(line))]
    fill = "".join(rest)[:missing] if missing >= 2 else ""
    fill = fill[: missing - 2] + "\r\n"
    exact = await regular.accepts(regular.mail(text=line * lines + fill))
    assert len(await regular.mime(exact["id"])) == 10 * MIB
    too_much = regular.mail(text=line * lines + fill, subject="Hello!")
    await regular.refuses(too_much, 413, "payload_too_large")


@pytest.mark.rule("SIZE-01")
async def test_a_body_of_exactly_16_mib_is_read(regular: Tenant) -> None:
    body = json.dumps(regular.mail()).encode()
    await regular.accepts(data=body + b" " * (16 * MIB - len(body)))


@pytest.mark.rule("MIME-02")
async def test_fixed_headers_are_written_once_from_the_request(regular: Tenant) -> None:
    subject = "Grüße, and a long subject that must be folded somewhere, for it does not fit on one line at all"
    body = regular.mail(
        from_=f"Acme Support <news@{regular.domain}>",
        to=["Ada Łukasiewicz <ada@example.org>", "bob@example.org"],
        cc="cy@example.org",
        reply_to="help@example.net",
        subject=subject,
    )
    began_at = datetime.now(UTC).replace(microsecond=0)
    sent = await regular.accepts(body)
    stored = await regular.stored(sent["id"])
    for name in ("From", "To", "Cc", "Reply-To", "Subject", "Date", "Message-ID", "MIME-Version"):
        assert len(stored.get_all(name, [])) == 1, name
    assert stored["From"].addresses[0].addr_spec == f"news@{regular.domain}"
    assert stored["From"].addresses[0].display_name == "Acme Support"
    assert [address.addr_spec for address in stored["To"].addresses] == ["ada@example.org", "bob@example.org"]
    assert stored["To"].addresses[0].display_name == "Ada Łukasiewicz"
    assert str(stored["Subject"]) == subject
    assert began_at <= parsedate_to_datetime(stored["Date"]) <= datetime.now(UTC)
    other = await regular.stored((await regular.accepts(body))["id"])
    assert stored["Message-ID"] != other["Message-ID"]
