"""Names of settings from before there were sections: refused, each with its new name.

Without this, an old variable would be ignored silently, and an old file refused without a hint.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from posthouse.config.errors import ConfigError
from posthouse.config.settings import ENVIRONMENT_PREFIX, Settings, variable

# The old name, and the section and name that replaced it.
NEW_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "database_url": ("database", "url"),
    "database_pool_max": ("database", "pool_max"),
    "database_patience": ("database", "patience"),
    "allow_unsafe_database": ("database", "allow_unsafe"),
    "storage_directory": ("disk_space", "directory"),
    "storage_free_bytes_min": ("disk_space", "free_bytes_min"),
    "storage_bytes_max": ("disk_space", "database_bytes_max"),
    "pepper": ("secrets", "pepper"),
    "jwt_secret": ("secrets", "jwt_secret"),
    "seal_keys": ("secrets", "seal_keys"),
    "seal_key_active": ("secrets", "seal_key_active"),
    "hostname": ("service", "hostname"),
    "own_addresses": ("service", "own_addresses"),
    "own_domains": ("service", "own_domains"),
    "resolvers": ("service", "resolvers"),
    "log_level": ("service", "log_level"),
    "http_host": ("http", "host"),
    "http_port": ("http", "port"),
    "trusted_proxies": ("http", "trusted_proxies"),
    "public_url": ("http", "public_url"),
    "tls_certificate_file": ("smtp", "tls_certificate_file"),
    "tls_key_file": ("smtp", "tls_key_file"),
    "smtp_connections_max": ("smtp", "connections_max"),
    "smtp_connections_per_address_max": ("smtp", "connections_per_address_max"),
    "submission_host": ("submission", "host"),
    "submission_port": ("submission", "port"),
    "submission_tls_port": ("submission", "tls_port"),
    "inbound_host": ("inbound", "host"),
    "inbound_port": ("inbound", "port"),
    "return_path_domain": ("inbound", "return_path_domain"),
    "feedback_address": ("inbound", "feedback_address"),
    "rate_per_second": ("limits", "rate_per_second"),
    "rate_burst": ("limits", "rate_burst"),
    "warmup_enabled": ("limits", "warmup_enabled"),
    "warmup_limits": ("limits", "warmup_limits"),
    "stream": ("stream", "servers"),
    "stream_shards": ("stream", "shards"),
    "stream_replicas": ("stream", "replicas"),
    "worker_lease_seconds": ("workers", "lease_seconds"),
    "ticket_lease_seconds": ("workers", "ticket_lease_seconds"),
    "smtp_port": ("delivery", "port"),
    "allow_loopback_destinations": ("delivery", "allow_loopback"),
    "simulator_domain": ("delivery", "simulator_domain"),
    "dkim_enabled": ("delivery", "dkim_enabled"),
    "delivery_sessions_max": ("delivery", "sessions_max"),
    "delivery_retry_minutes": ("delivery", "retry_minutes"),
    "delivery_lifetime_hours": ("delivery", "lifetime_hours"),
    "lane_per_second": ("lanes", "per_second"),
    "lane_burst": ("lanes", "burst"),
    "lane_connections_max": ("lanes", "connections_max"),
    "lanes": ("lanes", "by_name"),
    "webhook_ports": ("webhooks", "ports"),
    "allow_loopback_webhooks": ("webhooks", "allow_loopback"),
    "webhook_authority_file": ("webhooks", "authority_file"),
    "retention_days_messages": ("retention", "messages_days"),
    "retention_days_bodies": ("retention", "bodies_days"),
    "retention_days_webhooks": ("retention", "webhooks_days"),
}


def refuse_old_names(values: Mapping[str, object], file: Path | None, environment: Mapping[str, str]) -> None:
    """Raises a ConfigError with every old name in the file and the environment, and what to write instead."""
    in_file = [*_in_file(values)]
    in_environment = [*_in_environment(environment)]
    texts = []
    if in_file:
        texts.append(f"in {file} write {', '.join(in_file)}")
    if in_environment:
        texts.append(f"in the environment set {', '.join(in_environment)}")
    if texts:
        raise ConfigError(f"settings have new names, in sections: {'; '.join(texts)}")


def _in_file(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if name == "lanes" and isinstance(value, Mapping):
            # It was a table of lanes, and is a section with that table in it.
            for lane, limits in value.items():
                if isinstance(limits, Mapping) and lane != "by_name":
                    yield f"[lanes.by_name.{lane}] instead of [lanes.{lane}]"
        elif name in NEW_NAMES and not (name in Settings.model_fields and isinstance(value, Mapping)):
            section, new = NEW_NAMES[name]
            yield f"{new} under [{section}] instead of {name}"


def _in_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name in environment:
        old = name.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        if name.upper().startswith(ENVIRONMENT_PREFIX) and old in NEW_NAMES:
            yield f"{variable(*NEW_NAMES[old])} instead of {name}"
