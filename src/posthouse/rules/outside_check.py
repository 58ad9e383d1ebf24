"""Checks of what others see of this installation.

Mail servers see the name that it greets them with; receivers see a sending address in DNS: its names, SPF, and lists of
addresses that send spam; clients see the server's certificate: key, name, time, chain.
"""

import warnings
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.utils import CryptographyDeprecationWarning

from posthouse.rules.check_up import DoctorCheck, expect
from posthouse.rules.public_address import Address

# Top-level names that exist only in private networks, or nowhere.
_PRIVATE_NAMES: Final = frozenset(
    {"localhost", "localdomain", "local", "internal", "lan", "home", "invalid", "example", "test", "corp", "arpa"}
)

# Lists answer with an address here for what they list, by RFC 5782 …
_LISTED: Final = IPv4Network("127.0.0.0/8")
# … except these, which say that the list refuses to answer: too many queries, or through a public resolver.
_REFUSED: Final = IPv4Network("127.255.255.0/24")

EXPIRES_SOON: Final = timedelta(days=14)


def is_public_name(hostname: str) -> bool:
    last = hostname.lower().rpartition(".")
    return bool(last[0]) and last[2] not in _PRIVATE_NAMES and not last[2].isdecimal()


def check_hostname(hostname: str) -> DoctorCheck:
    """The name with which this service greets other mail servers."""
    return expect(
        "hostname",
        is_public_name(hostname),
        hostname,
        "Set service.hostname to a name under your domain, such as mail.example.com, that has an A record with the "
        "address that mail leaves from.",
    )


def reverse_name(ip: Address) -> str:
    """Where the address's PTR record is."""
    return ip.reverse_pointer


def list_name(ip: Address, zone: str) -> str:
    """Where a DNS list says whether it has the address."""
    return f"{ip.reverse_pointer.removesuffix('.in-addr.arpa').removesuffix('.ip6.arpa')}.{zone}"


def is_listed(answers: Sequence[Address]) -> bool | None:
    """Whether the answers list the address; None if the list did not say."""
    own = [answer for answer in answers if isinstance(answer, IPv4Address) and answer in _LISTED]
    if any(answer not in _REFUSED for answer in own):
        return True
    return None if answers else False


def names_finding(ip: Address, hostname: str, names: Sequence[str], addresses: Sequence[Address]) -> str | None:
    """What is wrong with the address's names: `names` are those of its PTR record, `addresses` the greeting's."""
    named = [name.lower().removesuffix(".") for name in names]
    if not named:
        return f"{ip} has no PTR record: have the owner of the network name it {hostname}."
    if hostname.lower() not in named:
        return f"The PTR record of {ip} names {named[0]}, and mail from it greets with {hostname}: make both equal."
    if ip not in addresses:
        kind = "A" if ip.version == 4 else "AAAA"
        return f"{hostname} does not resolve to {ip}: publish an {kind} record."
    return None


def spf_finding(ip: Address, domain: str, reason: str) -> str:
    return (
        f"SPF of the return path does not allow {ip}: {reason}. Publish ip{ip.version}:{ip} in the record of {domain}."
    )


def listing_finding(ip: Address, zone: str) -> str:
    return f"{zone} lists {ip}: look up why there, end the cause, and ask to be removed."


def check_certificate(
    certificate_pem: bytes, key_pem: bytes, hostname: str, now: datetime, authorities: Collection[x509.Name] | None
) -> Iterator[DoctorCheck]:
    """`certificate_pem` contains the server's certificate, then those that lead to its authority.

    `authorities` are those that this system knows, None if that is not known.
    """
    try:
        chain = x509.load_pem_x509_certificates(certificate_pem)
    except ValueError as error:
        yield _unusable(f"the file holds no certificate: {error}")
        return
    yield DoctorCheck("certificate", True, f"{len(chain)} in the file")
    yield _check_key(chain[0], key_pem)
    yield _check_names(chain[0], hostname)
    yield _check_expiry(chain, now)
    yield _check_chain(chain, authorities)


def unreadable_certificate(error: OSError) -> DoctorCheck:
    """The files can't be read."""
    return _unusable(f"{error.filename}: {error.strerror}")


def authorities_of(bundle_pem: bytes) -> frozenset[x509.Name]:
    """The authorities of a bundle of certificates."""
    with warnings.catch_warnings():
        # Systems trust some old authorities whose serial numbers the library will refuse in future.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return frozenset(certificate.subject for certificate in x509.load_pem_x509_certificates(bundle_pem))


def _unusable(found: str) -> DoctorCheck:
    return DoctorCheck(
        "certificate",
        False,
        found,
        "Correct smtp.tls_certificate_file and smtp.tls_key_file, and let the service's user read the files.",
    )


def _check_key(leaf: x509.Certificate, key_pem: bytes) -> DoctorCheck:
    advice = "Let smtp.tls_key_file name the key that the certificate was made with."
    try:
        key = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        return DoctorCheck("certificate_key", False, f"the file holds no key without a password: {error}", advice)
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    matches = key.public_key().public_bytes(*form) == leaf.public_key().public_bytes(*form)
    found = "belongs to the certificate" if matches else "does not belong to the certificate"
    return expect("certificate_key", matches, found, advice)


def _names_of(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in names.get_values_for_type(x509.DNSName)]


def _check_names(leaf: x509.Certificate, hostname: str) -> DoctorCheck:
    names = _names_of(leaf)
    wanted = hostname.lower()
    is_named = wanted in names or f"*.{wanted.partition('.')[2]}" in names
    return expect(
        "certificate_name",
        is_named,
        f"for {', '.join(names) or 'no name'}",
        f"Get a certificate for {hostname}, the name that customers connect to, or set service.hostname to its name.",
    )


def _check_expiry(chain: Sequence[x509.Certificate], now: datetime) -> DoctorCheck:
    begins = max(certificate.not_valid_before_utc for certificate in chain)
    ends = min(certificate.not_valid_after_utc for certificate in chain)
    advice = (
        "Renew it now (`certbot renew`), and see why that did not happen automatically. "
        "The service reads the new file on its own."
    )
    if now < begins:
        return DoctorCheck("certificate_expiry", False, f"valid only from {begins:%Y-%m-%d %H:%M} UTC", advice)
    said = "expired" if ends <= now else "valid until"
    return expect("certificate_expiry", now + EXPIRES_SOON < ends, f"{said} {ends:%Y-%m-%d %H:%M} UTC", advice)


def _check_chain(chain: Sequence[x509.Certificate], authorities: Collection[x509.Name] | None) -> DoctorCheck:
    advice = "Let the file contain the certificate and every one between it and its authority (certbot: fullchain.pem)."
    leaf, last = chain[0], chain[-1]
    if leaf.issuer == leaf.subject:
        other = "Get one from an authority that your customers' programs know."
        return DoctorCheck("certificate_chain", False, "self-signed", other)
    for signed, signer in pairwise(chain):
        try:
            signed.verify_directly_issued_by(signer)
        except (ValueError, TypeError, InvalidSignature):
            return DoctorCheck(
                "certificate_chain", False, f"{_subject_of(signer)} did not sign {_subject_of(signed)}", advice
            )
    found = f"leads to {last.issuer.rfc4514_string()}"
    if authorities is not None and last.issuer not in authorities:
        return DoctorCheck("certificate_chain", False, f"{found}, which is no authority that is known here", advice)
    return DoctorCheck("certificate_chain", True, found)


def _subject_of(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "a certificate without a subject"
