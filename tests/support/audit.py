"""The audit of a delivery flow's database."""

from posthouse.flows.operate.audit import Audit, OutsideLogs
from posthouse.store.seal import Sealer
from tests.support.delivery_flow import IDENTITY, DeliveryFlow
from tests.support.service import service_settings


async def audit_findings(flow: DeliveryFlow) -> list[str]:
    """What the audit finds, in words."""
    secrets = service_settings(flow.steps.url).secrets
    audit = Audit(
        database=flow.steps.database,
        clock=flow.clock,
        sealer=Sealer(secrets.seal_key_bytes, secrets.seal_key_active),
        return_path_domain=IDENTITY.return_path_domain,
        return_path_keys=[IDENTITY.return_path_key],
        simulator_domain="simulator.invalid",
    )
    tally = await audit.audit(OutsideLogs(), lambda _: None)
    return [f"{finding.promise.name}: {finding.what}" for finding in tally.findings]
