"""The directory of `posthouse dev`: a lock, the settings, the demo account's secrets, the certificate, and the data.

Only the owner can read the secrets in it. Others may enter the directory itself, because PostgreSQL runs as another
user if root starts it.
"""

import fcntl
import ipaddress
import json
import os
import secrets
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from posthouse.config import text as config_text
from posthouse.dev.ports import DevError, Ports

DIRECTORY: Final = Path(".posthouse")
CERTIFICATE_DAYS: Final = 3650
LOCALHOST: Final = "127.0.0.1"
DOMAIN: Final = "demo.example"
ACCOUNT: Final = "demo"


@dataclass(frozen=True, slots=True)
class Home:
    directory: Path

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def config(self) -> Path:
        return self.directory / "posthouse.toml"

    @property
    def demo(self) -> Path:
        """The demo account's secrets, for a shell to read: `. .posthouse/demo.env`."""
        return self.directory / "demo.env"

    @property
    def log(self) -> Path:
        return self.directory / "service.log"

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.pem"

    @property
    def _certificate_key(self) -> Path:
        return self.directory / "certificate.key"

    @property
    def _lock(self) -> Path:
        return self.directory / "lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory, and become the only process that uses it; the lock ends with the process."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.directory.chmod(0o711)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DevError(f"{self.directory} can't be used ({error.strerror}): choose another --directory") from None
        with os.fdopen(descriptor, "r+"):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DevError(self._runs_already()) from None
            os.truncate(descriptor, 0)
            yield
            os.truncate(descriptor, 0)

    def announce(self, url: str) -> None:
        """Note the service's URL, for a second start."""
        self._lock.write_text(json.dumps({"pid": os.getpid(), "url": url}))

    def reset(self) -> None:
        """Delete everything but the lock; other files in the directory stay."""
        for path in (self.config, self.demo, self.log, self.certificate, self._certificate_key):
            path.unlink(missing_ok=True)
        if self.postgres.exists():
            shutil.rmtree(self.postgres)

    def database_password(self) -> str:
        if self.postgres.exists() and not self.config.exists():
            raise DevError(f"{self.config} is gone, and with it the database's password: start over with --reset")
        return self._kept_setting("database", "url").rpartition("@")[0].rpartition(":")[2] or secrets.token_hex(16)

    def write_config(self, database_url: str, ports: Ports, host: str, url: str) -> None:
        """Write the settings of this start, with the service at `url`; the secrets are those of the first start."""
        kept = self._kept_setting("secrets", "") or asdict(config_text.generated())
        values: dict[str, Mapping[str, object]] = {
            "service": {
                "hostname": f"mail.{DOMAIN}",
                "sender": f"Posthouse <no-reply@{DOMAIN}>",
                "sender_account": ACCOUNT,
                # Other accounts can send to their members without their own domain.
                "sandbox_domain": DOMAIN,
            },
            # A laptop may be slow, and a late response is better than a refusal.
            "database": {"url": database_url, "timeout_factor": 10},
            "secrets": kept,
            "http": {
                "host": host,
                "port": ports.http,
                # Links in mail lead here, if mail can contain them.
                "public_url": url if url.startswith(f"http://{LOCALHOST}:") else "",
                "connections_max": 500,
            },
            "smtp": {
                "tls_certificate_file": str(self.certificate.resolve()),
                "tls_key_file": str(self._certificate_key.resolve()),
                "connections_max": 200,
            },
            "submission": {"host": host, "port": ports.submission, "tls_port": ports.submission_tls},
            "inbound": {"host": host, "port": ports.inbound, "return_path_domain": f"bounces.{DOMAIN}"},
            "limits": {"rate_per_second": 1_000, "rate_burst": 1_000, "warmup_enabled": False},
            "delivery": {"outbound": "capture", "sessions_max": 50},
        }
        head = '# Written by `posthouse dev` at each start. No mail leaves: delivery.outbound is "capture".\n'
        write_privately(self.config, head + config_text.plain_toml(values))

    def read_demo(self) -> dict[str, str]:
        if not self.demo.exists():
            return {}
        pairs = (line.partition("=") for line in shlex.split(self.demo.read_text()))
        return {name: value for name, _, value in pairs}

    def write_demo(self, values: Mapping[str, str]) -> None:
        write_privately(self.demo, "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()))

    def make_certificate(self) -> None:
        """A self-signed certificate for localhost: clients trust exactly this file."""
        if self.certificate.exists() and self._certificate_key.exists():
            return
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "posthouse dev")])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_privately(self._certificate_key, private.decode())
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _kept_setting(self, section: str, name: str) -> Any:
        """A setting of the last start, or a whole section; empty if there was none."""
        if not self.config.exists():
            return ""
        try:
            found = tomllib.loads(self.config.read_text()).get(section, {})
        except (OSError, ValueError) as error:
            raise DevError(f"{self.config} can't be read ({error}): start over with --reset") from None
        return found.get(name, "") if name else found

    def _runs_already(self) -> str:
        try:
            known = json.loads(self._lock.read_text())
            return f"already running at {known['url']} (process {known['pid']}): stop that first, or use --directory"
        except (OSError, ValueError, KeyError):
            return f"another process is starting or stopping in {self.directory}: try again in a moment"


def write_privately(file: Path, text: str) -> None:
    """Write the file in one step, so that a killed process leaves either the old file or the new one."""
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        written.write(text)
    partial.replace(file)
