"""What is wrong with the name that this service greets other mail servers with."""

from typing import Final

from posthouse.rules.check_up import DoctorCheck, expect

# Names that exist in a private network, or nowhere.
_PRIVATE: Final = frozenset(
    {"localhost", "localdomain", "local", "internal", "lan", "home", "invalid", "example", "test", "corp", "arpa"}
)


def is_public_name(hostname: str) -> bool:
    last = hostname.lower().rpartition(".")
    return bool(last[0]) and last[2] not in _PRIVATE and not last[2].isdecimal()


def check_name(hostname: str) -> DoctorCheck:
    return expect(
        "hostname",
        is_public_name(hostname),
        hostname,
        "Set service.hostname to a name under your domain, such as mail.example.com, that has an A record with the "
        "address that mail leaves from.",
    )
