"""nginx and Caddy in front of a service, with the configurations of `deploy/proxy`: only addresses and paths differ."""

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy.files import DEPLOY
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tools.private_postgres import free_port

NGINX: Final = "nginx"
CADDY: Final = "caddy"
STOP_SECONDS_MAX: Final = 30.0

_NGINX_AROUND: Final = """
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
user {user};
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/site.conf;
}}
"""
_CADDY_GLOBAL: Final = """{{
	admin off
	skip_install_trust
	default_bind 127.0.0.1
	http_port {http_port}
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    port: int
    trusting: ssl.SSLContext

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@asynccontextmanager
async def running(name: str, upstream_port: int, directory: Path) -> AsyncIterator[Proxy]:
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, f"{name} is missing: apt-get install --no-install-recommends {name}"
    authority = Authority.make(directory, "localhost")
    proxy = Proxy(name, free_port(), ssl.create_default_context(cafile=str(authority.authority_file)))
    words = {NGINX: _nginx, CADDY: _caddy}[name](authority, proxy.port, upstream_port)
    process = _started([program, *words], directory)
    try:
        await eventually(lambda: _is_open(process, proxy.port))
        yield proxy
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)


def _started(command: list[str], directory: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    with (directory / "output.log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def _nginx(authority: Authority, port: int, upstream_port: int) -> list[str]:
    directory = authority.directory
    site = _replaced(
        (DEPLOY / "proxy/nginx.conf").read_text(),
        {
            "server 127.0.0.1:8025;": f"server 127.0.0.1:{upstream_port};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
            "listen [::]:443 ssl http2;": "",
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
            "listen [::]:80;": "",
            "/etc/letsencrypt/live/mail.example.com/fullchain.pem": str(authority.certificate_file),
            "/etc/letsencrypt/live/mail.example.com/privkey.pem": str(authority.key_file),
        },
    )
    (directory / "site.conf").write_text(site)
    user = "root" if os.getuid() == 0 else "nobody"
    (directory / "nginx.conf").write_text(_NGINX_AROUND.format(directory=directory, user=user))
    return ["-c", str(directory / "nginx.conf"), "-e", str(directory / "nginx.log")]


def _caddy(authority: Authority, port: int, upstream_port: int) -> list[str]:
    site = _replaced(
        (DEPLOY / "proxy/Caddyfile").read_text(),
        {
            "\n{\n": "\n" + _CADDY_GLOBAL.format(http_port=free_port()),
            "{$MAIL_SITE:mail.example.com} {": (
                f"https://localhost:{port} {{\n\ttls {authority.certificate_file} {authority.key_file}"
            ),
            "{$MAIL_UPSTREAM:127.0.0.1:8025}": f"127.0.0.1:{upstream_port}",
        },
    )
    file = authority.directory / "Caddyfile"
    file.write_text(site)
    return ["run", "--config", str(file), "--adapter", "caddyfile"]


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    for given, wanted in replacements.items():
        assert text.count(given) == 1, given
        text = text.replace(given, wanted)
    return text


async def _is_open(process: "subprocess.Popen[bytes]", port: int) -> bool:
    assert process.poll() is None, f"the proxy ended with {process.returncode}"
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True
