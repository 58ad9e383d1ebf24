"""The routes of the alerts that a member gets by mail."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, json_response, member_of, services_of, timestamp
from posthouse.entrypoints.http.schemas import alerts as schemas
from posthouse.flows.account.alerts import MemberAlert
from posthouse.rules.alert import SCALES

router = APIRouter()


@router.get(
    "/v1/account/alerts",
    operation_id="getAlerts",
    summary="The alerts of the account: which of them you chose, their values now, and what is raised",
    tags=["Account"],
    responses=responses_with(200, schemas.AlertsResponse, 401, 403, 500, 503),
)
async def get_alerts(request: Request) -> Response:
    member = await member_of(request)
    return _response(request, await services_of(request).alerts.of(member))


@router.put(
    "/v1/account/alerts",
    operation_id="saveAlerts",
    summary="Choose which alerts of the account you get by mail",
    tags=["Account"],
    openapi_extra=json_body(schemas.SaveAlertsRequest),
    responses=responses_with(200, schemas.AlertsResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def save_alerts(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.SaveAlertsRequest)
    given = [(alert.kind, alert.threshold) for alert in body.alerts]
    return _response(request, await services_of(request).alerts.save(member, given))


def _response(request: Request, found: Sequence[MemberAlert]) -> Response:
    return json_response(request, {"alerts": [_alert(alert) for alert in found]})


def _alert(alert: MemberAlert) -> dict[str, Any]:
    scale = SCALES.get(alert.kind)
    measured = [reading.value for reading in alert.readings if reading.value is not None]
    return {
        "kind": alert.kind.value,
        "chosen": alert.is_chosen,
        "unit": None if scale is None else scale.unit,
        "threshold": None if scale is None else alert.threshold,
        # Of several keys, the one that ends first.
        "value": round(min(measured), 4) if scale is not None and measured else None,
        "raised": [{"subject": state.label or None, "since": timestamp(state.raised_at)} for state in alert.raised],
    }
