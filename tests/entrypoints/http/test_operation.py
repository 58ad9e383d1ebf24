"""Who may call each operation: what the operations declare is what the reference promises."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from posthouse.entrypoints.http.app import OPERATIONS
from posthouse.entrypoints.http.operation import Operations, Operator, Reader
from posthouse.entrypoints.http.shapes import DeletedResponse
from posthouse.flows.shared.principal import Caller, Member
from posthouse.rules.credential import Role, Scope
from tests.support.declared_access import FOR_OPERATORS, FOR_PROGRAMS, NEEDED, OWN, PUBLIC, SCOPES

REFERENCE: Final = Path(__file__).parents[3] / "docs" / "reference"
READ_ACTIONS: Final = {
    **dict.fromkeys(("getMessageContent", "getMessageRaw", "getMessageAttachment"), "message.content_read"),
    "exportMessages": "messages.exported",
    "exportLedger": "ledger.exported",
}
STORES: Final = {
    *("addDomain", "addSuppression", "createCredential", "createEndpoint", "createKey", "createTemplate"),
    *("createTemplateVersion", "createResend", "createErasure", "importSuppressions", "inviteMember", "pingEndpoint"),
    *("pingWebhook", "replayEndpoint", "replayEndpointDelivery", "replayWebhookDelivery", "replayWebhookDeliveries"),
    *("retryMessage", "rotateDomainKeys", "rotateKey", "sendTestEmail"),
}


def test_the_reference_has_the_roles() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (REFERENCE / "team.md").read_text(), re.MULTILINE)
    assert {operation: name for name, listed in rows for operation in re.findall(r"`(\w+)`", listed)} == NEEDED


def test_the_reference_has_the_scopes() -> None:
    text = (REFERENCE / "credentials.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?: and )?)+) \| (`.+) \|$", text, re.MULTILINE)
    words = [[tuple(re.findall(r"`(\w+)`", cell)) for cell in row] for row in rows]
    assert [scopes[0] for scopes, _ in words if len(scopes) == 1] == list(Scope)
    assert {operation: scopes for scopes, listed in words for operation in listed} == SCOPES


def test_without_a_role_or_a_scope_an_operation_is_public_or_for_operators() -> None:
    links = {"showUnsubscribe", "unsubscribe"}
    logins = {"login", "loginByLink", "renewSession", "forgotPassword", "resetPassword", "acceptInvitation"}
    assert {"health", "getService", *logins, *links} == PUBLIC
    assert {"sendEmail", "sendEmailBatch", "getEmail", "cancelEmail", "moveEmail", "waitForMessage"} == FOR_PROGRAMS
    # The dashboard relies on the name.
    assert {operation for operation in OPERATIONS if operation.startswith("operator")} == FOR_OPERATORS


def test_what_concerns_only_the_user_needs_no_second_factor() -> None:
    sessions = {"logout", "getMe", "switchAccount", "listSessions", "endSession", "changePassword"}
    assert {*sessions, "beginTotp", "confirmTotp", "disableTotp", "renewRecoveryCodes"} == OWN
    assert OWN & set(SCOPES) == set()


def test_the_accounts_log_says_that_an_operator_reads_content_or_takes_a_file() -> None:
    assert {name: access.read_action for name, access in OPERATIONS.items() if access.read_action} == READ_ACTIONS


def test_an_operator_who_impersonates_a_viewer_can_only_end_that() -> None:
    assert {name for name, access in OPERATIONS.items() if access.ends_impersonation} == {"logout"}


def test_what_stores_more_is_refused_while_disk_space_is_low() -> None:
    assert {name for name, access in OPERATIONS.items() if access.stores} == STORES


@pytest.mark.parametrize("operation", ["retryMessage", "createResend"])
def test_what_makes_a_server_send_mail_needs_the_scope_send_too(operation: str) -> None:
    assert SCOPES[operation] == (Scope.MESSAGES, Scope.SEND)


def test_no_scope_opens_logins_webhooks_keys_or_the_team() -> None:
    closed = re.compile("webhook|key|credential|member|invit|session|totp|account|password", re.IGNORECASE)
    assert [name for name in SCOPES if closed.search(name)] == ["rotateDomainKeys"]


async def for_a_caller(caller: Caller) -> DeletedResponse:
    raise AssertionError


async def for_a_member(member: Member) -> DeletedResponse:
    raise AssertionError


async def for_operators(operator: Operator) -> DeletedResponse:
    raise AssertionError


async def for_a_reader(reader: Reader) -> DeletedResponse:
    raise AssertionError


async def for_anyone() -> DeletedResponse:
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "needed", "scope"),
    [
        (for_a_caller, None, Scope.DOMAINS),
        (for_a_caller, Role.VIEWER, None),
        (for_a_member, None, None),
        (for_operators, Role.OWNER, None),
        (for_a_reader, None, None),
        (for_anyone, Role.VIEWER, None),
    ],
)
def test_an_operation_that_does_not_say_who_may_call_it_is_refused(
    function: Callable[..., Any], needed: Role | None, scope: Scope | None
) -> None:
    with pytest.raises(ValueError, match="need one"):
        Operations("Tests", scope).get("/v1/tests", needed)(function)
