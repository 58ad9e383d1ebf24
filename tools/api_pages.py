"""The pages of the API on the documentation site: one for each operation, their index, and the events.

Everything is from docs/reference/openapi.json, the declared operations, the rules in docs/reference, and the functions
that write events.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from posthouse.entrypoints.http.app import OPERATIONS
from posthouse.entrypoints.http.openapi import ERRORS
from posthouse.entrypoints.refusals import REPLIES
from posthouse.rules import endpoint, event, ids
from posthouse.rules.credential import Scope
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.endpoint import FurtherType, MailFacts
from posthouse.rules.event import EventType
from posthouse.rules.message import Source
from posthouse.rules.refusal import Code
from tools.write_openapi import FILE, resolved

JSON: Final = "application/json"
DIRECTORY: Final = "api"
_ABBREVIATIONS: Final = {"totp": "TOTP"}
RULE: Final = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* ((?:.+\n)(?:  .+\n)*)", re.MULTILINE)
# A call in a rule: whole, or the end of one such as `POST …/stop`, `/{lane}` or `DELETE`.
_CALL: Final = re.compile(r"`(?:(GET|POST|PUT|PATCH|DELETE)\b ?)?((?:…?/[^` ?]*)?)[^`]*`")
# What stands in front of a call that its sentence is about.
_SUBJECT: Final = re.compile(r"(?:^|[.;,] |` and )$")
_LINK: Final = re.compile(r"\]\((?!https?:)([^)]*)\)")
_INDEX: Final = """
{count} operations, each with a request, its answer, its fields and its errors. Begin with the
[basics](../reference/api-basics.md), then [send an email](send-email.md). [Events](events.md) are what webhooks
receive; [errors](../reference/errors.md) have their causes, and what to do. For programs, the same is in
[openapi.json](../reference/openapi.json); a running service shows it at `/docs`, where every request can be tried.
"""
_EVENTS: Final = """
[The webhook](../howto/receive-webhooks.md) of an account gets the first four.
[Endpoints](../howto/receive-webhooks.md#endpoints) can get all of them, and about a message a few more fields: `reason`
(if something went wrong), `mode`, and your `tags` and `metadata`. [List events](list-events.md) shows those of the last
30 days. Empty fields are left out, and new fields may be added. What holds for events:
[webhooks](../reference/webhooks.md#what-is-sent), [endpoints](../reference/endpoints.md).
"""
# Where all rules of a family are; those of an operation are on its page.
RULES: Final = {
    "Email": "rules.md",
    "Templates": "rules.md#templates",
    "Sessions": "sessions.md",
    "Team": "team.md",
    "Account": "account.md",
    "Domains": "domains.md",
    "Credentials": "credentials.md",
    "Keys": "credentials.md",
    "Messages": "message-detail.md",
    "Suppressions": "suppressions.md",
    "Webhooks": "webhooks.md",
    "Endpoints": "endpoints.md",
    "Events": "webhooks.md#events",
    "Unsubscribe": "rules.md#leaving-a-list",
    "Operation": "rules.md#http",
    "Operator": "operator.md",
}
# Sections of rules.md that are about one operation, whose rules therefore don't name it.
_SECTIONS: Final = {
    "The send response": "POST /emails",
    "Idempotency": "POST /emails",
    "Reading a message": "GET /emails/{id}",
    "Login": "POST /v1/auth/login",
}
# Codes that only operations that send can answer with, or only those that take an Idempotency-Key.
_OF_SENDING: Final = {Code.ACCOUNT_SUSPENDED, Code.WARMUP_LIMITED}
_OF_KEYS: Final = {Code.IDEMPOTENCY_CONFLICT, Code.IDEMPOTENCY_IN_PROGRESS}


class Operation:
    """An operation of the document, and what its page says."""

    def __init__(self, method: str, path: str, declared: Mapping[str, Any]) -> None:
        self.method, self.path, self.declared = method.upper(), path, declared
        self.id: str = declared["operationId"]
        self.family: str = declared["tags"][0]
        self.access = OPERATIONS[self.id]
        words = re.sub("([A-Z])", r" \1", self.id).lower().split()
        self.uri = f"{DIRECTORY}/{'-'.join(words)}.md"
        if self.access.is_for_operators:
            words.remove("operator")
        title = " ".join(_ABBREVIATIONS.get(word, word) for word in words)
        self.title = title[0].upper() + title[1:]

    @property
    def parameters(self) -> list[Mapping[str, Any]]:
        return [resolved(each, document()) for each in self.declared.get("parameters", ())]

    @property
    def body_schema(self) -> Mapping[str, Any] | None:
        """Of a body in JSON."""
        content = self.declared.get("requestBody", {}).get("content", {})
        return content[JSON]["schema"] if JSON in content else None

    @property
    def answer(self) -> tuple[str, Mapping[str, Any]]:
        """The status of the first success, and its response."""
        return next((status, resolved(found, document())) for status, found in self.declared["responses"].items())

    @property
    def answer_schema(self) -> Mapping[str, Any] | None:
        content = self.answer[1].get("content", {})
        return content[JSON]["schema"] if JSON in content else None

    @property
    def answer_example(self) -> Any:
        """The operation's own, or its schema's."""
        content = self.answer[1]["content"][JSON]
        return _in_order(content["example"], content["schema"]) if "example" in content else example(content["schema"])

    @property
    def page(self) -> str:
        return "\n".join(_page(self)) + "\n"


@cache
def document() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


@cache
def families() -> dict[str, list[Operation]]:
    """The operations by their family, in the document's order."""
    found: dict[str, list[Operation]] = {}
    for path, methods in document()["paths"].items():
        for method, declared in methods.items():
            operation = Operation(method, path, declared)
            found.setdefault(operation.family, []).append(operation)
    return found


def pages() -> dict[str, str]:
    """Every generated page, by its address in the site's sources."""
    operations = [operation for family in families().values() for operation in family]
    return {
        f"{DIRECTORY}/index.md": "\n".join(_index()) + "\n",
        f"{DIRECTORY}/events.md": "\n".join(_events()) + "\n",
        **{operation.uri: operation.page for operation in operations},
    }


def navigation() -> list[Any]:
    return [{name: [operation.uri for operation in family]} for name, family in families().items()]


def example(schema: Mapping[str, Any]) -> Any:
    """A value of the schema, from the examples that it and its parts declare; a KeyError if a part has none."""
    if "$ref" in schema:
        return example(resolved(dict(schema), document()))
    if "examples" in schema:
        return _in_order(schema["examples"][0], schema)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema:
        case {"anyOf": choices}:
            is_nullable = {"type": "null"} in choices
            try:
                return example(next(choice for choice in choices if choice != {"type": "null"}))
            except KeyError:
                if is_nullable:
                    return None
                raise
        case {"type": "object", "properties": properties}:
            needed = sorted(schema.get("required", ()), key="request_id".__eq__)
            return {name: example(properties[name]) for name in needed}
        case {"type": "array", "items": {"type": "string"} as items} if "examples" not in items and "enum" not in items:
            return []
        case {"type": "array", "items": items}:
            return [example(items)]
        case {"type": "boolean"}:
            return True
        case {"type": "integer" | "number"}:
            return 1
        case {"type": "string", "format": "date-time"}:
            return "2026-11-15T09:30:00Z"
    raise KeyError(f"no example: {schema}")


def _in_order(value: Any, schema: Mapping[str, Any]) -> Any:
    """The document sorts the names in an example; here they are in the order of the fields, the request's id last."""
    if isinstance(value, list):
        return [_in_order(each, schema) for each in value]
    if not isinstance(value, dict):
        return value
    fields = dict(schema.get("properties", {}))
    for _, found in _objects(schema):
        fields |= found.get("properties", {})
    order = sorted(dict.fromkeys([*fields, *value]), key="request_id".__eq__)
    return {name: _in_order(value[name], fields.get(name, {})) for name in order if name in value}


def _index() -> Iterator[str]:
    yield "# Operations of the API"
    yield ""
    yield _INDEX.format(count=len(OPERATIONS)).strip()
    for name, family in families().items():
        yield from ("", f"## {name}", "", "| Operation | Request |", "|---|---|")
        for operation in family:
            link = f"[{operation.title}]({operation.uri.removeprefix(f'{DIRECTORY}/')})"
            yield f"| {link} | `{operation.method} {operation.path}` |"


def _page(operation: Operation) -> Iterator[str]:
    yield from (f"# {operation.title}", "", f"`{operation.method} {operation.path}`", "")
    yield f"{operation.declared['summary']}."
    if text := operation.declared.get("description"):
        yield from ("", text)
    yield from ("", f"**Credential:** {_credential(operation)}.", "", "## Request", "")
    yield from ("```bash", *_curl(operation), "```")
    if parameters := operation.parameters:
        yield from ("", "| Parameter | Type | Meaning |", "|---|---|---|")
        for parameter in parameters:
            schema = parameter["schema"]
            said = "required" if parameter.get("required") and parameter["in"] != "path" else ""
            kind = ", ".join(filter(None, (parameter["in"], _type(schema), said)))
            meaning = _cell(parameter.get("description") or schema.get("description", ""))
            yield f"| `{parameter['name']}` | {kind} | {meaning} |"
    if operation.body_schema is not None:
        yield from _fields(operation.body_schema, of_answer=False)
    status, answer = operation.answer
    yield from ("", "## Response", "")
    description = answer["description"]
    yield f"`{status}`" + ("" if description == "Done." else f" {description}")
    if operation.answer_schema is None:
        media_types = ", ".join(f"`{name}`" for name in answer.get("content", {}))
        yield from ("", f"The body is {media_types}.")
    else:
        yield from ("", "```json", _json(operation.answer_example), "```")
        yield from _fields(operation.answer_schema, of_answer=True)
    yield from _errors(operation)
    yield from ("", "## Guarantees", "")
    rules = RULES[operation.family]
    own = f"](../reference/{rules.partition('#')[0]}#"
    guarantees = _guarantees().get(f"{operation.method} {operation.path}", [])
    yield from (*sorted(guarantees, key=lambda line: own not in line), "") if guarantees else ()
    title = (FILE.parent / rules.partition("#")[0]).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    yield f"All of them, each with a test: [{title}](../reference/{rules})."


def _credential(operation: Operation) -> str:
    access = operation.access
    if access.is_public:
        return "none"
    if access.is_for_operators:
        return "the token of an operator's login"
    scopes = " and ".join(f"`{scope.value}`" for scope in access.scopes)
    if access.role is None:
        return f"an API key with the scope {scopes}, an SMTP username and password, or the token of a login"
    token = f"the token of a login with the role {access.role.value} or above"
    return f"an API key with the scope {scopes}, or {token}" if scopes else token


def _curl(operation: Operation) -> Iterator[str]:
    path = re.sub(r"\{(\w+)\}", r"$\1", operation.path)
    query = "&".join(
        f"{each['name']}=${each['name']}"
        for each in operation.parameters
        if each["in"] == "query" and each.get("required")
    )
    # Of a request with a body curl makes a POST.
    usual = "POST" if "requestBody" in operation.declared else "GET"
    method = "" if operation.method == usual else f"-X {operation.method} "
    lines = [f'curl {method}"$POSTHOUSE_URL{path}{"?" if query else ""}{query}"']
    if not operation.access.is_public:
        lines.append(f'-H "Authorization: Bearer ${"POSTHOUSE_API_KEY" if operation.access.scopes else "TOKEN"}"')
    if _takes_key(operation):
        lines.append('-H "Idempotency-Key: order-1001"')
    for media_type, content in operation.declared.get("requestBody", {}).get("content", {}).items():
        lines.append(f'-H "Content-Type: {media_type}"')
        if media_type == JSON:
            # An apostrophe ends the shell's string.
            text = _json(example(content["schema"])).replace("'", "'\\''").replace("\n", "\n  ")
            lines.append(f"-d '{text}'")
        elif media_type == "application/x-www-form-urlencoded":
            lines.append("-d 'List-Unsubscribe=One-Click'")
        else:
            lines.append(f"--data-binary $'{content['example'].encode('unicode_escape').decode()}'")
        break
    yield " \\\n  ".join(lines)


def _fields(schema: Mapping[str, Any], *, of_answer: bool) -> Iterator[str]:
    """A table of the fields, those of inner objects with their whole path."""
    rows = list(dict.fromkeys(_rows(schema, "", ())))
    if not rows:
        return
    yield from ("", "| Field | Type | Meaning |", "|---|---|---|")
    for name, kind, is_required, meaning in rows:
        said = "required" if is_required and not of_answer else "may be absent" if of_answer and not is_required else ""
        yield f"| `{name}` | {', '.join(filter(None, (kind, said)))} | {meaning} |"


def _rows(schema: Mapping[str, Any], prefix: str, within: tuple[str, ...]) -> Iterator[tuple[str, str, bool, str]]:
    for model, found in _objects(schema):
        if model in within:
            continue
        for name, inner in sorted(found.get("properties", {}).items(), key=lambda field: field[0] == "request_id"):
            path, required = f"{prefix}{name}", name in found.get("required", ())
            yield path, _type(inner), required, _cell(_meaning(inner))
            marks = "[]" * str(_type(inner)).count("list of")
            yield from _rows(inner, f"{path}{marks}.", (*within, model))


def _meaning(schema: Mapping[str, Any]) -> str:
    """Its own description, or that of its type."""
    of_type: Iterator[str] = (_meaning(found) for _, found in _objects(schema) if "enum" in found)
    return schema.get("description") or next(of_type, "")


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects that a value of the schema is or contains, with the names of their models."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        yield name, document()["components"]["schemas"][name]
    for choice in (*schema.get("anyOf", ()), *filter(None, (schema.get("items"),))):
        yield from _objects(choice)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _type(resolved(dict(schema), document()))
    if choices := schema.get("anyOf"):
        *others, last = dict.fromkeys(_type(choice) for choice in choices)
        return f"{', '.join(others)} or {last}" if others else last
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" if value is not None else "null" for value in values)
    if schema.get("type") == "array":
        return f"list of {_plural(_type(schema.get('items', {})))}"
    if schema.get("type") == "object" and isinstance(inner := schema.get("additionalProperties"), dict):
        return f"object of {_plural(_type(inner))}"
    return str(schema.get("type", "any"))


def _plural(kind: str) -> str:
    return f"{kind}s" if kind.isalpha() else kind


def _errors(operation: Operation) -> Iterator[str]:
    left_out = set() if Scope.SEND in operation.access.scopes else set(_OF_SENDING)
    left_out |= set() if _takes_key(operation) else _OF_KEYS
    yield from ("", "## Errors", "", "| Status | Codes and meaning |", "|---|---|")
    for status in sorted(int(each) for each in operation.declared["responses"] if 400 <= int(each) < 500):
        codes = [code for code, reply in REPLIES.items() if reply.http == status and code not in left_out]
        links = ", ".join(f"[`{code.value}`](../reference/errors.md#{code.value})" for code in codes)
        yield f"| {status} | {links}: {ERRORS[status][1]} |"
    yield from ("", "Any request can also be answered with [500 or 503](../reference/api-basics.md#errors).")


def _takes_key(operation: Operation) -> bool:
    return any(each["name"] == "Idempotency-Key" for each in operation.parameters)


@cache
def _guarantees() -> dict[str, list[str]]:
    """The rules about an operation, by its method and path."""
    found: dict[str, list[str]] = {}
    for file in sorted(FILE.parent.glob("*.md")):
        page = file.read_text(encoding="utf-8") + "\n"
        # What a whole page is about is in its first sentence.
        about = [call for call, _ in _calls(page.partition(". ")[0])]
        for section in page.split("\n## "):
            of_section = [_SECTIONS[title]] if (title := section.partition("\n")[0]) in _SECTIONS else []
            for rule, lines in RULE.findall(section):
                text = " ".join(lines.split())
                calls = _calls(text)
                named = [call for call, _ in calls]
                subjects = [call for call, is_subject in calls if is_subject] or of_section
                said = _linked_from_operations(text, file.name)
                for call in dict.fromkeys(subjects or (about if len(about) == 1 or not named else named)):
                    found.setdefault(call, []).append(f"- [{rule}](../reference/{file.name}#{rule.lower()}): {said}")
    return found


def _calls(text: str) -> list[tuple[str, bool]]:
    """The operations that a text names, by method and path, and whether a sentence is about them."""
    known = {f"{operation.method} {operation.path}" for family in families().values() for operation in family}
    found: list[tuple[str, bool]] = []
    method, base = "", ""
    for each in _CALL.finditer(text):
        method, path = each[1] or method, each[2]
        if path.startswith("…"):
            calls = [call for call in known if call.startswith(f"{method} {base}") and call.endswith(path[1:])]
        elif f"{method} {path}" in known:
            base, calls = path, [f"{method} {path}"]
        else:
            shortened = (f"{method} {base}{path}", f"{method} {base}/{{id}}") if path or each[1] else ()
            calls = [call for call in shortened if base and call in known][:1]
        is_subject = path != base or _SUBJECT.search(text[: each.start()]) is not None
        found += [(call, is_subject) for call in calls]
    return found


def _linked_from_operations(text: str, page: str) -> str:
    """The text of a rule with links that work from the page of an operation."""
    here = re.sub(r"\]\(#", f"]({page}#", text)
    return _LINK.sub(r"](../reference/\1)", here)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


# When each event is made.
_WHEN: Final[Mapping[EventType | FurtherType, str]] = {
    EventType.DELIVERED: "the recipient's server accepted the message",
    EventType.BOUNCED: "it never will: refused for good, no such domain, or suppressed; the credit is returned",
    EventType.FAILED: "given up, after the last attempt or because time ran out",
    EventType.TEST: "you asked for a test with a ping",
    FurtherType.DEFERRED: "the first attempt was put off; it will be tried again",
    FurtherType.RETURNED: "a bounce arrived after delivery",
    FurtherType.COMPLAINED: "the recipient called it spam, according to a feedback loop",
    FurtherType.UNSUBSCRIBED: "the recipient left the list of the message",
    FurtherType.CANCELLED: "it was cancelled before it was tried",
    FurtherType.DOMAIN_VERIFIED: "the domain's records are in place: it may send",
    FurtherType.DOMAIN_ENDANGERED: "the domain's records are missing; it still sends",
    FurtherType.DOMAIN_LOST: "the records stayed away: the domain may no longer send",
    FurtherType.ALERT_RAISED: "a value crossed the threshold that a member chose",
    FurtherType.ALERT_CLEARED: "the value is back",
}
_REPLIES: Final[Mapping[EventType | FurtherType, tuple[int | None, str, DeliveryReason | None]]] = {
    EventType.DELIVERED: (250, "2.0.0 OK", None),
    EventType.BOUNCED: (550, "5.1.1 no such mailbox", DeliveryReason.UNKNOWN_ADDRESS),
    EventType.FAILED: (451, "4.7.1 Greylisted, try again in five minutes", DeliveryReason.GREYLISTED),
    FurtherType.DEFERRED: (451, "4.7.1 Greylisted, try again in five minutes", DeliveryReason.GREYLISTED),
    FurtherType.RETURNED: (552, "5.2.2 mailbox full", DeliveryReason.MAILBOX_FULL),
    FurtherType.COMPLAINED: (None, "", None),
    FurtherType.CANCELLED: (None, "", None),
}
_ALERT: Final = {"alert": "bounce_share", "about": "", "value": 0.08, "threshold": 0.05}
_OF_ACCOUNT: Final[Mapping[FurtherType, Mapping[str, Any]]] = {
    FurtherType.UNSUBSCRIBED: {"to": "ada@example.net", "list": "news"},
    FurtherType.ALERT_RAISED: _ALERT,
    FurtherType.ALERT_CLEARED: {**_ALERT, "value": 0.02},
}
_AT: Final = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
_MAIL: Final = MailFacts(
    "ada@example.net",
    "hello@example.com",
    "hello@example.com",
    "Welcome",
    ("welcome",),
    '{"order":"1001"}',
    Source.API,
)


def event_bodies() -> dict[EventType | FurtherType, bytes]:
    """A body of each type, as the service writes it: those of the webhook without the fields of endpoints."""
    event_id = ids.new_id(_AT, b"an example")
    message_id = ids.new_message_id(_AT - timedelta(seconds=2), b"an example")
    found: dict[EventType | FurtherType, bytes] = {}
    for kind in (*EventType, *FurtherType):
        if kind in _REPLIES:
            code, response, reason = _REPLIES[kind]
            body = event.body(
                event_id=event_id,
                type=kind,
                created_at=_AT,
                message_id=message_id,
                position=1,
                to=_MAIL.to,
                sender=_MAIL.envelope_sender,
                subject=_MAIL.subject,
                smtp_code=code,
                smtp_response=response,
            )
            said = None if reason is None else reason.value
            found[kind] = body if kind in list(EventType) else endpoint.mail_body(body, _MAIL, said)
        elif isinstance(kind, FurtherType):
            about = _OF_ACCOUNT.get(kind, {"domain": "example.com"})
            found[kind] = endpoint.account_body(event_id, kind, _AT, about)
        else:
            found[kind] = event.test_body(event_id=event_id, created_at=_AT)
    return found


def _events() -> Iterator[str]:
    yield from ("# Events", "")
    yield _EVENTS.strip()
    yield from ("", "| Type | When |", "|---|---|")
    bodies = event_bodies()
    yield from (f"| [`{kind}`](#{kind.replace('.', '')}) | {_WHEN[kind]} |" for kind in bodies)
    for kind, body in bodies.items():
        yield from ("", f"## {kind}", "", "```json", _json(json.loads(body)), "```")
