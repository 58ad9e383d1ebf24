"""Request and response schemas of templates."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import ALIAS_PATTERN, NextCursor, Request, Response, Timestamp, described
from posthouse.rules import limits
from posthouse.rules.template import Engine


class TemplateParts(Request):
    subject: Annotated[
        str | None, described("May hold `{{name}}` placeholders.", maxLength=limits.SUBJECT_CHARACTERS_MAX)
    ] = None
    text: Annotated[
        str | None,
        described(
            "May hold `{{name}}` placeholders; values are inserted unchanged.",
            maxLength=limits.TEMPLATE_PART_CHARACTERS_MAX,
        ),
    ] = None
    html: Annotated[
        str | None,
        described(
            "May hold `{{name}}` placeholders; values are HTML-escaped.",
            maxLength=limits.TEMPLATE_PART_CHARACTERS_MAX,
        ),
    ] = None
    engine: Annotated[
        str | None,
        described(
            "`plain` by default: placeholders alone. `handlebars` can choose and repeat: `{{#if}}`, `{{#unless}}`, "
            "`{{#each}}`, `{{{raw}}}`.",
            enum=[*[engine.value for engine in Engine], None],
        ),
    ] = None


class TemplateContentBody(TemplateParts):
    publish: Annotated[bool, described("Publish this version at once.")] = False


class TemplateVersionRequest(TemplateContentBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"subject": "Welcome, {{name}}", "text": "Good to see you.", "publish": True}]},
    )


class TemplateRequest(TemplateContentBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"alias": "welcome", "subject": "Welcome, {{name}}", "text": "Good morning."}]},
    )

    alias: Annotated[str, described("Unique in the account.", pattern=ALIAS_PATTERN)]
    name: Annotated[str | None, described("For people; the alias by default.", maxLength=200)] = None


class PublishRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 1}]})

    version: Annotated[int, described("The number of the version.", minimum=1)]


class RenameTemplateRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"alias": "welcome-2027", "name": "Welcome"}]})

    alias: Annotated[
        str | None, described("The new alias, unique in the account; the same by default.", pattern=ALIAS_PATTERN)
    ] = None
    name: Annotated[str | None, described("For people; the same by default.", maxLength=200)] = None


class PreviewRequest(TemplateParts):
    """With `subject`, `text` or `html` it is a draft's preview: the template need not exist."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"variables": {"name": "Ada"}}]})

    variables: dict[str, Any] = Field(
        default={},
        description="Values for the placeholders.",
        json_schema_extra={"maxProperties": limits.VARIABLES_MAX},
    )
    version: Annotated[
        int | None, described("By default the published version, otherwise the latest; not with a draft.")
    ] = None


class TemplateVariable(BaseModel):
    name: str
    parts: Annotated[list[str], described("Where it is used: `subject`, `text`, `html`.")]


class TemplateVersion(BaseModel):
    version: int
    subject: str | None
    text: str | None
    html: str | None
    engine: Engine | None = Field(default=None, description="Absent if it is `plain`.")
    variables: Annotated[list[TemplateVariable], described("In order of first use.")]
    author: Annotated[
        str | None, described("The address of the member who added it, or `operator`; null if it is older than that.")
    ]
    created_at: Timestamp


class Template(BaseModel):
    alias: str
    name: str
    published_version: int | None
    latest_version: int
    created_at: Timestamp
    updated_at: Timestamp


class TemplateWithVersions(Template):
    versions: Annotated[list[TemplateVersion], described("The newest 20, newest first.")]


class TemplateResponse(Response):
    template: Template


class TemplateVersionResponse(Response):
    template: Template
    version: int


class TemplateDetailResponse(Response):
    template: TemplateWithVersions


class TemplateListResponse(Response):
    templates: list[Template]
    next_cursor: NextCursor


class PreviewResponse(Response):
    subject: str | None
    text: str | None
    html: str | None
    variables: Annotated[list[TemplateVariable], described("In order of first use.")]
    missing: Annotated[
        list[str],
        described("Variables of a draft without a value, which stay as `{{name}}`; a version needs them all."),
    ]
