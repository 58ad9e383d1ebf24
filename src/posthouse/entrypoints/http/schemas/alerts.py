"""Request and response schemas of alerts."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import Request, Response, Timestamp, described
from posthouse.rules.alert import SCALES, AlertKind

_KIND: Final = Field(
    description="What the alert is about.", json_schema_extra={"enum": [kind.value for kind in AlertKind]}
)
_RANGES: Final = "; ".join(f"{kind}: {scale.lowest:g} to {scale.highest:g}" for kind, scale in SCALES.items())
_RAISED: Final[dict[str, Any]] = {"subject": None, "since": "2026-11-16T03:04:05.000Z"}


class ChosenAlert(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Annotated[str, _KIND]
    threshold: Annotated[float | None, described(f"Left out: the default. {_RANGES}; the other kinds take none.")] = (
        None
    )


class SaveAlertsRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"alerts": [{"kind": "credits_left", "threshold": 500}, {"kind": "webhook_failing"}]}]
        }
    )

    alerts: Annotated[
        list[ChosenAlert],
        described("All alerts that you want by mail; those left out are given up.", maxItems=len(AlertKind)),
    ]


class RaisedAlert(BaseModel):
    subject: Annotated[str | None, described("The domain or the key; null for the account as a whole.")]
    since: Timestamp


class Alert(BaseModel):
    kind: Annotated[str, _KIND]
    chosen: Annotated[bool, described("Whether you get mail about it.")]
    unit: Annotated[str | None, described("Of `threshold` and `value`: `percent`, `minutes`, `credits` or `days`.")]
    threshold: Annotated[float | None, described("Yours, or the default; null for kinds without one.")]
    value: Annotated[float | None, described("What is measured now; null when there is nothing to measure.")]
    raised: Annotated[list[RaisedAlert], described("For what it is raised; empty while all is well, or not chosen.")]


class AlertsResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "alerts": [
                        {
                            "kind": "credits_left",
                            "chosen": True,
                            "unit": "credits",
                            "threshold": 500.0,
                            "value": 120.0,
                            "raised": [_RAISED],
                        }
                    ],
                    "request_id": "rq_01kb3ge5p0f8wexample00000r",
                }
            ]
        }
    )

    alerts: list[Alert]
