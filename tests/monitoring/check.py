#!/usr/bin/env python3
"""Checks the alerts and the dashboard of manifests/monitoring.

With promtool (Debian package `prometheus`): the alerts' syntax, and tests/monitoring/alerts.yaml. Without it: that each alert has a severity, a
section in docs/alerts.md and a test in which it fires, and that each metric exists and is described in docs/operations.md.
Standard library only: the YAML is of one shape, and promtool parses it.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests/monitoring"
TESTS = ROOT / "tests/monitoring/alerts.yaml"
# Suffixes that Prometheus adds to the name of a counter or histogram.
SUFFIXES = r"_(total|bucket)$"


def rules():
    """The rule file in the PrometheusRule: what is under `spec:`."""
    text = (MONITORING / "prometheusrule.yaml").read_text()
    spec = text[text.index("\nspec:\n") + len("\nspec:\n"):]
    return "".join(line.removeprefix("  ") + "\n" for line in spec.splitlines())


def metrics(text):
    return {re.sub(SUFFIXES, "", name) for name in re.findall(r"\btrustspan_([a-z_]+)", text)}


def faults(rule_text, tests, dashboard):
    alerts = re.findall(r"- alert: (\w+)\n(.*?)(?=\n *- alert: |\Z)", rule_text, re.S)
    sections = set(re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.M))
    for name, body in alerts:
        if not re.search(r"severity: (info|warning|critical)\b", body):
            yield f"{name}: expected the severity info, warning or critical"
        if f"docs/alerts.md#{name.lower()}" not in body:
            yield f"{name}: expected a runbook_url that ends with docs/alerts.md#{name.lower()}"
        fires = [re.match(r"\s*exp_alerts:", rest) is not None for rest in re.findall(rf"alertname: {name}\b[ }}]*(.*?)(?=alertname|\Z)", tests, re.S)]
        if True not in fires:
            yield f"{name}: no test in which it fires"
    names = {name for name, _ in alerts}
    for name in sorted(names ^ sections):
        yield f"{name}: an alert without a section in docs/alerts.md, or a section without an alert"
    # A histogram or counter is described by its name without the suffix.
    described = metrics(re.sub(r"`([a-z]+_[a-z_]+)`", r"trustspan_\1", (ROOT / "docs/operations.md").read_text()))
    source = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.rs")))
    for name in sorted(metrics(rule_text) | metrics(json.dumps(dashboard))):
        if name not in described:
            yield f"{name}: docs/operations.md does not describe this metric"
        if f'"{name}"' not in source:
            yield f"{name}: no such metric"


def main():
    rule_text, tests = rules(), TESTS.read_text()
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    found = list(faults(rule_text, tests, dashboard))
    for fault in found:
        print(fault)
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is missing: install it (Debian: prometheus)")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "rules.yaml").write_text(rule_text)
        pathlib.Path(folder, "alerts.yaml").write_text(tests)
        for arguments in (["check", "rules", "rules.yaml"], ["test", "rules", "alerts.yaml"]):
            if subprocess.run([promtool, *arguments], cwd=folder, check=False).returncode != 0:
                return 1
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    print(f"{rule_text.count('- alert: ')} alerts, {len(panels)} panels")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
