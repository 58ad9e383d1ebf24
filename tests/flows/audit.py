"""The audit of a delivery flow's database."""

from posthouse.flows.operate.audit import Audit, OutsideLogs
from posthouse.rules.audit.promises import AuditTally
from posthouse.store.seal import Sealer
from tests.support.context import context
from tests.support.delivery_flow import IDENTITY, DeliveryFlow
from tests.support.service import service_settings


def audit_of(flow: DeliveryFlow, sealer: Sealer | None = None) -> Audit:
    secrets = service_settings(flow.steps.url).secrets
    sealer = sealer or Sealer(secrets.seal_key_bytes, secrets.seal_key_active)
    return Audit(
        context(flow.steps.database, flow.clock, sealer=sealer, return_path=[IDENTITY.return_path_key]),
        return_path_domain=IDENTITY.return_path_domain,
        simulator_domain="simulator.invalid",
    )


async def tally_of(flow: DeliveryFlow) -> AuditTally:
    return await audit_of(flow).audit(OutsideLogs(), lambda _: None)


async def audit_findings(flow: DeliveryFlow) -> list[str]:
    """What the audit finds, in words."""
    return [f"{finding.promise.name}: {finding.what}" for finding in (await tally_of(flow)).findings]
