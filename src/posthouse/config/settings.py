"""All settings, section by section. `posthouse config init` writes them to a file, each with its description."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, model_validator

from posthouse.config.installation import SecretsSection, ServiceSection
from posthouse.config.monitoring import DoctorSection, MonitoringSection
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
from posthouse.config.tracing import TracingSection

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
        """A section that is not given has its defaults, and a fault names the missing setting, not the section."""
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
