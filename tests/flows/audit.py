"""The audit of a delivery flow's database."""

from posthouse.flows.operate.audit import Audit, OutsideLogs
from posthouse.store.seal import Sealer
from tests.support.context import context
from tests.support.delivery_flow import IDENTITY, DeliveryFlow
from tests.support.service import service_settings


async def audit_findings(flow: DeliveryFlow) -> list[str]:
    """What the audit finds, in words."""
    secrets = service_settings(flow.steps.url).secrets
    audit = Audit(
        context(
            flow.steps.database,
            flow.clock,
            sealer=Sealer(secrets.seal_key_bytes, secrets.seal_key_active),
            return_path=[IDENTITY.return_path_key],
        ),
        return_path_domain=IDENTITY.return_path_domain,
        simulator_domain="simulator.invalid",
    )
    tally = await audit.audit(OutsideLogs(), lambda _: None)
    return [f"{finding.promise.name}: {finding.what}" for finding in tally.findings]
