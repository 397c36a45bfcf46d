"""ops/kubernetes: valid resources whose names fit together, and settings that exist."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reput import config
from reput.broker.settings import config as of_brokers
from reput.controller import config as of_controllers

FOLDER = Path(__file__).parents[3] / "ops" / "kubernetes"
Resource = dict[str, Any]


def resources(kind: str = "") -> list[Resource]:
    """Return the resources that kustomization.yaml names."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert {*listed} == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    known = [
        resource for name in listed for resource in yaml.safe_load_all((FOLDER / name).read_text())
    ]
    return [resource for resource in known if kind in ("", resource["kind"])]


def named(kind: str) -> dict[str, Resource]:
    return {resource["metadata"]["name"]: resource for resource in resources(kind)}


def containers() -> Iterator[tuple[str, Resource, Resource]]:
    """Yield the name of each set, its pod and its only container."""
    for name, stateful in named("StatefulSet").items():
        pod = stateful["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield name, pod, container


def test_kubernetes_accepts_the_resources() -> None:
    judge = pytest.importorskip("kubernetes_validate")
    for resource in resources():
        judge.validate(resource, "1.37", strict=True)


def test_each_set_has_a_service_and_a_budget_that_select_its_pods() -> None:
    services, budgets = named("Service"), named("PodDisruptionBudget")
    sets = named("StatefulSet")
    assert sets.keys() == services.keys() == budgets.keys()
    for name, stateful in sets.items():
        labels = stateful["spec"]["template"]["metadata"]["labels"]
        service = services[stateful["spec"]["serviceName"]]["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"], "brokers must reach a controller in trouble"
        selected = [
            stateful["spec"]["selector"]["matchLabels"],
            service["selector"],
            budgets[name]["spec"]["selector"]["matchLabels"],
        ]
        assert selected == [labels] * 3
        (container,) = stateful["spec"]["template"]["spec"]["containers"]
        opened = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["name"]: port["port"] for port in service["ports"]} == opened


def test_probes_ask_ports_and_volumes_exist() -> None:
    for name, pod, container in containers():
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            action = container[probe].get("httpGet") or container[probe]["tcpSocket"]
            assert action["port"] in ports
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"
        claims = named("StatefulSet")[name]["spec"]["volumeClaimTemplates"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in claims}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        for volume in pod.get("volumes", []):
            assert volume["configMap"]["name"] in named("ConfigMap")


def test_addresses_in_settings_are_those_of_pods() -> None:
    pods = {
        f"{name}-{number}.{name}:{container['ports'][0]['containerPort']}"
        for name, _, container in containers()
        for number in range(named("StatefulSet")[name]["spec"]["replicas"])
    }
    broker = settings("broker-a", "broker.conf")
    assert {*broker["namesrvAddr"].split(";"), *broker["controllerAddr"].split(";")} <= pods
    peers = settings("controller", "controller.conf")["controllerDLegerPeers"]
    assert peers.partition("-")[2] in pods
    assert int(broker["minInSyncReplicas"]) <= named("StatefulSet")["broker-a"]["spec"]["replicas"]


def settings(name: str, file: str) -> dict[str, str]:
    return config.parse_properties(named("ConfigMap")[name]["data"][file])


def test_settings_exist(tmp_path: Path) -> None:
    file = tmp_path / "controller.conf"
    file.write_text(named("ConfigMap")["controller"]["data"]["controller.conf"])
    current, unknown = of_controllers.load(str(file), environment={})
    assert unknown == ()
    assert current.value.port == 9878
    # Those of a slave of a controller are checked with the start of such a broker.
    left = {"enableControllerMode", "brokerRole", "brokerId"}
    given = settings("broker-a", "broker.conf").items()
    file.write_text("".join(f"{key}={text}\n" for key, text in given if key not in left))
    loaded = of_brokers.load(str(file), environment={"HOME": str(tmp_path)})
    assert not [warning for warning in loaded.warnings if "unknown" in warning]
