"""All settings, section by section. `posthouse config init` writes them to a file, each with its description."""

from datetime import timedelta
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from posthouse.config.installation import SecretsSection, ServiceSection
from posthouse.config.outgoing import (
    DeliverySection,
    LanesSection,
    StreamSection,
    WebhooksSection,
    WorkersSection,
)
from posthouse.config.section import Section
from posthouse.config.servers import HttpSection, InboundSection, LimitsSection, SmtpSection, SubmissionSection
from posthouse.config.storage import DatabaseSection, DiskSpaceSection, RetentionSection

# Settings of tracing.


class TracingSection(Section):
    """Traces of sampled messages, for an OpenTelemetry collector. They need `pip install "posthouse[otel]"`."""

    share: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="The share of all send requests whose messages are traced, from 0 (none) to 1 (all): 0.01 is one "
        "in a hundred. Set it in every process.",
    )
    follow_callers: bool = Field(
        False,
        description="Also trace a message if the header traceparent of its request says that the caller traces it. "
        "Customers then decide how much is traced.",
    )
    endpoint: str = Field(
        "http://127.0.0.1:4318/v1/traces",
        description="The URL of the collector for the traces, over HTTP (OTLP, protobuf).",
    )

    @model_validator(mode="after")
    def _is_address(self) -> Self:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError("endpoint: is not a URL: write one such as http://127.0.0.1:4318/v1/traces")
        return self

    @property
    def is_on(self) -> bool:
        return self.share > 0 or self.follow_callers


# Settings of monitoring, and of `posthouse doctor`.


class MonitoringSection(Section):
    """Metrics for Prometheus, and whether a process is ready. There is no login: don't let customers reach it."""

    host: str = Field("127.0.0.1", description="Address on which /metrics, /livez and /readyz are served.")
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port on which they are served, such as 9825; 0: they are not served. If a machine runs several "
        "processes, each takes the first free port from there on.",
    )


class DoctorSection(Section):
    """What `posthouse doctor` checks in addition."""

    port_25_host: str = Field(
        "",
        description="A mail server, such as gmail-smtp-in.l.google.com, whose greeting is read to check whether "
        "outgoing port 25 is open. Nothing is sent to it. Empty: not checked.",
    )
    backup_hours_max: int = Field(
        0,
        ge=0,
        le=8760,
        description="How old the last backup may be; `posthouse backup noted` records a backup. 0: not checked.",
    )

    @property
    def backup_max(self) -> timedelta | None:
        return timedelta(hours=self.backup_hours_max) if self.backup_hours_max else None


ENVIRONMENT_PREFIX: Final = "POSTHOUSE_"
DELIMITER: Final = "__"


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    service: ServiceSection
    database: DatabaseSection
    secrets: SecretsSection
    http: HttpSection
    smtp: SmtpSection
    submission: SubmissionSection
    inbound: InboundSection
    limits: LimitsSection
    stream: StreamSection
    workers: WorkersSection
    delivery: DeliverySection
    lanes: LanesSection
    webhooks: WebhooksSection
    retention: RetentionSection
    disk_space: DiskSpaceSection
    monitoring: MonitoringSection
    tracing: TracingSection
    doctor: DoctorSection

    @model_validator(mode="before")
    @classmethod
    def _has_all_sections(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A missing section has its defaults, and a fault names the missing setting, not the section."""
        return {**{name: {} for name in cls.model_fields}, **given}

    @property
    def return_path(self) -> str:
        return self.inbound.return_path_domain or self.service.hostname


def section_types() -> dict[str, type[Section]]:
    """The sections, in the order of the configuration file."""
    fields = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Section)}


def variable(section: str, name: str) -> str:
    """The environment variable of a setting."""
    return f"{ENVIRONMENT_PREFIX}{section}{DELIMITER}{name}".upper()
