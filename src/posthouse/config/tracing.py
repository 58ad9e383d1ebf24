"""Settings of tracing."""

from typing import Self

from pydantic import Field, model_validator

from posthouse.config.section import Section


class TracingSection(Section):
    """Traces of sampled mails, for a collector of OpenTelemetry. They need `pip install "posthouse[otel]"`."""

    share: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="The part of all requests to send whose mail is traced, from 0 (none) to 1 (all): 0.01 is one of "
        "a hundred. Give it to every process.",
    )
    follow_callers: bool = Field(
        False,
        description="Trace a mail as well when the header traceparent of its request says that the caller traces it. "
        "Customers then decide how much is traced.",
    )
    endpoint: str = Field(
        "http://127.0.0.1:4318/v1/traces",
        description="The address of the collector that takes the traces, over HTTP (OTLP, protobuf).",
    )

    @model_validator(mode="after")
    def _is_address(self) -> Self:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError("endpoint: is no address: write one such as http://127.0.0.1:4318/v1/traces")
        return self

    @property
    def is_on(self) -> bool:
        return self.share > 0 or self.follow_callers
