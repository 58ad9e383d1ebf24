"""Roles: the only definition of which operations each role may call."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from posthouse.rules.credential import Role
from posthouse.rules.refusal import Code, Refusal, invalid

# Each role includes the permissions of those before it.
_FROM_LEAST: Final = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)

PUBLIC: Final = frozenset(
    {
        "login",
        "getService",
        "loginByLink",
        "renewSession",
        "forgotPassword",
        "resetPassword",
        "acceptInvitation",
        "showUnsubscribe",
        "unsubscribe",
    }
)

# For programs, admitted as GET /emails/{id} is: by an API key with the read scope, among others. No role is needed.
FOR_READERS: Final = frozenset({"waitForMessage"})

# For users with the operator's flag, whatever their role (`rules/operator.py`).
FOR_OPERATORS: Final = frozenset(
    {
        "operatorOverview",
        "operatorListLanes",
        "operatorGetLane",
        "operatorPauseLane",
        "operatorResumeLane",
        "operatorUndoLesson",
        "operatorPinLane",
        "operatorQueue",
        "operatorChangeQueue",
        "operatorListAccounts",
        "operatorSuspendAccount",
        "operatorResumeAccount",
        "operatorVisitAccount",
        "operatorGetAccount",
        "operatorSetLimits",
        "operatorGrantCredits",
        "operatorCreateResend",
        "operatorGetResend",
        "operatorStopResend",
        "operatorFindMessages",
        "operatorGetMessage",
        "operatorGetMessageContent",
        "operatorListAddresses",
        "operatorFindUsers",
        "operatorEndSessions",
        "operatorListInbox",
        "operatorGetInboxMail",
        "operatorRemoveInboxMail",
        "operatorHealth",
        "operatorLog",
    }
)

# What messages say: an operator's read of it is in the account's log.
CONTENT: Final = frozenset({"getMessageContent", "getMessageRaw", "getMessageAttachment"})

# What concerns the user alone, in any role and without the second factor that an account requires.
OWN: Final = (
    "logout",
    "getMe",
    "switchAccount",
    "listSessions",
    "endSession",
    "changePassword",
    "beginTotp",
    "confirmTotp",
    "disableTotp",
    "renewRecoveryCodes",
)

# Viewers read, members send, admins manage keys and domains, owners manage the team.
_OPERATIONS: Final = {
    Role.VIEWER: (
        *OWN,
        "listMembers",
        "getAccount",
        "getAlerts",
        "saveAlerts",
        "listUsage",
        "listReasons",
        "getProgress",
        "listLedger",
        "listDomains",
        "getDomain",
        "listMessages",
        "getMessage",
        "getMessageContent",
        "getMessageRaw",
        "getMessageAttachment",
        "getResend",
        "watchAccount",
        "exportMessages",
        "exportLedger",
        "listSuppressions",
        "getErasure",
        "listEvents",
        "getWebhook",
        "listWebhookDeliveries",
        "getWebhookDelivery",
        "listEndpoints",
        "getEndpoint",
        "listEndpointDeliveries",
        "getEndpointDelivery",
        "listTemplates",
        "getTemplate",
        "previewTemplate",
    ),
    Role.MEMBER: (
        "sendTestEmail",
        "dryRunEmail",
        "retryMessage",
        "cancelMessages",
        "createResend",
        "stopResend",
        "addSuppression",
        "removeSuppression",
        "createErasure",
        "saveWebhook",
        "deleteWebhook",
        "rotateWebhookSecret",
        "pingWebhook",
        "replayWebhookDelivery",
        "replayWebhookDeliveries",
        "createEndpoint",
        "saveEndpoint",
        "deleteEndpoint",
        "rotateEndpointSecret",
        "pingEndpoint",
        "replayEndpoint",
        "replayEndpointDelivery",
        "createTemplate",
        "renameTemplate",
        "deleteTemplate",
        "createTemplateVersion",
        "publishTemplate",
    ),
    Role.ADMIN: (
        "addDomain",
        "verifyDomain",
        "rotateDomainKeys",
        "removeDomain",
        "listCredentials",
        "createCredential",
        "rotateCredential",
        "revokeCredential",
        "listKeys",
        "createKey",
        "rotateKey",
        "revokeKey",
        "importSuppressions",
        "exportSuppressions",
    ),
    Role.OWNER: (
        "renameAccount",
        "changeMemberRole",
        "removeMember",
        "listInvitations",
        "inviteMember",
        "revokeInvitation",
        "listAuditLog",
        "exportAuditLog",
        "requireSecondFactor",
    ),
}
# Operations that store more than before; others read, delete, or change what is there.
STORING: Final = frozenset(
    {
        "addDomain",
        "addSuppression",
        "createCredential",
        "createEndpoint",
        "createKey",
        "createTemplate",
        "createTemplateVersion",
        "createResend",
        "createErasure",
        "importSuppressions",
        "inviteMember",
        "pingEndpoint",
        "pingWebhook",
        "replayEndpoint",
        "replayEndpointDelivery",
        "replayWebhookDelivery",
        "replayWebhookDeliveries",
        "retryMessage",
        "rotateDomainKeys",
        "rotateKey",
        "sendTestEmail",
    }
)

SECOND_FACTOR_REQUIRED: Final = (
    "This account requires a second factor, and you have none: begin one with POST /v1/auth/totp."
)
NEEDED: Final[Mapping[str, Role]] = MappingProxyType(
    {operation: role for role, operations in _OPERATIONS.items() for operation in operations}
)


def parse_role(given: str) -> Role:
    """The role with this name."""
    if given not in list(Role):
        raise invalid(f"`role` is one of {', '.join(Role)}.")
    return Role(given)


def may(role: Role, needed: Role) -> bool:
    return _FROM_LEAST.index(role) >= _FROM_LEAST.index(needed)


def require(role: Role, operation: str) -> None:
    """Refuse a role that may not call the operation; an operation missing from the table raises KeyError."""
    needed = NEEDED[operation]
    if not may(role, needed):
        raise Refusal(
            Code.FORBIDDEN,
            f"This needs the role of {_spelled(needed)}, and yours is {role.value}: ask an owner of the account.",
        )


def require_second_factor(operation: str) -> None:
    """Refuse a user without a second factor, in an account that requires it, all but what concerns them alone."""
    if operation not in OWN:
        raise Refusal(Code.FORBIDDEN, SECOND_FACTOR_REQUIRED)


def _spelled(role: Role) -> str:
    return f"an {role.value}" if role.value[0] in "ao" else f"a {role.value}"
