//! `./test install --hold`: the cluster by hand.

use std::process;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    Bed, REGISTRY,
    mesh::{CLIENT, HOST, Mesh, NAMESPACE},
    shell::Shell,
};

/// Connects to each gateway with the Secret of the client, and prints the status of its response.
const CALL: &str = r#"set -eu
for key in ca.crt tls.crt tls.key; do
  kubectl get secret payments -n istio-system -o go-template="{{index .data \"$key\" | base64decode}}" >"$key"
done
for server in SERVERS; do
  curl -sS --connect-to "shop.example.com:443:$server" --cacert ca.crt --cert tls.crt --key tls.key -o /dev/null \
    -w "$server: %{http_code}\n" https://shop.example.com
done
"#;

/// Starts what a cluster has before trustspan, prints how to enter it, and waits for Ctrl-C or SIGTERM.
pub(crate) fn hold(bed: &Bed) -> Result<()> {
    let runtime = bed.runtime.handle();
    // From here on a signal ends the wait below, and everything with it.
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let mesh = Mesh::start(&bed.cluster, runtime)?;
    let shell = Shell::new(bed)?;
    shell.write("values.yaml", &format!("image:\n  repository: {REGISTRY}/trustspan\n"))?;
    let servers: Vec<_> = mesh.addresses().iter().map(ToString::to_string).collect();
    shell.write("call", &CALL.replace("SERVERS", &servers.join(" ")))?;
    let (run, folder) = (process::id(), shell.folder.display());
    let environment = shell.environment()?.join(" ");
    let enter =
        format!("exec nsenter --net=/proc/{run}/ns/net env -C {folder} -i TERM=$TERM {environment} bash \"$@\"\n");
    shell.write("enter", &enter)?;
    println!(
        "
A node, cert-manager, istiod and {count} gateways run; trustspan is not installed. Namespace {NAMESPACE} has a CA, Gateway shop for {HOST},
and Certificate {CLIENT} of a client. The node has the images {REGISTRY}/trustspan and {REGISTRY}/trustspan-node, version {version}.

Enter it, as often as you like, or run one command with -c COMMAND:

  bash {folder}/enter

The shell starts in a folder that has charts, manifests, docs, and values.yaml with the image. `bash call` there connects to each gateway as {CLIENT}.
There is no DNS and no kube-proxy, and nothing enforces NetworkPolicies.

Ctrl-C here, or `kill {run}`, ends everything.
",
        count = servers.len(),
        version = env!("CARGO_PKG_VERSION"),
    );
    runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    Ok(())
}
