"""Roles: what each of them may do, operation by operation; the only place that says so."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from posthouse.rules.credential import Role
from posthouse.rules.refusal import Code, Refusal, invalid

# Each may do all that those before it may.
_FROM_LEAST: Final = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)

PUBLIC: Final = frozenset({"login", "acceptInvitation", "showUnsubscribe", "unsubscribe"})

# Viewers look, members send, admins hold the keys and the domains, owners say who is who.
_OPERATIONS: Final = {
    Role.VIEWER: (
        "logout",
        "getMe",
        "switchAccount",
        "changePassword",
        "beginTotp",
        "confirmTotp",
        "disableTotp",
        "listMembers",
        "getAccount",
        "listUsage",
        "listLedger",
        "listDomains",
        "getDomain",
        "listMessages",
        "getMessage",
        "getMessageContent",
        "getMessageRaw",
        "listSuppressions",
        "listEvents",
        "getWebhook",
        "listWebhookDeliveries",
        "listTemplates",
        "getTemplate",
        "previewTemplate",
    ),
    Role.MEMBER: (
        "sendTestEmail",
        "dryRunEmail",
        "addSuppression",
        "removeSuppression",
        "saveWebhook",
        "deleteWebhook",
        "rotateWebhookSecret",
        "pingWebhook",
        "replayWebhookDelivery",
        "createTemplate",
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
        "changeMemberRole",
        "removeMember",
        "listInvitations",
        "inviteMember",
        "revokeInvitation",
        "listAuditLog",
    ),
}
NEEDED: Final[Mapping[str, Role]] = MappingProxyType(
    {operation: role for role, operations in _OPERATIONS.items() for operation in operations}
)


def parse_role(given: str) -> Role:
    """The role of that name."""
    if given not in list(Role):
        raise invalid(f"`role` is one of {', '.join(Role)}.")
    return Role(given)


def may(role: Role, needed: Role) -> bool:
    return _FROM_LEAST.index(role) >= _FROM_LEAST.index(needed)


def require(role: Role, operation: str) -> None:
    """An operation that the table doesn't know is a fault, and opens to nobody."""
    needed = NEEDED[operation]
    if not may(role, needed):
        raise Refusal(
            Code.FORBIDDEN,
            f"This needs the role of {_spelled(needed)}, and yours is {role.value}: ask an owner of the account.",
        )


def _spelled(role: Role) -> str:
    return f"an {role.value}" if role.value[0] in "ao" else f"a {role.value}"
