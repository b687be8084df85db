"""What runs agent3 as a service: the files of ``deploy/`` against the code, and the wheel outside of the repository.

Neither Docker nor Kubernetes nor systemd runs here, so their files are checked for what they say: that they are
well-formed, that the settings, metrics and paths in them exist, and that they keep their promises about privileges.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from agent3.observe.metrics import Count, Level, Metrics, Timing
from agent3.server.readiness import LONGEST
from agent3.server.workers import _PATIENCE
from agent3.settings import Settings, load
from tests.support.promtool import promtool

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "agent3.json"
OF_THE_PROCESS = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
}


def exported() -> dict[str, set[str]]:
    """Every series of ours that a gateway exports, with its labels."""
    found: dict[str, set[str]] = {}
    for one in vars(Metrics()).values():
        if isinstance(one, Count | Level | Timing):
            names = [f"{one.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]
            found |= {name: {*one.labels, "le"} for name in (names if isinstance(one, Timing) else [one.name])}
    return found


def queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_every_query_of_the_dashboard_names_a_metric_and_labels_that_we_export() -> None:
    known = exported()
    used = [name for query in queries() for name in re.findall(r"\b(?:mcp|a2a|nlweb|agent3|process)_[a-z0-9_]+", query)]
    assert len(used) > 30
    assert set(used) - OF_THE_PROCESS <= set(known)
    for query in queries():
        series = set(re.findall(r"\b(?:mcp|a2a|nlweb|agent3)_[a-z0-9_]+(?=\{)", query))
        wanted = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        wanted |= set(re.findall(r'[{,](\w+)=~?"', query)) - {"instance"}
        assert all(wanted <= known[name] for name in series), query


def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:{number}", "expr": query.replace("$__rate_interval", "1m").replace("$instance", ".*")}
        for number, query in enumerate(queries())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool(), "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/alerts", str(ROOT / "alerts")))
    done = subprocess.run(
        [promtool(), "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_place_in_the_runbook() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "alerts" / "agent3.rules.yml").read_text())
    runbook = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    assert len(alerts) >= 4
    assert [name for name in alerts if f"## {name}" not in runbook] == []


def settings_files() -> dict[str, str]:
    manifest = yaml.safe_load((DEPLOY / "kubernetes" / "settings.yaml").read_text())
    return {"compose": (DEPLOY / "agent3.toml").read_text(), "kubernetes": manifest["data"]["agent3.toml"]}


@pytest.mark.parametrize("name", ["compose", "kubernetes"])
def test_a_gateway_would_start_with_the_settings_of_the_examples(name: str, tmp_path: Path) -> None:
    file = tmp_path / "agent3.toml"
    file.write_text(settings_files()[name])
    settings = load(file, {"AGENT3_SERVER_HOST": "0.0.0.0"})
    assert settings.clients
    assert settings.server.allowed_hosts
    assert settings.storage.seal == "env:GATEWAY_SEAL"


def test_variables_in_the_files_are_settings_or_secrets_that_the_settings_name() -> None:
    files = [DEPLOY / "Dockerfile", DEPLOY / "compose.yml", DEPLOY / "kubernetes" / "gateway.yaml"]
    files += [DEPLOY / "systemd" / "agent3.service", DEPLOY / "compose.env.example"]
    named = {name for file in files for name in re.findall(r"\bAGENT3_[A-Z0-9_]+", file.read_text())}
    documented = set(re.findall(r"`(AGENT3_[A-Z0-9_]+)`", (ROOT / "docs" / "reference" / "settings.md").read_text()))
    referred = {name for text in settings_files().values() for name in re.findall(r"env:([A-Z0-9_]+)", text)}
    assert "AGENT3_DATA" in named
    assert named - documented - referred == set()


def test_the_services_have_no_privileges_and_refuse_to_start_without_secrets() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    gateway = compose["services"]["gateway"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    secrets = re.findall(r"\$\{(\w+)(:\?)?", (DEPLOY / "compose.yml").read_text())
    assert {name for name, _ in secrets} == set(
        re.findall(r"^(\w+)=$", (DEPLOY / "compose.env.example").read_text(), re.MULTILINE)
    )
    assert all(demanded for _, demanded in secrets)
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), volume


def test_the_image_runs_without_root_and_looks_at_its_health() -> None:
    stages = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    last = stages[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "/healthz" in last
    copied = [
        part for line in re.findall(r"^COPY (?!--from)(.+)$", stages[-2], re.MULTILINE) for part in shlex.split(line)
    ]
    assert [part for part in copied if not part.startswith("./") and not (ROOT / part).exists()] == []


def manifests() -> list[dict[str, Any]]:
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
    return [one for name in listed for one in yaml.safe_load_all((folder / name).read_text())]


def test_the_pods_are_probed_restricted_and_replaced_one_after_the_other() -> None:
    found = {one["kind"]: one for one in manifests()}
    spec = found["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    # Without a name of its own the gateway would refuse a probe, which sends the address of the pod.
    assert all({"name": "Host", "value": "localhost"} in probe["httpHeaders"] for probe in probes.values())
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    labels = spec["template"]["metadata"]["labels"].items()
    for selector in (
        found["Service"]["spec"]["selector"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    settings = tomllib.loads(found["ConfigMap"]["data"]["agent3.toml"])
    assert pod["terminationGracePeriodSeconds"] > settings["server"]["shutdown_seconds"] + LONGEST + _PATIENCE


def test_services_are_given_all_the_time_to_stop_that_a_gateway_takes_at_most() -> None:
    most = Settings().server.shutdown_seconds + LONGEST + _PATIENCE
    unit = (DEPLOY / "systemd" / "agent3.service").read_text()
    compose = (DEPLOY / "compose.yml").read_text()
    for pattern, text in ((r"^TimeoutStopSec=(\d+)$", unit), (r"stop_grace_period: (\d+)s$", compose)):
        (given,) = re.findall(pattern, text, re.MULTILINE)
        assert int(given) > most


def test_systemd_takes_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not on PATH")
    unit = tmp_path / "agent3.service"
    text = (DEPLOY / "systemd" / "agent3.service").read_text()
    assert "ExecStart=/opt/agent3/bin/agent3 serve" in text
    assert "StartLimitIntervalSec=0" in text, "a database that comes up late must not end it for good"
    unit.write_text(text.replace("/opt/agent3/bin/agent3", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-400:]


def test_the_wheel_and_the_sdist_carry_everything_and_run_outside_of_the_repository(tmp_path: Path) -> None:
    """Built by the pinned backend, unpacked beside the packages of this environment, and served from there."""
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1])); print(b.build_sdist(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    wheel, sdist = (tmp_path / name for name in built.stdout.split()[-2:])
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    data = [path for path in tracked("src/agent3") if path.suffix != ".py"]
    modules = [path for path in tracked("src/agent3") if path.suffix == ".py"]
    assert len(data) > 20
    missing = [path for path in [*data, *modules] if not (site / path.relative_to("src")).is_file()]
    assert missing == []
    with tarfile.open(sdist) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/agent3/py.typed"} <= inside
    assert not [name for name in inside if name.startswith((".venv", ".git/"))]

    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(site), "AGENT3_DATA": str(home)}
    place = subprocess.run(
        [sys.executable, "-c", "import agent3; print(agent3.__file__)"],
        cwd=home, env=environment, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    assert place.stdout.startswith(str(site))
    serving = subprocess.Popen(
        [sys.executable, "-m", "agent3", "serve", "--demo", "--port", "0"],
        cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert serving.stdout is not None
        url = next(match[0] for line in serving.stdout if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        with urllib.request.urlopen(f"{url}/healthz", timeout=240) as answer:
            assert json.load(answer)["status"] == "ok"
        request = urllib.request.Request(
            f"{url}/v1/call",
            json.dumps({"agentId": "calculator", "message": "2 * (3 + 4)"}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=240) as answer:
            assert json.load(answer)["result"] == 14
    finally:
        serving.terminate()
        serving.communicate(timeout=240)


def tracked(folder: str) -> list[Path]:
    """The files that are part of the project; without git, all that lie there."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, timeout=240)
    names = listed.stdout.split() if listed.returncode == 0 else []
    found = [Path(name) for name in names] or [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*")]
    return [path for path in found if (ROOT / path).is_file() and "__pycache__" not in path.parts]
