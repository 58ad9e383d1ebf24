"""The service as the dashboard's tests use it: one process with all parts, DNS, receivers of mail and of webhooks."""

import base64
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support import webhook_accounts
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import WebhookReceiver
from tools.private_postgres import free_port

PARTS: Final = ("http", "dispatch", "delivery", "notification", "maintenance")
# A domain whose mail arrives; the local part says how, as `smtp_receiver` lists it.
DESTINATION: Final = "customers.example"


@dataclass(slots=True)
class DashboardService:
    processes: ServiceProcesses
    server: ServerProcess
    webhook_receiver: WebhookReceiver
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def service(self) -> Service:
        return self.processes.service

    @property
    def url(self) -> str:
        return self.server.url

    async def account(self, **given: Any) -> Tenant:
        return await self.service.account(**given)

    def webhook_url(self, path: str = "/events") -> str:
        """`webhook_receiver` says which paths answer what: `/status/503`."""
        return f"https://{NAME}:{self.webhook_receiver.port}{path}"

    def publish(self, records: Mapping[str, str]) -> None:
        """TXT records by name, as a domain's owner publishes them."""
        self.processes.nameserver.zone.update({name: [text] for name, text in records.items()})

    async def full_account(self) -> Tenant:
        """An account with something on every page."""
        tenant = await self.account()
        await tenant.call("POST", "/v1/endpoints", {"url": self.webhook_url("/endpoint"), "tags": ["welcome"]})
        for behaviour in ("ada", "550-rcpt", "greylist", "450-rcpt"):
            to = f"{behaviour}+{next(self._numbers)}@{DESTINATION}"
            await tenant.accepts(tenant.mail(to=to, html="<h1>Hello</h1>", tags=["welcome"], attachments=[_ATTACHMENT]))
        await tenant.key(mode="test")
        await tenant.template("welcome", subject="Hello {{name}}", text="Hello {{name}}.", html="<p>Hello {{name}}</p>")
        for method, path, body in [
            ("PUT", "/v1/webhook", {"url": self.webhook_url()}),
            ("POST", "/v1/webhook/ping", {}),
            ("POST", "/v1/domains", {"name": f"second.{tenant.unique}.example.org"}),
            ("POST", "/v1/suppressions", {"email": f"left@{DESTINATION}"}),
            ("POST", "/v1/invitations", {"email": f"new@{tenant.unique}.example.net", "role": "viewer"}),
        ]:
            answer = await tenant.call(method, path, body)
            assert answer.status < 300, (path, answer.raw)
        return tenant


_ATTACHMENT: Final = {
    "filename": "terms.txt",
    "content_type": "text/plain",
    "content": base64.b64encode(b"Terms.").decode(),
}


@asynccontextmanager
async def run_dashboard_service(
    database_url: str, directory: Path, *, answers: Mapping[str, bytes | Iterator[bytes]] | None = None, **settings: str
) -> AsyncIterator[DashboardService]:
    """With the memory stream, and retries a second apart; `answers` are further ones of the webhook receiver."""
    authority = directory / "authority.pem"
    authority.write_bytes(certificates().authority_pem)
    port = free_port()
    async with WebhookReceiver(certificates().servers["sound"], said=answers) as webhook_receiver:
        chosen = {
            **webhook_accounts.webhook_settings(webhook_receiver.port, authority),
            "HTTP__PUBLIC_URL": f"http://127.0.0.1:{port}",
            **settings,
        }
        async with prepare_processes(database_url, directory, stream="memory", **chosen) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.destination(DESTINATION)
            server = ServerProcess(
                database_url, directory / "server.log", dict(processes.settings), port=port, words=PARTS
            )
            processes.parts.append(server)
            await server.start()
            processes.clients.append(await server.open_client())
            await processes.service.prepare_sender()
            yield DashboardService(processes, server, webhook_receiver)
