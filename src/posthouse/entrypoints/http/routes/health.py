"""The health check."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import json_response
from posthouse.entrypoints.http.schemas import health as schemas

router = APIRouter()


@router.get(
    "/healthz",
    operation_id="health",
    summary="Whether the process is alive",
    tags=["Operation"],
    openapi_extra={"security": []},
    responses=responses_with(200, schemas.HealthResponse, 500, 503),
)
async def health(request: Request) -> Response:
    return json_response(request, {"status": "ok"})
