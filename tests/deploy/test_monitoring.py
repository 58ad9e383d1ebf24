"""`deploy/monitoring`: rules, alerts with their runbooks, and dashboards are of metrics that exist, and work.

What needs Debian's package `prometheus` is left out without it; `make test-monitoring` runs all, also under load.
"""

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from posthouse import metrics
from posthouse.metrics import CATALOGUE, Histogram
from posthouse.rules.check_up import CHECKS, Severity
from tests.deploy.files import ROOT, documents
from tests.support.commands import commands_in, unknown_commands
from tests.support.eventually import eventually
from tests.support.prometheus import DIRECTORY, asked, prometheus
from tests.support.whole_service import start_whole_service
from tools import write_grafana_dashboards
from tools.private_postgres import free_port

RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ["Check", "Repair", "Done when"]
PROCESSES = 8
LOAD_SECONDS = 25

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None, reason="needs Debian's package prometheus"
)


def _rules(file: str) -> list[dict[str, Any]]:
    (document,) = documents(DIRECTORY / file)
    return [rule for group in document["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in _rules("alerts.yaml")}
RECORDED = {rule["record"] for rule in _rules("recording-rules.yaml")}


def _runbook(alert: str) -> Path:
    """Its `runbook_url` is where the service shows the page."""
    server, _, name = ALERTS[alert]["annotations"]["runbook_url"].partition("/dashboard/runbooks/")
    assert server == "{{ $externalLabels.posthouse }}"
    return RUNBOOKS / f"{name}.md"


def _headings(page: str) -> list[str]:
    return re.findall(r"^## (.*)$", page, re.MULTILINE)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_leads_to_a_runbook_about_it(alert: str) -> None:
    page = _runbook(alert).read_text()
    assert _headings(page) == HEADINGS
    assert f"\n\nAlert: `{alert}`. Severity: {ALERTS[alert]['labels']['severity']}." in page
    assert ALERTS[alert]["annotations"]["summary"].endswith(".")


OF_ALERTS = {_runbook(alert) for alert in ALERTS}
OF_CHECKS = {RUNBOOKS / f"{check.runbook}.md" for check in CHECKS.values() if check.why}


def test_each_runbook_is_that_of_an_alert_or_a_check() -> None:
    assert set(RUNBOOKS.glob("*.md")) - {RUNBOOKS / "index.md"} == OF_ALERTS | OF_CHECKS


def test_each_runbook_has_a_symptom_as_its_title_and_is_in_the_index_with_it() -> None:
    index = (RUNBOOKS / "index.md").read_text()
    for file in OF_ALERTS | OF_CHECKS:
        title = re.match(r"# (?!Posthouse)([\w ,']+)\n", file.read_text())
        assert title is not None, file
        assert index.count(f"- [{title[1]}]({file.name})\n") == 1, file


@pytest.mark.parametrize("file", sorted(OF_ALERTS | OF_CHECKS), ids=lambda file: file.stem)
def test_each_runbook_says_in_one_sentence_what_the_symptom_means(file: Path) -> None:
    meaning = file.read_text().split("\n\n")[1]
    assert not meaning.startswith(("Alert:", "Severity:"))
    assert re.search(r"\.\s", meaning) is None, "a second sentence belongs to Check or Repair"
    assert meaning.endswith(".")


@pytest.mark.parametrize("file", sorted(OF_CHECKS - OF_ALERTS), ids=lambda file: file.stem)
def test_a_runbook_without_an_alert_names_its_checks(file: Path) -> None:
    page = file.read_text()
    assert _headings(page) == HEADINGS
    checks = [check for check in CHECKS.values() if check.runbook == file.stem]
    titles = {
        severity: ", ".join(check.title for check in checks if check.severity is severity)
        for severity in (Severity.CRITICAL, Severity.WARNING)
    }
    said = ", ".join(f"{severity} ({named})" for severity, named in titles.items() if named)
    assert f"Severity: {said}." in " ".join(page.split())


def test_runbooks_name_commands_that_exist() -> None:
    pages = "\n".join(page.read_text() for page in RUNBOOKS.glob("*.md"))
    assert len(commands_in(pages)) > 30
    assert unknown_commands(pages) == []


def test_each_alert_has_a_case() -> None:
    (cases,) = documents(DIRECTORY / "alerts.test.yaml")
    assert {case["name"] for case in cases["tests"]} == {f"{alert} fires" for alert in ALERTS} | {
        "a healthy service is quiet"
    }


def _names(text: str) -> set[str]:
    """The metrics that an expression names, without what Prometheus makes of a histogram."""
    histograms = {metric.name for metric in CATALOGUE if isinstance(metric, Histogram)}
    found = set(re.findall(r"\bposthouse_[a-z_]+", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in histograms else name for name in found}


def test_rules_alerts_and_dashboards_are_of_metrics_that_exist() -> None:
    known = {metric.name for metric in CATALOGUE}
    expressions = [rule["expr"] for rule in (*_rules("alerts.yaml"), *_rules("recording-rules.yaml"))]
    expressions += write_grafana_dashboards.queries()
    assert set().union(*map(_names, expressions)) - known == set()
    assert set(re.findall(r"\bposthouse:[a-z0-9_:]+", "\n".join(expressions))) <= RECORDED


def test_labels_in_expressions_are_those_of_the_metrics() -> None:
    labels = {metric.name: set(metric.labels) for metric in CATALOGUE}
    selectors = re.findall(
        r"(posthouse_[a-z_]+)\{([^}]*)\}",
        "\n".join([*(rule["expr"] for rule in _rules("alerts.yaml")), *write_grafana_dashboards.queries()]),
    )
    assert len(selectors) > 5
    for name, selector in selectors:
        assert set(re.findall(r"(\w+)[=!]", selector)) <= labels[name], name


def test_the_dashboards_are_those_of_their_sources() -> None:
    files = {file.stem: file.read_text() for file in write_grafana_dashboards.DIRECTORY.iterdir()}
    assert set(files) == set(write_grafana_dashboards.DASHBOARDS)
    stale = [uid for uid, text in files.items() if text != write_grafana_dashboards.rendered(uid)]
    assert stale == [], "run `make grafana-dashboards`"


@needs_prometheus
@pytest.mark.parametrize(
    "words",
    [
        ["check", "rules", "recording-rules.yaml", "alerts.yaml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts.test.yaml"],
    ],
    ids=" ".join,
)
def test_promtool_is_satisfied(words: list[str]) -> None:
    done = subprocess.run(["promtool", *words], cwd=DIRECTORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
@pytest.mark.nightly
async def test_a_real_prometheus_scrapes_a_busy_service_and_every_panel_has_series(
    database_url: str, tmp_path: Path
) -> None:
    port = free_port()
    # So slow that mail waits in its lanes.
    settings = {"MONITORING__PORT": str(port), "LANES__PER_SECOND": "2", "LANES__BURST": "2"}
    async with start_whole_service(database_url, tmp_path, 1, program=None, **settings) as service:
        service.start("maintenance")
        with prometheus(tmp_path, port, PROCESSES) as url:

            async def parts() -> set[str]:
                found = await asked(url, "query", query="posthouse_process_info")
                return {row["metric"]["part"] for row in found.get("result", [])}

            every_part = {"http", "submission", "inbound", "dispatch", "delivery", "notification", "maintenance"}
            await eventually(parts, lambda found: found == every_part, every=1)
            began_at = time.time()
            async with service.busy():
                await asyncio.sleep(LOAD_SECONDS)  # the time over which rates are read
            bare = []
            for query in write_grafana_dashboards.queries():
                expression = query.replace("$__rate_interval", "10s")
                found = await asked(
                    url, "query_range", query=expression, start=began_at, end=time.time() + 1, step="1s"
                )
                if not found.get("result"):
                    bare.append((query, found))
            assert bare == []
            rules = [rule for group in (await asked(url, "rules"))["groups"] for rule in group["rules"]]
            assert {rule["name"] for rule in rules if rule["health"] == "ok"} == RECORDED | set(ALERTS)

            async def accepted() -> float:
                found = await asked(url, "query", query='sum(posthouse_accepts_total{code="accepted"})')
                return float(found["result"][0]["value"][1])

            # With the next scrape, Prometheus has counted what the clients have.
            await eventually(accepted, lambda number: number == service.accepted, every=0.5)
            series = await asked(url, "query", query='count by (__name__) ({__name__=~"posthouse_.*"})')
            widest = max(int(row["value"][1]) for row in series["result"])
            assert widest < metrics.SERIES_MAX * PROCESSES, "24 destinations and three accounts"
