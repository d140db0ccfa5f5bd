"""kyverno, the policy engine, as a peer of `./bench --kyverno`: MutatingPolicies with the same renames.

A policy sets a rotation hash, too, which it cannot compute: a constant. It writes no record for undoing the rewrite.
"""

import json
import os
import subprocess

HASH = "0" * 63 + "5"
# API group and expression (CEL) for a resource.
POLICIES = {
    "gateways": ("networking.istio.io", """
        lists.range(object.spec.servers.size()).filter(i, object.spec.servers[i].tls.credentialName == "root").map(i,
          JSONPatch{op: "replace", path: "/spec/servers/" + string(i) + "/tls/credentialName", value: "gateway"})"""),
    "deployments": ("apps", f"""
        lists.range(object.spec.template.spec.volumes.size()).filter(i, object.spec.template.spec.volumes[i].secret.secretName == "root").map(i,
          JSONPatch{{op: "replace", path: "/spec/template/spec/volumes/" + string(i) + "/secret/secretName", value: "gateway"}})
        + [JSONPatch{{op: "add", path: "/spec/template/metadata/annotations", value: {{"trustspan.dev/rotation-hash": "{HASH}"}}}}]"""),
}


class Kyverno:
    """kyverno's admission controller outside of a cluster, with its policies in one namespace, for as long as the block lasts."""

    def __init__(self, home, api, namespace, ports, folder):
        api.apply(home / "crds")
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kyverno"}})
        for name in ("kyverno", "kyverno-metrics"):
            api.create("/api/v1/namespaces/kyverno/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
        kubeconfig = folder / "kyverno.kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": f"https://127.0.0.1:{api.port}", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "bench", "user": {"token": "token"}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }))
        environment = os.environ | {"INIT_CONFIG": "kyverno", "METRICS_CONFIG": "kyverno-metrics"}
        environment |= {f"KYVERNO_{name}": "kyverno" for name in ("NAMESPACE", "SERVICEACCOUNT_NAME", "DEPLOYMENT", "POD_NAME")}
        command = [
            home / "kyverno", f"--kubeconfig={kubeconfig}", f"--serverIP=127.0.0.1:{ports[0]}", f"--webhookServerPort={ports[0]}", "--caSecretName=ca",
            "--tlsSecretName=pair", "--tlsKeyAlgorithm=ECDSA", f"--metricsPort={ports[1]}", "--controllerRuntimeMetricsAddress=0", "--admissionReports=false",
            "--backgroundServiceAccountName=background", "--reportsServiceAccountName=reports",
        ]
        self.log = folder / "kyverno.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        for resource, (group, expression) in POLICIES.items():
            api.create("/apis/policies.kyverno.io/v1/mutatingpolicies", {
                "apiVersion": "policies.kyverno.io/v1", "kind": "MutatingPolicy", "metadata": {"name": resource},
                "spec": {
                    "matchConstraints": {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                        "resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
                    },
                    "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
                },
            })

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.process.terminate()
        self.process.wait()
        if failed:
            print(self.log.read_text()[-3000:])
