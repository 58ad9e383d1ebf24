"""What our own SMTP client, DKIM signer and reader of submitted messages cost, next to the libraries for it.

    python -m bench.libraries

Each round runs ours, the library, and ours again, on the same messages. The figures are processor time of this process
for a message; the ratios are medians of the rounds. Decision record 0077 has the results.
"""

import asyncio
import base64
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email import message_from_bytes, policy
from functools import partial
from typing import Final

import aiosmtplib
import dkim as dkimpy
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_der_private_key

from bench import message
from bench.smtp_sink import Sink
from posthouse.mail import dkim, submitted
from posthouse.wire.dialogue import SmtpContent
from posthouse.wire.smtp import ClientDeadlines, SmtpAccepted, SmtpSession
from posthouse.wire.tls import CLEARTEXT

ROUNDS: Final = 10
MESSAGES: Final = 50
NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
DOMAIN: Final = message.SENDER_DOMAIN
SENDER: Final = f"bounce@{DOMAIN}"
SIGNED: Final = [b"from", b"to", b"subject", b"date", b"message-id", b"mime-version", b"content-type"]

Work = Callable[[], Awaitable[None]]


async def main() -> None:
    raw = message.mail()
    await _compare_signers(raw)
    await compare("a submitted message", repeated(partial(_read, raw)), repeated(partial(_read_with_library, raw)))
    await _compare_clients(raw)


async def compare(name: str, ours: Work, library: Work) -> None:
    rounds = [[await _microseconds(work) for work in (ours, library, ours)] for _ in range(ROUNDS)]
    own, other, _ = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(2 * theirs / (first + again) for first, theirs, again in rounds)
    twin = statistics.median(again / first for first, _, again in rounds)
    print(
        f"{name}: ours {own:,.0f} µs, library {other:,.0f} µs, ratio {ratio:.2f}; ours to itself {twin:.2f}", flush=True
    )


async def _microseconds(work: Work) -> float:
    began = time.process_time()
    await work()
    return (time.process_time() - began) * 1e6 / MESSAGES


def repeated(work: Callable[[], object]) -> Work:
    async def run() -> None:
        for _ in range(MESSAGES):
            work()

    return run


async def _compare_signers(raw: bytes) -> None:
    rsa, ed25519 = dkim.new_key_pair(), dkim.new_ed25519_key_pair()
    rsa_key = dkim.load_signing_key(DOMAIN, "r1", rsa.private_der)
    ed25519_key = dkim.load_signing_key(DOMAIN, "e1", ed25519.private_der)
    pem = load_der_private_key(rsa.private_der, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    seed = load_der_private_key(ed25519.private_der, None).private_bytes(
        Encoding.Raw, PrivateFormat.Raw, NoEncryption()
    )

    def sign_once() -> None:
        _sign(raw, pem, b"rsa-sha256")

    def sign_twice() -> None:
        sign_once()
        _sign(raw, base64.b64encode(seed), b"ed25519-sha256")

    await compare("RSA", repeated(lambda: dkim.signatures(raw, [rsa_key], NOW)), repeated(sign_once))
    both = repeated(lambda: dkim.signatures(raw, [rsa_key, ed25519_key], NOW))
    await compare("RSA and Ed25519", both, repeated(sign_twice))


def _sign(raw: bytes, key: bytes, algorithm: bytes) -> None:
    relaxed = (b"relaxed", b"relaxed")
    dkimpy.sign(
        raw, b"s1", DOMAIN.encode(), key, canonicalize=relaxed, signature_algorithm=algorithm, include_headers=SIGNED
    )


def _read(raw: bytes) -> None:
    submitted.prepare(raw, date=NOW, message_id=f"1@{DOMAIN}", hostname="bench.example")


def _read_with_library(raw: bytes) -> None:
    read = message_from_bytes(raw, policy=policy.SMTP)
    assert read["from"].addresses
    assert read["to"].addresses
    assert read["subject"]
    read.as_bytes()


async def _compare_clients(raw: bytes) -> None:
    with Sink() as sink:
        client = aiosmtplib.SMTP(hostname="127.0.0.1", port=sink.port, start_tls=False, use_tls=False)
        await _connect(client)
        session = await SmtpSession.open(
            "127.0.0.1",
            sink.port,
            hostname="bench.example",
            tls=CLEARTEXT,
            server_name="localhost",
            deadlines=ClientDeadlines(),
        )
        assert isinstance(session, SmtpSession), session

        async def send() -> None:
            for _ in range(MESSAGES):
                (sent,) = await session.deliver(SENDER, [message.RECIPIENT], SmtpContent(raw), lambda: True)
                assert isinstance(sent, SmtpAccepted)

        async def send_with_library() -> None:
            for _ in range(MESSAGES):
                await client.sendmail(SENDER, [message.RECIPIENT], raw)

        await compare("sending over an open session", send, send_with_library)
        session.quit()
        await client.quit()


async def _connect(client: aiosmtplib.SMTP) -> None:
    """Once smtp-sink listens."""
    while True:
        try:
            await client.connect()
        except aiosmtplib.SMTPConnectError:
            await asyncio.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    asyncio.run(main())
