//! What docs/install.md, docs/getting-started.md and docs/leaving.md say, in their order and with their commands, from `helm install` to a rotated CA and
//! back, while a client makes handshakes.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    Bed, REGISTRY,
    mesh::{CLIENT, Mesh, NAMESPACE},
    shell::Shell,
    traffic::Traffic,
};

/// The GatewaySecret of docs/getting-started.md.
const NAME: &str = "public-gateway";
/// Handshakes to wait for after each change: the client connects to each gateway every fifth of a second.
const FOLLOWED: u32 = 30;
/// Of a condition that depends on Gateways: the agent reads everything again every 30 s (`--poll`).
const RESYNCED: Duration = Duration::from_secs(90);

/// The code blocks of a section of a page in docs: language and text, without the indentation of a list.
fn blocks(page: &str, heading: &str) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page))?;
    // Number signs of a heading, and 0 of another line.
    let level = |line: &str| {
        line.split(' ').next().filter(|signs| signs.bytes().all(|sign| sign == b'#')).unwrap_or_default().len()
    };
    let mut lines = text.lines().skip_while(|line| *line != heading);
    lines.next().with_context(|| format!("docs/{page} has no heading {heading:?}"))?;
    let mut blocks = Vec::new();
    // A line of a comment in a block begins like a heading, too.
    while let Some(line) = lines.next() {
        if (1..=level(heading)).contains(&level(line)) {
            break;
        }
        let Some((indentation, language)) = line.split_once("```") else { continue };
        let block = lines.by_ref().take_while(|line| line.trim() != "```");
        let block: Vec<_> = block.map(|line| line.strip_prefix(indentation).unwrap_or(line)).collect();
        blocks.push((language.to_owned(), block.join("\n") + "\n"));
    }
    Ok(blocks)
}

/// The only block of a section that contains these words.
pub(crate) fn block(page: &str, heading: &str, words: &str) -> Result<String> {
    let mut found = blocks(page, heading)?.into_iter().map(|(_, text)| text).filter(|text| text.contains(words));
    let block = found.next().with_context(|| format!("docs/{page}, {heading}: no block with {words:?}"))?;
    ensure!(found.next().is_none(), "docs/{page}, {heading}: several blocks with {words:?}");
    Ok(block)
}

/// Installs the chart as docs/install.md does, and then the policies as docs/guard.md does.
fn install(shell: &Shell) -> Result<()> {
    let values = block("install.md", "## Helm", "repository:")?;
    ensure!(values.contains("REGISTRY"), "{values}");
    shell.write("values.yaml", &values.replace("REGISTRY", REGISTRY))?;
    let tested = shell.run(&block("install.md", "## Helm", "helm install")?)?;
    ensure!(tested.contains("Succeeded"), "{tested}");
    shell.run(&block("guard.md", "## While the webhook is down", "kubectl apply -k")?).map(drop)
}

/// From the guard to a rotated CA, as docs/getting-started.md does.
fn rotate(bed: &Bed, shell: &Shell, traffic: &Traffic) -> Result<()> {
    for (language, text) in blocks("getting-started.md", "## In a cluster")? {
        match language.as_str() {
            // The image is built, and Helm has installed it.
            "sh" if text.starts_with("./image") || text == "kubectl apply -k manifests/base\n" => {}
            "sh" if text.starts_with("trustspan init") => {
                shell.run(&text)?;
                let generated = fs::read_to_string(shell.folder.join("gatewaysecrets.yaml"))?;
                ensure!(generated.contains("kind: GatewaySecret\n"), "{generated}");
            }
            "yaml" if text.contains("kind: GatewaySecret\n") => shell.write("gatewaysecrets.yaml", &text)?,
            "yaml" if text.contains("kind: Certificate\n") => declare_client(bed, &text)?,
            "sh" if text.starts_with("trustspan status") => {
                let ready = format!("--for=condition=RotationReady gatewaysecret/{NAME} -n {NAMESPACE}");
                shell.run(&format!("kubectl wait {ready} --timeout={}s", RESYNCED.as_secs()))?;
                shell.run(&text)?;
            }
            "sh" if text.starts_with("trustspan rotate") => {
                let before = bundle(bed)?;
                traffic.step("rotation");
                shell.run(&text)?;
                let after = bundle(bed)?;
                ensure!(after.len() == 1 && after != before, "the CAs were {before:?}, and are {after:?}");
                traffic.wait_handshakes(FOLLOWED)?;
            }
            "sh" => {
                traffic.step(text.lines().next().unwrap_or_default());
                shell.run(&text)?;
                traffic.wait_handshakes(FOLLOWED)?;
            }
            _ => bail!("docs/getting-started.md has a block that this test does not know:\n{text}"),
        }
    }
    Ok(())
}

/// Gives the Certificate of the client the label in the page, and says that there is no other client. The page's annotation is for clients that
/// read their Secret only at start.
fn declare_client(bed: &Bed, text: &str) -> Result<()> {
    let mut patch: Value = serde_saphyr::from_str(text)?;
    let template = patch["spec"]["secretTemplate"].as_object_mut().context("no secretTemplate")?;
    ensure!(template.remove("annotations").is_some(), "{text}");
    // The default delays take half an hour. These are longer than istiod and the client need.
    let delays = json!({ "propagationDelays": { "gateways": "5s", "clients": "5s", "admission": "2s" } });
    let policy = json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "RotationPolicy", "metadata": { "name": "default" }, "spec": delays,
    });
    bed.cluster.apply(NAMESPACE, &policy.to_string())?;
    let patched = |kind: &str, name: &str, patch: &Value| {
        bed.cluster.kubectl(["patch", kind, name, "--type=merge", "--patch", &patch.to_string()]).ns(NAMESPACE).ok()
    };
    patched("certificate", CLIENT, &patch)?;
    patched("gatewaysecret", NAME, &json!({ "spec": { "clients": { "allDeclared": true } } }))?;
    Ok(())
}

/// The name that the Gateway gives of its Secret.
fn credential_name(bed: &Bed) -> Result<Value> {
    let gateway = bed.cluster.get("gateways.networking.istio.io", NAMESPACE, "shop")?;
    Ok(gateway["spec"]["servers"][0]["tls"]["credentialName"].clone())
}

/// Fingerprints of the CAs in the managed Secret.
fn bundle(bed: &Bed) -> Result<Vec<Value>> {
    let stored = bed.cluster.get("gatewaysecret", NAMESPACE, NAME)?;
    let bundle = stored["status"]["bundle"].as_array().context("no status.bundle")?;
    Ok(bundle.iter().map(|ca| ca["fingerprint"].clone()).collect())
}

/// Undoes everything, as docs/leaving.md does.
fn leave(bed: &Bed, shell: &Shell, traffic: &Traffic) -> Result<()> {
    traffic.step("leaving");
    // It exits with an error code as long as something depends on trustspan.
    let Err(depends) = shell.run(&block("leaving.md", "## What depends on trustspan", "trustspan uninstall")?) else {
        bail!("a Gateway names the managed Secret");
    };
    ensure!(format!("{depends:#}").contains("gateways.networking.istio.io shop"), "{depends:#}");
    shell.run(&block("leaving.md", "## Where Gateways were rewritten", "rewrite --undo")?)?;
    ensure!(credential_name(bed)? == "gateway-server", "the Gateway still names the managed Secret");
    // Without a webhook configuration, the API server itself rejects it.
    let delete = bed.cluster.kubectl(["delete", "secret", NAME, "--dry-run=server"]).ns(NAMESPACE).fails()?;
    ensure!(delete.contains("kept-by-agent: "), "{delete}");
    shell.run("kubectl delete -k manifests/policies")?;
    traffic.wait_handshakes(FOLLOWED)?;
    shell.run(&block("install.md", "### Uninstall", "helm uninstall")?)?;
    shell.run("kubectl delete -f manifests/base/crd.yaml")?;
    shell.run("kubectl label namespace istio-system trustspan.dev/guard-")?;
    traffic.wait_handshakes(FOLLOWED)
}

pub(crate) fn rotation(bed: &Bed) -> Result<()> {
    let runtime = bed.runtime.handle();
    let mesh = Mesh::start(&bed.cluster, runtime)?;
    let shell = Shell::new(bed)?;
    let traffic = Traffic::start(&bed.cluster, &mesh, runtime)?;
    let done = (|| {
        install(&shell)?;
        rotate(bed, &shell, &traffic)?;
        ensure!(credential_name(bed)? == NAME, "the Gateway does not name the managed Secret");
        leave(bed, &shell, &traffic)
    })();
    let handshakes = traffic.finish(runtime)?;
    done?;
    println!("{handshakes} handshakes, none failed");
    Ok(())
}
