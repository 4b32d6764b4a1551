from __future__ import annotations

from collections.abc import Iterator

from tests.deploy.kubernetes.rendering import Object, only, pods, selected


def components(given: list[Object]) -> dict[str, Object]:
    return {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template
        for _, template in pods(given)
    }


def of_kind(given: list[Object], *kinds: str) -> Iterator[Object]:
    return (each for each in given if each["kind"] in kinds)


def ports(template: Object) -> dict[str, int]:
    (container,) = template["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}


def taken_by(selector: Object, given: list[Object]) -> set[str]:
    return {
        name
        for name, template in components(given).items()
        if selected(selector, template["metadata"]["labels"])
    }


def test_what_makes_pods_and_what_limits_their_disruption_finds_its_own(
    given: list[Object],
) -> None:
    for each in of_kind(given, "Deployment", "StatefulSet", "PodDisruptionBudget"):
        own = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert taken_by(each["spec"]["selector"], given) == {own}


def test_services_lead_to_the_coordinator_s_ports(given: list[Object]) -> None:
    coordinator = components(given)["coordinator"]
    for service in of_kind(given, "Service"):
        assert taken_by({"matchLabels": service["spec"]["selector"]}, given) == {"coordinator"}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports(coordinator)[port["targetPort"]]
    stateful = only(given, "StatefulSet", "lipt-coordinator")
    headless = only(given, "Service", stateful["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"


def test_workers_reach_the_coordinator_s_grpc_and_nothing_else_of_lipt(given: list[Object]) -> None:
    numbers = ports(components(given)["coordinator"])
    everybody = only(given, "NetworkPolicy", "lipt")["spec"]
    assert taken_by(everybody["podSelector"], given) == {"coordinator", "worker"}
    assert everybody["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(everybody)

    coordinator = only(given, "NetworkPolicy", "lipt-coordinator")["spec"]
    assert taken_by(coordinator["podSelector"], given) == {"coordinator"}
    assert "egress" not in coordinator
    callers, scrapers = coordinator["ingress"]
    assert callers["ports"] == [{"port": numbers["grpc"]}]
    assert taken_by(callers["from"][0]["podSelector"], given) == {"worker"}
    assert scrapers["ports"] == [{"port": numbers["metrics"]}]
    assert all("namespaceSelector" in each for each in scrapers["from"])

    worker = only(given, "NetworkPolicy", "lipt-worker")["spec"]
    assert taken_by(worker["podSelector"], given) == {"worker"}
    assert "ingress" not in worker
    assert ports(components(given)["worker"]) == {}
    to_coordinator, to_names = worker["egress"]
    assert to_coordinator["ports"] == [{"port": numbers["grpc"]}]
    assert taken_by(to_coordinator["to"][0]["podSelector"], given) == {"coordinator"}
    assert {port["port"] for port in to_names["ports"]} == {53}


def test_what_is_mounted_is_a_volume_and_what_is_a_volume_is_mounted(given: list[Object]) -> None:
    for maker, template in pods(given):
        spec = template["spec"]
        claims = maker["spec"].get("volumeClaimTemplates", ())
        volumes = [each["name"] for each in spec["volumes"]]
        volumes += [each["metadata"]["name"] for each in claims]
        (container,) = spec["containers"]
        assert sorted(each["name"] for each in container["volumeMounts"]) == sorted(volumes)
        # A file of a subPath is never renewed.
        assert not [each for each in container["volumeMounts"] if "subPath" in each]
        for volume in spec["volumes"]:
            if "configMap" in volume:
                only(given, "ConfigMap", volume["configMap"]["name"])


def test_secrets_are_those_that_the_page_makes_or_cert_manager_does(given: list[Object]) -> None:
    mounted = {
        volume["secret"]["secretName"]
        for _, template in pods(given)
        for volume in template["spec"]["volumes"]
        if "secret" in volume
    }
    assert mounted in (set(), {"lipt-coordinator-tls", "lipt-worker-tls"})
    certificates = list(of_kind(given, "Certificate"))
    made = {each["spec"]["secretName"] for each in certificates}
    issuers = {each["metadata"]["name"] for each in of_kind(given, "Issuer")}
    assert made in (set(), mounted | {"lipt-ca"})
    assert {each["spec"]["issuerRef"]["name"] for each in certificates} <= issuers
