"""Foreign servers whose every answer is hostile text: a mail server that refuses, and answers to webhooks."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence

from tests.support.webhook_receiver import http_answer


class HostileMailServer:
    """Refuses each recipient with the next of the texts."""

    def __init__(self, texts: Sequence[str], host: str, port: int) -> None:
        self._texts = itertools.cycle(texts)
        self._host = host
        self._port = port
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "HostileMailServer":
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 <img src=x onerror=alert(1)>\r\n")
        while line := await reader.readline():
            word = line[:4].upper()
            if word == b"RCPT":
                text = next(self._texts).replace("\n", " ").replace("\r", " ")
                writer.write(f"550 5.1.1 {text}".encode()[:500] + b"\r\n")
            elif word == b"QUIT":
                break
            else:
                writer.write(b"250 <script>alert(1)</script>\r\n")
        writer.close()


def hostile_answers(texts: Sequence[str]) -> dict[str, Iterator[bytes]]:
    """For a webhook receiver: `/hostile` answers with the next of the texts, and refuses every fifth call."""
    answers = [
        http_answer(
            text.encode(), "Content-Type: text/html", status="500 <b>x</b>" if number % 5 == 4 else "200 <b>x</b>"
        )
        for number, text in enumerate(texts)
    ]
    return {"/hostile": itertools.cycle(answers)}
