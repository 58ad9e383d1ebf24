"""What a client needs to know of this installation before a login; it holds no secret."""

from dataclasses import asdict

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import json_response, require_declared_parameters, services_of
from posthouse.entrypoints.http.schemas import service as schemas

router = APIRouter()


@router.get(
    "/v1/service",
    operation_id="getService",
    summary="This installation: its name and version, and what is set up",
    tags=["Operation"],
    openapi_extra={"security": []},
    responses=responses_with(200, schemas.ServiceResponse, 500, 503),
)
async def get_service(request: Request) -> Response:
    require_declared_parameters(request)
    return json_response(request, {"service": asdict(services_of(request).service_info)})
