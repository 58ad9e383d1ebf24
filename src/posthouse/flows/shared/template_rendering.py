"""Rendering a template: what takes long is done in turns of the accounts, in a process of its own."""

from functools import partial

from posthouse.flows.shared.large_mail import in_turn
from posthouse.rules import handlebars, limits, template
from posthouse.rules.ids import AccountId
from posthouse.rules.template import RenderedTemplate, Template, Variables


async def rendered(account_id: AccountId, found: Template, variables: Variables) -> RenderedTemplate:
    try:
        return template.render(found, variables, bytes_max=limits.MIME_BYTES_MAX, is_quick=True)
    except handlebars.Slow:
        render = partial(template.render, found, dict(variables), bytes_max=limits.MIME_BYTES_MAX)
        return await in_turn(account_id, render)
