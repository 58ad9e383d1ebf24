"""Settings of monitoring."""

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
