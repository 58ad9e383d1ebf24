"""Whether a message's content is kept: with `content: "forget"`, no one can read it once the message is accepted."""

from typing import Final

from posthouse.rules.refusal import Code, Refusal, invalid

FORGET: Final = "forget"


def is_forget(given: str) -> bool:
    """True, or a Refusal: there is no other value."""
    if given != FORGET:
        raise invalid(f'`content` is {given[:100]!r}: write "{FORGET}", or leave it out to keep the content.')
    return True


def forgotten() -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        'This message was sent with `content`: "forget", so that no one can read its content. '
        "Its history is at GET /v1/messages/{id}.",
    )
