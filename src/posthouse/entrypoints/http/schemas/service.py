"""The response schema of the service itself."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import Response, described


class SmtpSubmission(BaseModel):
    host: str
    starttls_port: Annotated[int | None, described("TLS begins with STARTTLS; null: there is no such port.")]
    tls_port: Annotated[int | None, described("Within TLS from the start; null: there is no such port.")]


class ServiceInfo(BaseModel):
    name: str
    version: str
    docs_url: Annotated[str, described("The API reference; absolute, or a path of this host.")]
    sends_own_mail: Annotated[bool, described("Whether invitations, password resets and alerts can go by mail.")]
    submission: Annotated[SmtpSubmission | None, described("Mail over SMTP; null when the operator set up none.")]
    captures: Annotated[bool, described("Whether all mail is captured: none leaves.")]
    simulator_domain: Annotated[str, described("Mail to it never leaves, and ends as its address says.")]


class ServiceResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "service": {
                        "name": "Posthouse",
                        "version": "0.1.0",
                        "docs_url": "https://mail.example.com/docs",
                        "sends_own_mail": True,
                        "submission": {"host": "mail.example.com", "starttls_port": 587, "tls_port": 465},
                        "captures": False,
                        "simulator_domain": "simulator.invalid",
                    },
                    "request_id": "rq_01kb3ge5p0f8wexample00000r",
                }
            ]
        }
    )

    service: ServiceInfo
