"""Settings of monitoring, and of `posthouse doctor`."""

from datetime import timedelta

from pydantic import Field

from posthouse.config.section import Section


class MonitoringSection(Section):
    """Metrics for Prometheus, and whether a process is ready. There is no login: keep customers away from it."""

    host: str = Field("127.0.0.1", description="Address that /metrics, /livez and /readyz are served on.")
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port that they are served on, such as 9825; 0: they are not served. Of several processes on a "
        "machine, each takes the first port that is free from there on.",
    )


class DoctorSection(Section):
    """What `posthouse doctor` checks beside what it finds by itself."""

    port_25_host: str = Field(
        "",
        description="A mail server, such as gmail-smtp-in.l.google.com, whose greeting is asked for to see whether "
        "port 25 is open outwards. Nothing is sent to it. Empty: not checked.",
    )
    backup_hours_max: int = Field(
        0,
        ge=0,
        le=8760,
        description="How old the last backup may be; `posthouse backup noted` says that one was made. 0: not checked.",
    )

    @property
    def backup_max(self) -> timedelta | None:
        return timedelta(hours=self.backup_hours_max) if self.backup_hours_max else None
