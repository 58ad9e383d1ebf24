"""Reference pages of the site that are made from what the service declares: the API, and its limits."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from posthouse.rules import limits as numbers
from tools.write_openapi import resolved

OPENAPI: Final = Path(__file__).parents[1] / "docs" / "reference" / "openapi.json"
CREDENTIALS: Final = {
    "smtpCredential": "SMTP username and password",
    "apiKey": "API key",
    "dashboard": "token of a login",
}
SCHEMA: Final = "#/components/schemas/"

# Constants of rules/limits.py that a customer can meet, with their unit.
LIMITS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "A message": {
        "RECIPIENTS_MAX": ("Unique recipients over `to`, `cc` and `bcc`", ""),
        "RECIPIENTS_GIVEN_MAX": ("Addresses in a single field, duplicates included", ""),
        "SUBJECT_CHARACTERS_MAX": ("Subject", "characters"),
        "MIME_BYTES_MAX": ("Assembled message, attachments encoded", "bytes"),
        "HTTP_BODY_BYTES_MAX": ("Body of an HTTP request", "bytes"),
        "ATTACHMENTS_MAX": ("Attachments", ""),
        "FILENAME_CHARACTERS_MAX": ("File name of an attachment", "characters"),
        "CONTENT_TYPE_CHARACTERS_MAX": ("Content type of an attachment", "characters"),
        "CONTENT_ID_CHARACTERS_MAX": ("Content id of an inline image", "characters"),
        "TAGS_MAX": ("Tags", ""),
        "TAG_CHARACTERS_MAX": ("A tag", "characters"),
        "VARIABLES_MAX": ("Template variables", ""),
        "HEADERS_MAX": ("Custom headers", ""),
        "HEADER_NAME_CHARACTERS_MAX": ("Name of a custom header", "characters"),
        "HEADER_VALUE_BYTES_MAX": ("Value of a custom header", "bytes"),
        "HEADERS_BYTES_MAX": ("All custom headers", "bytes"),
        "ADDRESS_CHARACTERS_MAX": ("An address", "characters"),
        "IDEMPOTENCY_KEY_CHARACTERS_MAX": ("Idempotency-Key", "characters"),
        "IDEMPOTENCY_LIFETIME_SECONDS": ("Time that a key is remembered", "seconds"),
    },
    "Rates": {
        "RATE_PER_SECOND": ("Messages of an account in a second, by default", ""),
        "RATE_BURST": ("Messages of an account at once, by default", ""),
        "WRITES_PER_SECOND": ("Changes of an account under `/v1` in a second", ""),
        "WRITES_BURST": ("Changes of an account under `/v1` at once", ""),
        "WARMUP_RECIPIENTS_BY_DAY": ("Recipients on each day of a new account's warm-up", ""),
        "DOMAIN_KEYS_PER_MINUTE": ("Domains added and keys rotated in a minute", ""),
        "DOMAIN_ASKED_SECONDS": ("Time between two checks of a domain", "seconds"),
        "LOGIN_FAILURES_FREE": ("Failed logins in a row before there is a wait", ""),
        "LOGIN_WAIT_SECONDS_MAX": ("Longest wait after failed logins", "seconds"),
    },
    "An account": {
        "TEMPLATES_MAX": ("Templates", ""),
        "TEMPLATE_VERSIONS_MAX": ("Stored versions of a template", ""),
        "TEMPLATE_PART_CHARACTERS_MAX": ("Subject, text or HTML of a template", "characters"),
        "TEMPLATE_PLACEHOLDERS_MAX": ("Placeholders in a part of a template", ""),
        "TEMPLATES_BYTES_MAX": ("All templates", "bytes"),
        "DOMAINS_MAX": ("Domains", ""),
        "CREDENTIALS_MAX": ("SMTP credentials", ""),
        "KEYS_MAX": ("API keys", ""),
        "KEY_DAYS_MAX": ("Lifetime of an API key that expires", "days"),
        "KEYS_ENDED_DAYS": ("Time that ended keys stay in the list", "days"),
        "OVERLAP_SECONDS": ("Time that a rotated secret still works, by default", "seconds"),
        "OVERLAP_SECONDS_MAX": ("Time that a rotated secret still works, at most", "seconds"),
        "MEMBERS_MAX": ("Members", ""),
        "INVITATIONS_MAX": ("Open invitations", ""),
        "INVITATION_LIFETIME_SECONDS": ("Lifetime of an invitation", "seconds"),
        "PASSWORD_RESET_SECONDS": ("Lifetime of a password reset", "seconds"),
        "PASSWORD_CHARACTERS_MIN": ("Shortest password", "characters"),
        "PASSWORD_CHARACTERS_MAX": ("Longest password", "characters"),
        "JWT_LIFETIME_SECONDS": ("Lifetime of a login's token", "seconds"),
        "SESSIONS_PER_USER_MAX": ("Sessions of a user", ""),
        "AUDIT_LOG_DAYS": ("Time that the audit log is kept", "days"),
    },
}


def limits() -> str:
    lines = [
        "# Limits",
        "",
        "Every limit that a customer can meet, from `src/posthouse/rules/limits.py`. What exceeds a limit is",
        "refused with an error that names it. Limits of an SMTP session are in the [rules of mail over",
        "SMTP](submission.md#bounds), those of webhooks in [their rules](webhooks.md).",
    ]
    for title, rows in LIMITS.items():
        lines += ["", f"## {title}", "", "| What | At most |", "|---|---|"]
        lines += [f"| {text} | {_amount(getattr(numbers, name), unit)} |" for name, (text, unit) in rows.items()]
    return "\n".join([*lines, ""])


def _amount(value: float | tuple[int, ...], unit: str) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{day:,}" for day in value)
    sizes = {
        "bytes": ((numbers.MIB, "MiB"), (1024, "KiB")),
        "seconds": ((86_400, "days"), (3600, "hours"), (60, "minutes")),
    }
    for size, name in sizes.get(unit, ()):
        if value >= size and value % size == 0:
            count = int(value // size)
            return f"{count:,} {name.removesuffix('s') if count == 1 else name}"
    return f"{value:,} {unit}".strip()


def api() -> str:
    document = json.loads(OPENAPI.read_text(encoding="utf-8"))
    return "\n".join(_api(document)) + "\n"


def _api(document: Mapping[str, Any]) -> Iterator[str]:
    yield "# API"
    yield ""
    yield (
        f"Version {document['info']['version']}, made from [openapi.json](openapi.json). A running service shows the "
        "same at `/docs`, where every request can be tried. What applies beyond the shape of requests is in the "
        "[rules](rules.md), and what each error means in [errors](errors.md)."
    )
    yield ""
    yield "![The same document at /docs of a running service](../assets/screenshots/docs.png)"
    yield ""
    yield document["info"]["description"].partition("\n| Limit")[0].strip()
    operations: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operations.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, found in operations.items():
        yield from ("", f"## {tag}")
        for method, path, operation in found:
            yield from _operation(method, path, operation)
    yield from ("", "## Objects")
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", f"### {method} {path} {{#{operation['operationId'].lower()}}}", "", f"{operation['summary']}.")
    if text := operation.get("description"):
        yield from ("", text)
    accepted = [CREDENTIALS[name] for choice in operation.get("security", []) for name in choice]
    yield from ("", f"Credential: {', or '.join(accepted) if accepted else 'none'}.")
    if parameters := operation.get("parameters"):
        yield from ("", "| Parameter | In | Type | Meaning |", "|---|---|---|---|")
        for parameter in map(resolved, parameters):
            required = ", required" if parameter.get("required") and parameter["in"] != "path" else ""
            schema = parameter["schema"]
            meaning = _cell(parameter.get("description") or schema.get("description", ""))
            yield f"| `{parameter['name']}` | {parameter['in']}{required} | {_type(schema)} | {meaning} |"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from ("", f"Request body, `{kind}`: {_type(content.get('schema', {}))}.")
    yield from ("", "| Status | Meaning | Body |", "|---|---|---|")
    for status, declared in operation["responses"].items():
        response = resolved(declared)
        bodies = ", ".join(_type(content.get("schema", {})) for content in response.get("content", {}).values())
        yield f"| {status} | {_cell(response['description'])} | {bodies} |"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", f"### {name} {{#object-{name.lower()}}}")
    if text := schema.get("description"):
        yield from ("", text.strip())
    if "enum" in schema:
        yield from ("", ", ".join(f"`{value}`" for value in schema["enum"]))
    if not (properties := schema.get("properties")):
        return
    required = schema.get("required", [])
    yield from ("", "| Field | Type | Meaning |", "|---|---|---|")
    for field, inner in properties.items():
        mark = "" if field in required else " (optional)"
        yield f"| `{field}`{mark} | {_type(inner)} | {_cell(inner.get('description', ''))} |"


def _type(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.removeprefix(SCHEMA)
        return f"[{name}](#object-{name.lower()})"
    if choices := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(inner := schema.get("additionalProperties"), dict):
        return f"object of {_type(inner)}"
    return str(schema.get("type", "any"))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
