"""Response schema of the health check."""

from posthouse.entrypoints.http.schemas.shapes import Response


class HealthResponse(Response):
    status: str
