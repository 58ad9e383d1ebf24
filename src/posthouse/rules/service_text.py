"""What the service writes in its own mail."""

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
        f"It works once, for {days} days. If you don't know the sender, ignore this mail: nothing happens then.\n",
    )


def password_reset(token: str, link: str | None) -> ServiceText:
    minutes = limits.PASSWORD_RESET_SECONDS // 60
    return ServiceText(
        "Choose a new password",
        f"A new password was asked for, for the user of this address.\n\n{_way(token, link, 'choose the password')}\n\n"
        f"It works once, for {minutes} minutes, and ends all of your sessions. If you didn't ask for it, ignore this "
        "mail: your password stays as it is.\n",
    )


def _way(token: str, link: str | None, purpose: str) -> str:
    return f"Open this link to {purpose}:\n\n{link}" if link else f"Use this token to {purpose}:\n\n{token}"
