"""Scopes: the only definition of which operations an API key may call."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from posthouse.rules import input_checks, limits
from posthouse.rules.credential import Mode, Scope
from posthouse.rules.refusal import invalid

_OPERATIONS: Final[Mapping[Scope, tuple[str, ...]]] = {
    Scope.SEND: ("sendEmail", "sendEmailBatch", "cancelEmail", "moveEmail", "dryRunEmail"),
    Scope.READ: ("getEmail", "waitForMessage"),
    Scope.EVENTS: ("listEvents",),
    Scope.MESSAGES: (
        "listMessages",
        "exportMessages",
        "getMessage",
        "getMessageContent",
        "getMessageRaw",
        "getMessageAttachment",
        "retryMessage",
        "cancelMessages",
        "createResend",
        "getResend",
        "stopResend",
    ),
    Scope.TEMPLATES: (
        "listTemplates",
        "getTemplate",
        "previewTemplate",
        "createTemplate",
        "renameTemplate",
        "deleteTemplate",
        "createTemplateVersion",
        "publishTemplate",
    ),
    Scope.SUPPRESSIONS: (
        "listSuppressions",
        "addSuppression",
        "removeSuppression",
        "importSuppressions",
        "exportSuppressions",
        "createErasure",
        "getErasure",
    ),
    Scope.DOMAINS: (
        "listDomains",
        "getDomain",
        "addDomain",
        "verifyDomain",
        "rotateDomainKeys",
        "removeDomain",
    ),
    Scope.ENDPOINTS: (
        "listEndpoints",
        "createEndpoint",
        "getEndpoint",
        "saveEndpoint",
        "deleteEndpoint",
        "rotateEndpointSecret",
        "pingEndpoint",
        "listEndpointDeliveries",
        "getEndpointDelivery",
        "replayEndpoint",
        "replayEndpointDelivery",
    ),
}
# They make a server send mail: a key needs `send` as well.
_SENDING: Final = frozenset({"retryMessage", "createResend"})
NEEDED: Final[Mapping[str, tuple[Scope, ...]]] = MappingProxyType(
    {
        operation: (scope, Scope.SEND) if operation in _SENDING else (scope,)
        for scope, operations in _OPERATIONS.items()
        for operation in operations
    }
)
# Scopes for mail itself; all others are for the account, under /v1.
FOR_MAIL: Final = frozenset({Scope.SEND, Scope.READ})


def require_combination(mode: Mode, scopes: Sequence[Scope], domains: Sequence[str]) -> None:
    """Refuse a key that would see more than its mode or its domains allow."""
    others = [scope.value for scope in scopes if scope not in FOR_MAIL]
    if others and mode is Mode.TEST:
        raise invalid(f"`scopes`: a test key has `send` and `read` alone, not `{others[0]}`: make a live key.")
    if others and domains:
        raise invalid(
            f"`sender_domains`: a key that is bound to domains has `send` and `read` alone, not `{others[0]}`."
        )


def sender_domains(given: Sequence[str] | None) -> tuple[str, ...]:
    """The domains that a key is bound to, as A-labels; none by default."""
    if given is not None and len(given) > limits.KEY_DOMAINS_MAX:
        raise invalid(f"`sender_domains` has at most {limits.KEY_DOMAINS_MAX} domains.")
    return tuple(dict.fromkeys(input_checks.domain_name(name, "sender_domains") for name in given or ()))
