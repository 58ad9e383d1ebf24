"""The health check, and what a client needs to know about this installation before a login: nothing secret."""

from typing import Annotated

from fastapi import Request
from pydantic import Field

from posthouse.entrypoints.http.operation import Operations
from posthouse.entrypoints.http.shapes import Response, Shown, described, examples

router = Operations("Operation")


class HealthResponse(Response):
    model_config = examples({"status": "ok"})

    status: Annotated[str, Field(json_schema_extra={"const": "ok"})]


class SmtpSubmission(Shown):
    host: str
    starttls_port: Annotated[int | None, described("For STARTTLS; null if there is no such port.")]
    tls_port: Annotated[int | None, described("For TLS from the start; null if there is no such port.")]


class ServiceInfo(Shown):
    name: str
    version: str
    docs_url: Annotated[str, described("The API reference; absolute, or a path of this host.")]
    sends_own_mail: Annotated[bool, described("Whether invitations, password resets and alerts can be sent by email.")]
    submission: Annotated[SmtpSubmission | None, described("Submission over SMTP; null if it is not set up.")]
    captures: Annotated[bool, described("Whether all mail is captured: none leaves.")]
    simulator_domain: Annotated[str, described("Mail to it never leaves, and gets the result that the address names.")]


class ServiceResponse(Response):
    model_config = examples(
        {
            "service": {
                "name": "Posthouse",
                "version": "1.0.0-rc.1",
                "docs_url": "https://mail.example.com/docs",
                "sends_own_mail": True,
                "submission": {"host": "mail.example.com", "starttls_port": 587, "tls_port": 465},
                "captures": False,
                "simulator_domain": "simulator.invalid",
            }
        }
    )

    service: ServiceInfo


@router.get("/healthz")
async def health() -> HealthResponse:
    """Whether the process is alive"""
    return HealthResponse(status="ok")


@router.get("/v1/service")
async def get_service(request: Request) -> ServiceResponse:
    """This installation: its name and version, and what is set up"""
    return ServiceResponse(service=request.app.state.service_info)
