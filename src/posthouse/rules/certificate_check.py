"""What is wrong with a server's certificate, as its clients see it: key, name, time, chain."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from posthouse.rules.check_up import DoctorCheck, expect

EXPIRES_SOON: Final = timedelta(days=14)


def check(
    certificate_pem: bytes, key_pem: bytes, hostname: str, now: datetime, authorities: Collection[x509.Name] | None
) -> Iterator[DoctorCheck]:
    """`certificate_pem` has the server's certificate, then those that lead to its authority.

    `authorities` are those that this system knows, None if that is not known.
    """
    try:
        chain = x509.load_pem_x509_certificates(certificate_pem)
    except ValueError as error:
        yield _unusable(f"the file holds no certificate: {error}")
        return
    yield DoctorCheck("certificate", True, f"{len(chain)} in the file")
    yield _key(chain[0], key_pem)
    yield _name(chain[0], hostname)
    yield _expiry(chain, now)
    yield _chain(chain, authorities)


def unreadable(error: OSError) -> DoctorCheck:
    """The files can't be read."""
    return _unusable(f"{error.filename}: {error.strerror}")


def _unusable(found: str) -> DoctorCheck:
    return DoctorCheck(
        "certificate",
        False,
        found,
        "Correct smtp.tls_certificate_file and smtp.tls_key_file, and let the service's user read the files.",
    )


def _key(leaf: x509.Certificate, key_pem: bytes) -> DoctorCheck:
    advice = "Let smtp.tls_key_file name the key that the certificate was made with."
    try:
        key = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        return DoctorCheck("certificate_key", False, f"the file holds no key without a password: {error}", advice)
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    matches = key.public_key().public_bytes(*form) == leaf.public_key().public_bytes(*form)
    found = "belongs to the certificate" if matches else "does not belong to the certificate"
    return expect("certificate_key", matches, found, advice)


def names_of(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in names.get_values_for_type(x509.DNSName)]


def _name(leaf: x509.Certificate, hostname: str) -> DoctorCheck:
    names = names_of(leaf)
    wanted = hostname.lower()
    is_named = wanted in names or f"*.{wanted.partition('.')[2]}" in names
    return expect(
        "certificate_name",
        is_named,
        f"for {', '.join(names) or 'no name'}",
        f"Get a certificate for {hostname}, the name that customers connect to, or set service.hostname to its name.",
    )


def _expiry(chain: Sequence[x509.Certificate], now: datetime) -> DoctorCheck:
    begins = max(certificate.not_valid_before_utc for certificate in chain)
    ends = min(certificate.not_valid_after_utc for certificate in chain)
    advice = "Renew it now (`certbot renew`), and see why that did not happen by itself; it is read again by itself."
    if now < begins:
        return DoctorCheck("certificate_expiry", False, f"valid only from {begins:%Y-%m-%d %H:%M} UTC", advice)
    said = "expired" if ends <= now else "valid until"
    return expect("certificate_expiry", now + EXPIRES_SOON < ends, f"{said} {ends:%Y-%m-%d %H:%M} UTC", advice)


def _chain(chain: Sequence[x509.Certificate], authorities: Collection[x509.Name] | None) -> DoctorCheck:
    advice = "Let the file hold the certificate and all between it and its authority (certbot: fullchain.pem)."
    leaf, last = chain[0], chain[-1]
    if leaf.issuer == leaf.subject:
        other = "Get one of an authority that your customers' programs know."
        return DoctorCheck("certificate_chain", False, "signed by itself", other)
    for signed, signer in pairwise(chain):
        try:
            signed.verify_directly_issued_by(signer)
        except (ValueError, TypeError, InvalidSignature):
            return DoctorCheck("certificate_chain", False, f"{_of(signer)} did not sign {_of(signed)}", advice)
    found = f"leads to {last.issuer.rfc4514_string()}"
    if authorities is not None and last.issuer not in authorities:
        return DoctorCheck("certificate_chain", False, f"{found}, which is no authority that is known here", advice)
    return DoctorCheck("certificate_chain", True, found)


def _of(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "a certificate without a subject"


def authorities_of(bundle_pem: bytes) -> frozenset[x509.Name]:
    """The authorities of a bundle of certificates."""
    return frozenset(certificate.subject for certificate in x509.load_pem_x509_certificates(bundle_pem))
