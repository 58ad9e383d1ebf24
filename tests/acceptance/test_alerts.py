"""Alerts over HTTP: chosen by a member, for themselves; raised and cleared by mail."""

from typing import Any

import pytest

from posthouse.rules.alert import SCALES, AlertKind
from tests.acceptance.test_sessions import as_user, person
from tests.support.service import Service, Tenant

PATH = "/v1/account/alerts"


async def save(service: Service, token: str, *alerts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    answer = await as_user(service, "PUT", PATH, token, {"alerts": list(alerts)})
    assert answer.status == 200, answer.raw
    return {alert["kind"]: alert for alert in answer.body["alerts"]}


async def shown(service: Service, token: str) -> dict[str, dict[str, Any]]:
    answer = await as_user(service, "GET", PATH, token)
    assert answer.status == 200, answer.raw
    return {alert["kind"]: alert for alert in answer.body["alerts"]}


@pytest.mark.rule("ALT-01", "ALT-02", "ALT-03")
async def test_each_member_of_any_role_chooses_their_own_alerts(tenant: Tenant) -> None:
    service = tenant.service
    ada, bob = await person(tenant, "viewer"), await person(tenant)
    found = await shown(service, ada.token)
    assert list(found) == list(AlertKind)
    assert not any(alert["chosen"] or alert["raised"] for alert in found.values())
    assert {kind: alert["threshold"] for kind, alert in found.items()} == {
        kind: SCALES[kind].default if kind in SCALES else None for kind in AlertKind
    }
    assert (found["credits_left"]["unit"], found["credits_left"]["value"]) == ("credits", 1_000)
    saved = await save(service, ada.token, {"kind": "credits_left", "threshold": 500.5}, {"kind": "webhook_failing"})
    assert saved == await shown(service, ada.token)
    assert [kind for kind, alert in saved.items() if alert["chosen"]] == ["credits_left", "webhook_failing"]
    assert saved["credits_left"]["threshold"] == 500.5
    assert not any(alert["chosen"] for alert in (await shown(service, bob.token)).values())
    assert not any(alert["chosen"] for alert in (await save(service, ada.token)).values())
    noted = await service.sql(
        "SELECT actor, detail FROM audit_log WHERE account_id = $1 AND action = 'alerts.saved' ORDER BY id", tenant.id
    )
    assert [row["actor"] for row in noted] == [ada.email] * 2


@pytest.mark.rule("ALT-02")
async def test_alerts_that_can_not_be_are_refused_and_nothing_is_saved(tenant: Tenant) -> None:
    service, ada = tenant.service, await person(tenant, "viewer")
    await save(service, ada.token, {"kind": "days_left"})
    odd: list[tuple[Any, str]] = [
        ({"alerts": [{"kind": "weather"}]}, "kind"),
        ({"alerts": [{"kind": "days_left"}, {"kind": "days_left"}]}, "more than once"),
        ({"alerts": [{"kind": "days_left", "threshold": 0}]}, "1 to 365 days"),
        ({"alerts": [{"kind": "days_left", "threshold": 1e300}]}, "1 to 365 days"),
        ({"alerts": [{"kind": "webhook_failing", "threshold": 1}]}, "leave it out"),
        ({"alerts": [{"kind": "days_left", "threshold": "7"}]}, "threshold"),
        ({"alerts": [{"kind": "days_left", "threshold": True}]}, "threshold"),
        ({"alerts": [{"kind": "days_left", "more": 1}]}, "more"),
        ({"alerts": [7]}, "alerts"),
        ({"alerts": {}}, "alerts"),
        ({}, "alerts"),
    ]
    for body, named in odd:
        assert (await as_user(service, "PUT", PATH, ada.token, body)).is_refusal(400, "invalid_request", named)
    assert [kind for kind, alert in (await shown(service, ada.token)).items() if alert["chosen"]] == ["days_left"]
