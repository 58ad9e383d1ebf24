"""What `posthouse doctor` checks outside of the database."""

import resource
import ssl
from pathlib import Path
from typing import Final

from posthouse.compose.connections import resolver
from posthouse.config import Settings
from posthouse.flows.operate.outside_checks import OutsideChecks, OutsideSettings
from posthouse.wire.dns import Resolver, system_name_servers

# Open files of a process besides its connections: pools, files, logs.
OTHER_FILES: Final = 100


def files_needed(settings: Settings) -> dict[str, int]:
    """How many open files a part needs, by the setting that decides it."""
    return {
        "smtp.connections_max": settings.smtp.connections_max + OTHER_FILES,
        "delivery.sessions_max": settings.delivery.sessions_max + OTHER_FILES,
    }


def outside_checks(settings: Settings) -> OutsideChecks:
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    servers = settings.service.resolver_endpoints or system_name_servers()
    return OutsideChecks(
        settings=OutsideSettings(
            hostname=settings.service.hostname,
            return_path=settings.return_path,
            takes_bounces=bool(settings.inbound.return_path_domain),
            port_25_host=settings.doctor.port_25_host,
            certificate_file=str(settings.smtp.tls_certificate_file or ""),
            key_file=str(settings.smtp.tls_key_file or ""),
            authorities_file=_authorities_file(),
            files=_files(settings),
            files_max=None if files_max == resource.RLIM_INFINITY else files_max,
        ),
        resolver=resolver(settings),
        name_servers={f"{address} port {port}": Resolver([(address, port)]) for address, port in servers},
    )


def _files(settings: Settings) -> dict[str, int]:
    """Only for the parts that are set up."""
    needed = files_needed(settings)
    if not settings.smtp.tls_certificate_file and not settings.inbound.return_path_domain:
        del needed["smtp.connections_max"]
    return needed


def _authorities_file() -> str:
    """The system's bundle of certificate authorities, if it has one."""
    paths = (ssl.get_default_verify_paths().cafile, "/etc/ssl/certs/ca-certificates.crt")
    return next((path for path in paths if path and Path(path).is_file()), "")
