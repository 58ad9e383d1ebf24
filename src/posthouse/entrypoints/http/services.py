"""The flows that the HTTP entry point translates to."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from posthouse.entrypoints.http.operator_flows import FlowsOf
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.dry_run import DryRun
from posthouse.flows.accept.intake import Intake
from posthouse.flows.account.alerts import Alerts
from posthouse.flows.account.captured_mail import CapturedMail
from posthouse.flows.account.credentials import Credentials
from posthouse.flows.account.domains import Domains
from posthouse.flows.account.erasures import Erasures
from posthouse.flows.account.exports import Exports
from posthouse.flows.account.kept_sessions import KeptSessions
from posthouse.flows.account.live import Live
from posthouse.flows.account.login_links import LoginLinks
from posthouse.flows.account.message_cancellation import MessageCancellation
from posthouse.flows.account.message_detail import MessageDetail
from posthouse.flows.account.message_retry import MessageRetry
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.account.next_message import NextMessage
from posthouse.flows.account.password_reset import PasswordReset
from posthouse.flows.account.progress import Progress
from posthouse.flows.account.resends import Resends
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.account.suppressions import Suppressions
from posthouse.flows.account.team import Team
from posthouse.flows.account.templates import Templates
from posthouse.flows.account.unsent_mail import UnsentMail
from posthouse.flows.account.usage_and_ledger import UsageAndLedger
from posthouse.flows.account.writes import Writes
from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.flows.operate.operators import Operators
from posthouse.flows.webhooks.endpoints import Endpoints
from posthouse.flows.webhooks.webhook import WebhookEndpoint
from posthouse.traces import Tracer


@dataclass(frozen=True, slots=True)
class SmtpSubmission:
    host: str
    starttls_port: int | None
    tls_port: int | None


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What anyone may know of this installation."""

    name: str
    version: str
    docs_url: str
    sends_own_mail: bool
    submission: SmtpSubmission | None
    captures: bool
    simulator_domain: str


@dataclass(frozen=True, slots=True)
class Services:
    service_info: ServiceInfo
    admission: Admission
    intake: Intake
    message_detail: MessageDetail
    templates: Templates
    webhook_endpoint: WebhookEndpoint
    endpoints: Endpoints
    unsubscribe: Unsubscribe
    sessions: Sessions
    kept_sessions: KeptSessions
    login_links: LoginLinks
    password_reset: PasswordReset
    team: Team
    usage_and_ledger: UsageAndLedger
    progress: Progress
    alerts: Alerts
    domains: Domains
    credentials: Credentials
    message_search: MessageSearch
    message_retry: MessageRetry
    unsent_mail: UnsentMail
    message_cancellation: MessageCancellation
    resends: Resends
    erasures: Erasures
    next_message: NextMessage
    live: Live
    exports: Exports
    captured_mail: CapturedMail
    suppression: Suppressions
    dry_run: DryRun
    writes: Writes
    operators: Operators
    operator_flows: FlowsOf
    now: Callable[[], datetime]
    tracer: Tracer | None = None

    def stop_waiting(self) -> None:
        """End responses that wait for something to happen: the process stops."""
        self.next_message.close()
        self.live.close()
