"""A chunked request whose trailer never ends: the connection is closed soon."""

import asyncio
from contextlib import suppress

from posthouse.entrypoints.http.server import FRAMING_BYTES_MAX
from tests.support.server_process import ServerProcess
from tests.support.service import Service

CHUNKED = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
BEGIN = b"POST /v1/auth/login HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"1\r\n{\r\n"
FIELDS = b"".join(b"a:%d\r\n" % number for number in range(4_000))
# What the kernel buffers on both sides before the sender notices.
BUFFERED_BYTES_MAX = 8 * 1024 * 1024
SENT_BYTES_MAX = 64 * 1024 * 1024
MEMORY_BYTES_MAX = 32 * 1024 * 1024


async def send_without_end(port: int, begin: bytes, piece: bytes) -> tuple[int, bytes]:
    """The bytes that were sent before the server closed the connection, and what it answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    try:
        writer.write(begin)
        with suppress(ConnectionError):
            async with asyncio.timeout(10):
                while sent < SENT_BYTES_MAX and not reader.at_eof():
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)
        answer = b""
        with suppress(ConnectionError):
            answer = await reader.read(10_000)
        return sent, answer
    finally:
        writer.transport.abort()


ENDLESS = {
    "many fields": (BEGIN + b"0\r\n", FIELDS),
    "a name without an end": (BEGIN + b"0\r\nname", b"a" * 16_384),
    "a value without an end": (BEGIN + b"0\r\nname: ", b"a" * 16_384),
    "a chunk extension without an end": (BEGIN + b"1;", b"a" * 16_384),
    "chunks of a byte": (BEGIN, b"1\r\n \r\n" * 4_000),
    "after the answer": (BEGIN.replace(b"POST /v1/auth/login", b"GET /healthz") + b"0\r\n", FIELDS),
}


async def test_a_request_has_a_bounded_number_of_bytes_besides_its_body(http_process: ServerProcess) -> None:
    for name, (begin, piece) in ENDLESS.items():
        before = http_process.resident_bytes()
        sent, answer = await send_without_end(http_process.port, begin, piece)
        assert sent < FRAMING_BYTES_MAX + BUFFERED_BYTES_MAX, name
        assert http_process.resident_bytes() - before < MEMORY_BYTES_MAX, name
        assert not answer or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 200 ")), (name, answer)


async def test_the_refusal_is_the_error_object(http_process: ServerProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http_process.port)
    writer.write(BEGIN + b"0\r\n")
    await writer.drain()
    # Not more than the limit in a single write, so that nothing unread resets the connection.
    for _ in range(FRAMING_BYTES_MAX // len(FIELDS) + 2):
        writer.write(FIELDS)
        await writer.drain()
        await asyncio.sleep(0.05)  # one write each
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in answer
    assert b"trailer" in answer


async def test_a_short_trailer_and_small_chunks_are_read(service: Service) -> None:
    tenant = await service.account()
    body = b'{"from":"%s","to":"a@example.com","subject":"s","text":"%s"}' % (
        tenant.mail()["from"].encode(),
        b"x" * 400_000,
    )
    head = f"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: {tenant.basic}\r\nIdempotency-Key: trailer\r\n"
    chunks = [body[start : start + 7] for start in range(0, len(body), 7)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    answer = await service.raw(head.encode() + CHUNKED + framed + b"0\r\nChecksum: abc\r\nSigned: no\r\n\r\n")
    assert answer.is_accepted()
