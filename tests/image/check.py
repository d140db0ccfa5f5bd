#!/usr/bin/env python3
"""Runs the images that ./image built from their own file systems: as their user, on a read-only root, without a container runtime.

As root, for the mount namespace. Standard library only.
"""

import base64
import contextlib
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = ROOT / "target/image"
# How long a process may take to listen or to end, in seconds.
PATIENCE = 30


def expect(condition, text):
    if not condition:
        sys.exit(text)


def unpacked(archive, folder):
    """Unpacks an image, and checks each digest. Its configuration."""
    with tarfile.open(archive) as files:
        layout = {entry.name: files.extractfile(entry).read() for entry in files if entry.isfile()}

    def blob(entry):
        content = layout["blobs/" + entry["digest"].replace(":", "/")]
        expect(len(content) == entry["size"], f"{entry}: another size")
        expect("sha256:" + hashlib.sha256(content).hexdigest() == entry["digest"], f"{entry}: another digest")
        return content

    manifest = json.loads(blob(json.loads(layout["index.json"])["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
    expect(["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers] == config["rootfs"]["diff_ids"], "another layer")
    for layer in layers:
        tarfile.open(fileobj=io.BytesIO(layer)).extractall(folder, filter="tar")
    return config


class Container:
    """The root of an image, with what a kubelet would mount."""

    def __init__(self, archive, folder, mounts):
        self.root = folder / "root"
        self.root.mkdir()
        self.config = unpacked(archive, self.root)
        self.mounts = mounts
        for path in mounts:
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if mounts[path].is_dir() else target.touch()

    def command(self, arguments):
        """Runs the entry point in a separate mount namespace."""
        binds = "".join(f'mount --bind "{source}" "$0{path}"\n' for path, source in self.mounts.items())
        script = f'set -e\nmount --bind "$0" "$0"\n{binds}mount -o remount,ro,bind "$0"\nexec chroot --userspec="$USERSPEC" "$0" "$@"'
        entry = self.config["config"]["Entrypoint"]
        return ["unshare", "--mount", "sh", "-c", script, str(self.root), *entry, *arguments]

    def environment(self):
        return {"USERSPEC": self.config["config"]["User"], "PATH": os.environ["PATH"]}

    def run(self, *arguments):
        return subprocess.run(self.command(arguments), env=self.environment(), capture_output=True, text=True, timeout=PATIENCE)

    @contextlib.contextmanager
    def start(self, *arguments):
        """Starts a process, whose standard error is read line by line."""
        process = subprocess.Popen(self.command(arguments), env=self.environment(), stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE)


def serves(container, certs):
    """A review is answered with a patch, by the image's user on a read-only root."""
    arguments = ["serve", "-f", "/manifests", "--cert-dir", "/certs", "--port", "0", "--metrics-port", "0"]
    with container.start(*arguments) as process:
        ports = {}
        for line in process.stderr:
            if found := re.search(r"listening on (https?)://127\.0\.0\.1:(\d+)", line):
                ports[found[1]] = int(found[2])
            if len(ports) == 2:
                break
        expect(len(ports) == 2, "the webhook ended before it listened")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        user = container.config["config"]["User"].split(":")[0]
        expect(re.search(rf"^Uid:\s+{user}\s+{user}\s", status, re.M), f"expected the user {user}: {status}")
        expect(os.statvfs(f"/proc/{process.pid}/root").f_flag & os.ST_RDONLY, "the root is not read-only")
        context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
        connection = http.client.HTTPSConnection("localhost", ports["https"], context=context, timeout=PATIENCE)
        review = (ROOT / "manifests/reviews/gateway.json").read_bytes()
        connection.request("POST", "/mutate", review, {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())["response"]
        expect(answer["allowed"] and "public-gateway" in base64.b64decode(answer["patch"]).decode(), f"expected a patch: {answer}")
        plain = http.client.HTTPConnection("127.0.0.1", ports["http"], timeout=PATIENCE)
        plain.request("GET", "/metrics")
        metrics = plain.getresponse().read().decode()
        version = container.run("--version").stdout.split()[-1]
        expect(re.fullmatch(r"[\d.]+\+[0-9a-f]{40}(-modified)?", version), f"expected a version with a commit: {version}")
        expect(f'trustspan_build_info{{version="{version}"}} 1' in metrics, "no trustspan_build_info")
        return version


class Names(threading.Thread):
    """A DNS server that knows one name: api.example is 127.0.0.1. A stand-in for the cluster's."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.53", 53))

    def run(self):
        while True:
            query, client = self.socket.recvfrom(512)
            question = query[12:query.index(b"\0", 12) + 5]
            is_known = question == b"\3api\7example\0\0\1\0\1"
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if is_known else b""
            count = b"\0\1" if is_known else b"\0\0"
            self.socket.sendto(query[:2] + b"\x81\x80\0\1" + count + b"\0\0\0\0" + question + answer, client)


def resolves(container, kubeconfig, ca):
    """A static binary resolves names by the resolv.conf that a pod has."""
    # The image has no CA roots: as in a pod, the kubeconfig has the CA of the API server.
    authority = base64.b64encode(ca.read_bytes()).decode()
    Names().start()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for host, expected in [("api.example", "refused"), ("unknown.example", "lookup")]:
            kubeconfig.write_text(json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"https://{host}:{port}", "certificate-authority-data": authority}}],
                "users": [{"name": "c", "user": {"token": "none"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            }))
            said = container.run("status", "--kubeconfig", "/kubeconfig").stderr
            expect(expected in said, f"{host}: expected {expected!r}, saw {said!r}")


def sbom(path):
    """Every component is a package of Cargo.lock."""
    document = json.loads(path.read_text())
    locked = set(re.findall(r'^name = "(.+)"\nversion = "(.+)"$', (ROOT / "Cargo.lock").read_text(), re.M))
    unknown = {(part["name"], part["version"]) for part in document["components"]} - locked
    expect(not unknown and len(document["components"]) > 100, f"not in Cargo.lock: {unknown}")
    without = [part["purl"] for part in document["components"] if "licenses" not in part]
    expect(not without, f"without a licence: {without}")
    return len(document["components"])


def main():
    expect(os.geteuid() == 0, "expected to run as root, for a mount namespace")
    expect(shutil.which("unshare"), "expected unshare (Debian package util-linux)")
    archives = sorted(BUILT.glob("*.oci.tar"))
    expect(len(archives) == 2, f"expected two images in {BUILT}: build them with ./image")
    for archive in archives:
        name = archive.name.rsplit("-", 2)[0]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            folder.chmod(0o755)
            manifests, certs, kubeconfig, resolv = folder / "manifests", folder / "certs", folder / "kubeconfig", folder / "resolv.conf"
            manifests.mkdir(), certs.mkdir(mode=0o777), kubeconfig.touch()
            certs.chmod(0o777)
            shutil.copy(ROOT / "manifests/example/gatewaysecret.yaml", manifests)
            resolv.write_text("nameserver 127.0.0.53\n")
            mounts = {"/manifests": manifests, "/certs": certs, "/kubeconfig": kubeconfig, "/etc/resolv.conf": resolv}
            container = Container(archive, folder, mounts)
            licences = sorted(path.name for path in (container.root / "licenses").iterdir())
            expect(licences == ["LICENSE", "NOTICE", "THIRD-PARTY"], f"expected licences, saw {licences}")
            files = [path for path in container.root.rglob("*") if path.is_file() and os.access(path, os.X_OK) and path.stat().st_mode & 0o111]
            expect([path.name for path in files] == [name], f"expected one binary, saw {files}")
            components = sbom(archive.with_name(archive.name.replace(".oci.tar", ".cdx.json")))
            if name == "trustspan":
                version = serves(container, certs)
                resolves(container, kubeconfig, certs / "ca.crt")
                print(f"{name} {version}: serves a review as {container.config['config']['User']} on a read-only root, {components} components")
            else:
                said = container.run("--help")
                expect(said.returncode == 0 and "mirror" in said.stdout, f"expected the help: {said}")
                print(f"{name}: prints its help, {components} components")


if __name__ == "__main__":
    main()
