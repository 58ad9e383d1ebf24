"""What tests by the OpenAPI document share: what an answer must be, how inputs are generated, how faults are shown."""

from typing import Final

import hypothesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.support.bad_input import IS_REPEATED

CHECKS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
QUIET: Final = hypothesis.settings(
    deadline=None,
    database=None,
    derandomize=IS_REPEATED,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


def collected(faults: list[str]) -> None:
    """Reports all failures together: a corpus is read to its end."""
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(fault[:600] for fault in faults[:40])
