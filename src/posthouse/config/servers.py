"""Settings of our servers: the HTTP API, SMTP for customers, SMTP for bounces and complaints, and account limits."""

import re
from ipaddress import ip_network
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from posthouse.config.section import Integers, Section, Texts
from posthouse.mail.address import AddressError, parse_domain, parse_mailbox
from posthouse.rules.feedback_loops import PROVIDERS, FeedbackLoops
from posthouse.rules.limits import (
    MIB,
    RATE_BURST,
    RATE_PER_SECOND,
    STORED_BYTES_PER_DAY,
    WARMUP_RECIPIENTS_BY_DAY,
    WRITES_BURST,
    WRITES_PER_SECOND,
)

# A header field carries it, followed by a token. Without TLS only for this machine itself, as for `posthouse dev`.
_PUBLIC_URL: Final = re.compile(
    r"(https://[A-Za-z0-9.-]{1,253}|http://(127\.0\.0\.1|localhost))(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,100})?"
)


class HttpSection(Section):
    """The HTTP API."""

    host: str = Field("127.0.0.1", description="Address on which the HTTP API listens.")
    port: int = Field(8025, ge=0, le=65535, description="Port on which the HTTP API listens.")
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks, separated by commas, of the proxies whose X-Forwarded-For is "
        "trusted. Empty: none, the client is the peer of the connection.",
    )
    public_url: str = Field(
        "",
        description="The URL of the HTTP API from outside, such as https://mail.example.com: unsubscribe "
        "links and invitations begin with it. Empty: mail can't carry unsubscribe links.",
    )

    access_log: bool = Field(
        True,
        description="Whether each answered request gets a line in the log, with its id, route, status, account and "
        "message; not at a log_level above info.",
    )
    connections_max: int = Field(
        8_000,
        ge=1,
        le=1_000_000,
        description="How many connections a process keeps at a time, shared fairly by the addresses (for IPv6, the "
        "networks) from which they come; at most three quarters of the files that it may have open.",
    )
    unauthenticated_per_second: int = Field(
        50,
        ge=1,
        le=10**6,
        description="Requests per second for pages, unknown paths and with wrong credentials that a process answers "
        "for an address (for IPv6, a network); each 64 KB of a large page count as another request, and requests with "
        "a valid credential are not counted.",
    )
    unauthenticated_burst: int = Field(
        200, ge=1, le=10**9, description="How many such requests an address may send in a burst."
    )

    @field_validator("public_url")
    @classmethod
    def _is_base(cls, given: str) -> str:
        if given and not _PUBLIC_URL.fullmatch(given):
            raise ValueError("is not the beginning of a URL: write one such as https://mail.example.com")
        return given.rstrip("/")


class SmtpSection(Section):
    """Our SMTP servers, for customers (submission) and for bounces and complaints (inbound)."""

    tls_certificate_file: str = Field(
        "",
        description="The certificate that customers and other mail servers see over SMTP, with its chain (PEM). "
        "Read again when it changes. Without one, mail is not accepted from customers over SMTP.",
    )
    tls_key_file: str = Field("", description="The certificate's private key (PEM).")
    connections_max: int = Field(
        2_000, ge=1, le=100_000, description="Connections that each of our SMTP servers accepts at a time."
    )
    connections_per_address_max: int = Field(
        50, ge=1, description="Connections that it accepts from one address (for IPv6, a network) at a time."
    )

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if bool(self.tls_certificate_file) is not bool(self.tls_key_file):
            raise ValueError("tls_certificate_file and tls_key_file belong together: set both, or neither")
        return self


class SubmissionSection(Section):
    """Mail from customers, over SMTP."""

    host: str = Field("127.0.0.1", description="Address to which customers submit mail over SMTP.")
    port: int = Field(587, ge=0, le=65535, description="SMTP port for customers who begin TLS with STARTTLS; 0: none.")
    tls_port: int = Field(
        465, ge=0, le=65535, description="SMTP port for customers who use TLS from the start; 0: none."
    )


class InboundSection(Section):
    """Bounces and complaints."""

    host: str = Field(
        "127.0.0.1",
        description="Address that receives bounces and complaints over SMTP. The return path's domain needs an MX "
        "record that leads here.",
    )
    port: int = Field(25, ge=1, le=65535, description="Port that receives bounces and complaints.")
    return_path_domain: str = Field(
        "", description="The domain to which bounces are addressed (bounces+…@domain). Empty: the hostname."
    )
    feedback_address: str = Field(
        "",
        description="The address, under the return path's domain or the hostname, to which mailbox providers send "
        "complaints (feedback loops). Empty: none.",
    )
    feedback_loops: Texts = Field(
        PROVIDERS,
        description="Mailbox providers whose complaints count: the domain that signs their reports (DKIM, d=), with "
        "its subdomains, or the address that sends them. Check it against the reports that you get. List a "
        "domain only if the public can't have mailboxes there, or any of its users could complain for others.",
    )
    feedback_networks: Texts = Field(
        (),
        description="Addresses or networks whose complaints count without a signature, such as your own server "
        "that forwards complaints after verifying them. Empty: none.",
    )

    @field_validator("return_path_domain")
    @classmethod
    def _is_domain(cls, given: str) -> str:
        try:
            return parse_domain(given) if given else ""
        except AddressError as error:
            raise ValueError(str(error)) from None

    @field_validator("feedback_address")
    @classmethod
    def _is_mailbox(cls, given: str) -> str:
        try:
            return parse_mailbox(given).key if given else ""
        except AddressError as error:
            raise ValueError(str(error)) from None

    @field_validator("feedback_loops")
    @classmethod
    def _are_providers(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(parse_mailbox(entry).key if "@" in entry else parse_domain(entry) for entry in given)
        except AddressError as error:
            raise ValueError(f"contains something that is neither a domain nor an address: {error}") from None

    @field_validator("feedback_networks")
    @classmethod
    def _are_networks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(str(ip_network(entry)) for entry in given)
        except ValueError as error:
            raise ValueError(f"{error}: write a network such as 192.0.2.0/24, or an address") from None

    @property
    def loops(self) -> FeedbackLoops:
        return FeedbackLoops(frozenset(self.feedback_loops), tuple(map(ip_network, self.feedback_networks)))


class LimitsSection(Section):
    """Limits of accounts without their own."""

    rate_per_second: int = Field(
        RATE_PER_SECOND,
        ge=1,
        le=10**6,
        description="Requests per second that an account may send, unless it has its own limit.",
    )
    rate_burst: int = Field(
        RATE_BURST,
        ge=1,
        le=10**9,
        description="Requests that an idle account may send in a burst, unless it has its own limit.",
    )
    stored_bytes_per_day: int = Field(
        STORED_BYTES_PER_DAY,
        ge=100 * MIB,
        description="Bytes of assembled messages that an account may have stored on a UTC day; a tenth of it for test "
        "mail.",
    )
    writes_per_second: int = Field(
        WRITES_PER_SECOND,
        ge=1,
        le=10**6,
        description="Changes per second that an account may make under /v1, in each process: its templates, keys, "
        "domains and so on.",
    )
    writes_burst: int = Field(
        WRITES_BURST, ge=1, le=10**9, description="Changes that an account may make under /v1 in a burst."
    )
    warmup_enabled: bool = Field(
        True, description="Whether new accounts are limited to a growing number of recipients a day."
    )
    warmup_limits: Integers = Field(
        WARMUP_RECIPIENTS_BY_DAY,
        description="Recipients per UTC day on an account's first, second, … day; unlimited afterwards.",
    )

    @field_validator("warmup_limits")
    @classmethod
    def _are_positive(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        if any(limit < 1 for limit in given):
            raise ValueError("contains a number below 1; set warmup_enabled to false to have no limits")
        return given
