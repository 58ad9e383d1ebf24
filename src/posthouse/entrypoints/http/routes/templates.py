"""Templates and their versions."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from posthouse.entrypoints.http.operation import Operations, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor
from posthouse.entrypoints.http.shapes import (
    ALIAS_PATTERN,
    DeletedResponse,
    NextCursor,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    absent,
    described,
    examples,
    read_from,
)
from posthouse.flows.account.templates import Templates, TemplateVersionRow
from posthouse.flows.shared.principal import Caller
from posthouse.rules import limits, template
from posthouse.rules.credential import Role, Scope
from posthouse.rules.refusal import invalid
from posthouse.rules.template import Engine
from posthouse.rules.template import Template as TemplateContent

# Text and HTML; a character takes up to four bytes, or six as a JSON escape.
TEMPLATE_BODY_BYTES_MAX: Final = 4 * limits.MIB

router = Operations("Templates", Scope.TEMPLATES)


class TemplateParts(RequestModel):
    subject: Annotated[
        str | None, described("May contain `{{name}}` placeholders.", maxLength=limits.SUBJECT_CHARACTERS_MAX)
    ] = None
    text: Annotated[
        str | None,
        described(
            "May contain `{{name}}` placeholders; values are inserted unchanged.",
            maxLength=limits.TEMPLATE_PART_CHARACTERS_MAX,
        ),
    ] = None
    html: Annotated[
        str | None,
        described(
            "May contain `{{name}}` placeholders; values are HTML-escaped.",
            maxLength=limits.TEMPLATE_PART_CHARACTERS_MAX,
        ),
    ] = None
    engine: Annotated[
        str | None,
        described(
            "`plain` by default: only placeholders. `handlebars` can choose and repeat: `{{#if}}`, `{{#unless}}`, "
            "`{{#each}}`, `{{{raw}}}`.",
            enum=[*[engine.value for engine in Engine], None],
        ),
    ] = None

    @property
    def content(self) -> TemplateContent:
        return TemplateContent(self.subject or None, self.text or None, self.html or None, template.engine(self.engine))


class TemplateContentBody(TemplateParts):
    publish: Annotated[bool, described("Publish this version immediately.")] = False


class TemplateVersionRequest(TemplateContentBody):
    model_config = examples({"subject": "Welcome, {{name}}", "text": "Good to see you.", "publish": True})


class TemplateRequest(TemplateContentBody):
    model_config = examples({"alias": "welcome", "subject": "Welcome, {{name}}", "text": "Good morning."})

    alias: Annotated[str, described("Unique in the account.", pattern=ALIAS_PATTERN)]
    name: Annotated[str | None, described("The name for people; the alias by default.", maxLength=200)] = None


class PublishRequest(RequestModel):
    model_config = examples({"version": 1})

    version: Annotated[int, described("The number of the version.", minimum=1)]


class RenameTemplateRequest(RequestModel):
    model_config = examples({"alias": "welcome-2027", "name": "Welcome"})

    alias: Annotated[
        str | None, described("The new alias, unique in the account; unchanged by default.", pattern=ALIAS_PATTERN)
    ] = None
    name: Annotated[str | None, described("The name for people; unchanged by default.", maxLength=200)] = None


class PreviewRequest(TemplateParts):
    """With `subject`, `text` or `html` it is a draft's preview: the template need not exist."""

    model_config = examples({"variables": {"name": "Ada"}})

    variables: dict[str, Any] = Field(
        default={},
        description="Values for the placeholders.",
        json_schema_extra={"maxProperties": limits.VARIABLES_MAX},
    )
    version: Annotated[
        int | None, described("By default the published version, otherwise the latest; not with a draft.")
    ] = None


_TEMPLATE: Final[dict[str, Any]] = {
    "alias": "welcome",
    "name": "Welcome",
    "published_version": 1,
    "latest_version": 1,
    "created_at": "2026-11-15T09:30:00.000Z",
    "updated_at": "2026-11-15T09:30:00.000Z",
}
_VARIABLE: Final[dict[str, Any]] = {"name": "name", "parts": ["subject"]}
_VERSION: Final[dict[str, Any]] = {
    "version": 1,
    "subject": "Welcome, {{name}}",
    "text": "Good morning.",
    "html": None,
    "variables": [_VARIABLE],
    "author": "ada@example.com",
    "created_at": "2026-11-15T09:30:00.000Z",
}


Part = Annotated[str | None, described("Null if there is none.")]


class TemplateVariable(Shown):
    name: str
    parts: Annotated[list[str], described("Where it is used: `subject`, `text`, `html`.")]


class TemplateVersion(Shown):
    version: Annotated[int, described("Its number, from 1.")]
    subject: Part
    text: Part
    html: Part
    engine: Engine | None = absent("Absent if it is `plain`.")
    variables: Annotated[list[TemplateVariable], described("In order of first use.")]
    author: Annotated[str, described("The address of the member who added it, or `operator`.")]
    created_at: Timestamp


class Template(Shown):
    model_config = examples(_TEMPLATE)

    alias: str
    name: Annotated[str, described("The name for people.")]
    published_version: Annotated[int | None, described("The version that is sent; null if none is published.")]
    latest_version: Annotated[int, described("The number of the newest version.")]
    created_at: Timestamp
    updated_at: Timestamp


class TemplateWithVersions(Template):
    model_config = examples({**_TEMPLATE, "versions": [_VERSION]})

    versions: Annotated[list[TemplateVersion], described("The newest 20, newest first.")]


class TemplateResponse(Response):
    template: Template


class TemplateVersionResponse(Response):
    template: Template
    version: Annotated[int, described("The number of the new version.")]


class TemplateDetailResponse(Response):
    template: TemplateWithVersions


class TemplateListResponse(Response):
    templates: Annotated[list[Template], read_from("items")]
    next_cursor: NextCursor


class PreviewResponse(Response):
    model_config = examples(
        {"subject": "Welcome, Ada", "text": "Good morning.", "html": None, "variables": [_VARIABLE], "missing": []}
    )

    subject: Part
    text: Part
    html: Part
    variables: Annotated[list[TemplateVariable], described("In order of first use.")]
    missing: Annotated[
        list[str],
        described("Variables of a draft without a value, which stay as `{{name}}`; a version needs them all."),
    ]


@router.get("/v1/templates", Role.VIEWER)
async def list_templates(
    caller: Caller, templates: Templates, limit: PageSize = PAGE_DEFAULT, cursor: Cursor = None
) -> TemplateListResponse:
    """The account's templates, newest first"""
    return TemplateListResponse.of(await templates.page(caller.account_id, cursor, limit))


@router.post(
    "/v1/templates", Role.MEMBER, stores=True, status=201, errors=(409,), body_bytes_max=TEMPLATE_BODY_BYTES_MAX
)
async def create_template(caller: Caller, body: TemplateRequest, templates: Templates) -> TemplateResponse:
    """Create a template with its first version"""
    created = await templates.create(
        caller.account_id, body.alias, body.name, body.content, caller.actor, publish=body.publish
    )
    return TemplateResponse(template=Template.of(created))


@router.get("/v1/templates/{alias}", Role.VIEWER)
async def get_template(caller: Caller, alias: str, templates: Templates) -> TemplateDetailResponse:
    """A template with its versions"""
    found, versions = await templates.template(caller.account_id, alias)
    shown = TemplateWithVersions.of(found, versions=[_version(row) for row in versions])
    return TemplateDetailResponse(template=shown)


@router.put("/v1/templates/{alias}", Role.MEMBER, errors=(409,))
async def rename_template(
    caller: Caller, alias: str, body: RenameTemplateRequest, templates: Templates
) -> TemplateResponse:
    """Change a template's alias or name; requests with the old alias are refused from then on"""
    renamed = await templates.rename(caller.account_id, alias, body.alias, body.name, caller.actor)
    return TemplateResponse(template=Template.of(renamed))


@router.delete("/v1/templates/{alias}", Role.MEMBER)
async def delete_template(caller: Caller, alias: str, templates: Templates) -> DeletedResponse:
    """Delete a template and its versions"""
    await templates.delete(caller.account_id, alias, caller.actor)
    return DeletedResponse(deleted=True)


@router.post(
    "/v1/templates/{alias}/versions",
    Role.MEMBER,
    stores=True,
    status=201,
    errors=(409,),
    body_bytes_max=TEMPLATE_BODY_BYTES_MAX,
)
async def create_template_version(
    caller: Caller, alias: str, body: TemplateVersionRequest, templates: Templates
) -> TemplateVersionResponse:
    """Add a version; earlier versions are not changed"""
    grown = await templates.add_version(caller.account_id, alias, body.content, caller.actor, publish=body.publish)
    return TemplateVersionResponse(template=Template.of(grown), version=grown.latest_version)


@router.post("/v1/templates/{alias}/publish", Role.MEMBER)
async def publish_template(caller: Caller, alias: str, body: PublishRequest, templates: Templates) -> TemplateResponse:
    """Publish a version: it is used from now on"""
    published = await templates.publish(caller.account_id, alias, body.version, caller.actor)
    return TemplateResponse(template=Template.of(published))


@router.post("/v1/templates/{alias}/preview", Role.VIEWER, body_bytes_max=TEMPLATE_BODY_BYTES_MAX)
async def preview_template(caller: Caller, alias: str, body: PreviewRequest, templates: Templates) -> PreviewResponse:
    """Render a version, or a draft that is not stored, without sending it"""
    flow = templates
    draft = body.content
    if not draft.parts:
        preview = await flow.preview(caller.account_id, alias, body.version, body.variables)
    elif body.version is not None:
        raise invalid("Give either `version` or the content of a draft, not both.")
    else:
        preview = await flow.preview_draft(alias, draft, body.variables)
    return PreviewResponse.of(preview.content, variables=_variables(preview.variables), missing=list(preview.missing))


def _version(row: TemplateVersionRow) -> TemplateVersion:
    content = row.content
    return TemplateVersion.of(
        row,
        subject=content.subject,
        text=content.text,
        html=content.html,
        engine=None if content.engine is Engine.PLAIN else content.engine,
        variables=_variables(template.variables(content)),
    )


def _variables(found: Mapping[str, Sequence[str]]) -> list[TemplateVariable]:
    return [TemplateVariable(name=name, parts=list(parts)) for name, parts in found.items()]
