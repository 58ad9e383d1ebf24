"""What `posthouse dev` prints once everything runs. Lines have no frame at their sides, so that they can be copied."""

import textwrap
from collections.abc import Mapping
from typing import Final

from posthouse.dev.home import DIRECTORY, Home
from posthouse.dev.ports import Ports

WIDTH: Final = 100
READY: Final = "Ctrl-C stops everything"


def panel(demo: Mapping[str, str], home: Home, ports: Ports, *, link: str, seconds: float) -> str:
    """`link` opens the dashboard or the page of captured mail, once."""
    # Commands find the usual directory by themselves.
    posthouse = "posthouse" if home.directory == DIRECTORY else f"POSTHOUSE_CONFIG={home.config} posthouse"
    skipped = "".join(f"\n  port {taken} is taken, {chosen} is used instead" for taken, chosen in ports.skipped)
    return f"""\
{" Posthouse ":━^{WIDTH}}
  No mail leaves: all of it, with any key, is captured. Read it here (the link works once, for 10 minutes):

  {link}

  API {demo["DEMO_URL"]} (reference: {demo["DEMO_URL"]}/docs), SMTP {demo["DEMO_SMTP_URL"]} (STARTTLS)
  login {demo["DEMO_LOGIN_EMAIL"]} with {demo["DEMO_LOGIN_PASSWORD"]}
  live key {demo["DEMO_LIVE_KEY"]}
  test key {demo["DEMO_TEST_KEY"]}{skipped}
{" Send a mail with curl ":─^{WIDTH}}
{_curl(demo)}
{" with Python ":─^{WIDTH}}
{_python(demo)}
{" over SMTP ":─^{WIDTH}}
{_smtp(demo, home)}
{" Read it ":─^{WIDTH}}
{posthouse} message open ID
{"":─^{WIDTH}}
  Started in {seconds:.1f} s. {READY}; the next start continues, `--reset` begins anew.
  Data, log and the account's secrets as shell variables (demo.env) are in {home.directory}.
{"":━^{WIDTH}}
"""


def _curl(demo: Mapping[str, str]) -> str:
    body = f'{{"from": "{demo["DEMO_FROM"]}", "to": "ada@example.org", "subject": "Hello", "text": "It works."}}'
    return textwrap.dedent(f"""\
        curl {demo["DEMO_URL"]}/emails \\
          -H 'Authorization: Bearer {demo["DEMO_LIVE_KEY"]}' \\
          -H 'Content-Type: application/json' \\
          -H "Idempotency-Key: $(date +%s%N)" \\
          -d '{body}'""")


def _python(demo: Mapping[str, str]) -> str:
    return textwrap.dedent(f"""\
        import json, urllib.request, uuid
        mail = {{"from": "{demo["DEMO_FROM"]}", "to": "ada@example.org", "subject": "Hello", "text": "It works."}}
        headers = {{
            "Authorization": "Bearer {demo["DEMO_LIVE_KEY"]}",
            "Content-Type": "application/json",
            "Idempotency-Key": str(uuid.uuid4()),
        }}
        request = urllib.request.Request("{demo["DEMO_URL"]}/emails", json.dumps(mail).encode(), headers)
        print(urllib.request.urlopen(request).read().decode())""")


def _smtp(demo: Mapping[str, str], home: Home) -> str:
    return textwrap.dedent(f"""\
        printf 'From: {demo["DEMO_FROM"]}\\r\\nTo: ada@example.org\\r\\nSubject: Hello\\r\\n\\r\\nIt works.\\r\\n' |
        curl --url {demo["DEMO_SMTP_URL"]} --ssl-reqd --cacert {home.certificate} \\
          --user '{demo["DEMO_SMTP_USERNAME"]}:{demo["DEMO_SMTP_PASSWORD"]}' \\
          --mail-from {demo["DEMO_FROM"]} --mail-rcpt ada@example.org --upload-file -""")
