"""The texts of the messages that the service itself sends."""

from datetime import UTC, datetime
from typing import NamedTuple

from posthouse.rules import limits


class ServiceText(NamedTuple):
    subject: str
    text: str


def invitation(account: str, inviter: str, token: str, link: str | None) -> ServiceText:
    days = limits.INVITATION_LIFETIME_SECONDS // 86_400
    return ServiceText(
        f"Invitation to {account}"[: limits.SUBJECT_CHARACTERS_MAX],
        f"{inviter} invites you to the account {account}.\n\n{_way(token, link, 'accept the invitation')}\n\n"
        f"It works once, for {days} days. If you don't know the sender, ignore this email: nothing happens then.\n",
    )


def password_reset(token: str, link: str | None) -> ServiceText:
    minutes = limits.PASSWORD_RESET_SECONDS // 60
    return ServiceText(
        "Choose a new password",
        f"A new password was requested for the user of this address.\n\n{_way(token, link, 'choose the password')}\n\n"
        f"It works once, for {minutes} minutes, and ends all of your sessions. If you didn't ask for it, ignore this "
        "email: your password stays as it is.\n",
    )


def endpoint_failing(account: str, host: str, since: datetime, *, is_webhook: bool) -> ServiceText:
    article, name, path = ("The", "webhook", "/v1/webhook") if is_webhook else ("An", "endpoint", "/v1/endpoints/{id}")
    stays = "" if is_webhook else " The endpoint stays enabled."
    again = "deliveries/{id}/replay, or read from GET /v1/events" if is_webhook else "replay"
    return ServiceText(
        f"{article} {name} of {account} is failing"[: limits.SUBJECT_CHARACTERS_MAX],
        f"Since {_moment(since)}, the {name} of the account {account} at {host} has answered no event with a 2xx.\n\n"
        "Events are still sent, one at a time. Each keeps its attempts; an attempt that can't be made for three days "
        f"is given up.{stays}\n\n"
        f"What to do: GET {path}/deliveries shows the answers. Fix the endpoint, or save another URL with PUT {path}, "
        f"then send a test with POST {path}/ping: after the first 2xx, all waiting events are sent. "
        f"Events that were given up can be sent again with POST {path}/{again}.\n\n"
        "This email is not repeated until the endpoint has answered.\n",
    )


def new_login(at: datetime, address: str, program: str) -> ServiceText:
    return ServiceText(
        "A login from a new place",
        "Your user logged in from a network or with a program that you had not used before.\n\n"
        f"Time: {_moment(at)}\nAddress: {address}\nProgram: {program}\n\n"
        "If that was you, there is nothing to do.\n\n"
        "If not, another person knows your password. Ask for a new one with POST /v1/auth/forgot: choosing it ends "
        "all of your sessions. Or change it with POST /v1/auth/password, which ends all but your own; GET "
        "/v1/auth/sessions lists them, DELETE /v1/auth/sessions/{id} ends a session. A second factor (POST "
        "/v1/auth/totp) keeps out a person who has only the password.\n",
    )


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _way(token: str, link: str | None, purpose: str) -> str:
    return f"Open this link to {purpose}:\n\n{link}" if link else f"Use this token to {purpose}:\n\n{token}"
