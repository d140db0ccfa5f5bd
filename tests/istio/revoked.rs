//! `ca.crl` of the source Secret: a revoked client stays refused after its Gateway is rewritten to the managed Secret.

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use trustspan::trust::bundle;
use x509_parser::pem::parse_x509_pem;

use crate::{
    acts::credential_name,
    issuer::{Data, MANAGED, ROOT, SERVER},
    journal::Side,
    objects,
    run::{FOLLOWED, renew_clients},
    scenarios::SHOP,
    testbed::{Authority, Cluster, SOON, wait_for},
    world::{FEW, Layout, World},
};

/// The revoked client. It does not connect by itself.
const REVOKED: &str = "revoked";
/// How often it tries each gateway after the change.
const TRIES: usize = 10;

/// A CA that may sign revocation lists, and one more client.
pub(crate) fn one_more(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let manifests = FEW.manifests(hosts);
    let signs = manifests.replacen("isCA: true", "isCA: true\n  usages: [cert sign, crl sign, digital signature]", 1);
    ensure!(signs != manifests, "expected a CA in {manifests}");
    cluster.apply(ns, &signs)?;
    let layout = Layout::with_clients_of(FEW, ns, objects::gateway_secret(ns));
    cluster.apply(ns, &objects::client(REVOKED, "ca").to_string())?;
    Ok(layout)
}

/// The source Secret gets a revocation list, and a Gateway names it that the webhook has missed.
pub(crate) fn revoke(world: &mut World<'_>) -> Result<()> {
    world.wait_certificate(REVOKED)?;
    let leaf = world.operator.read(REVOKED)?;
    let (_, leaf) = parse_x509_pem(&leaf.get("tls.crt").context("tls.crt")?.0)?;
    let ca = world.operator.read(ROOT)?;
    let text = |key: &str| Ok::<_, anyhow::Error>(String::from_utf8(ca.get(key).context("a CA")?.0.clone())?);
    let (certificate, key) = (text("tls.crt")?, text("tls.key")?);
    let parsed = bundle::read(certificate.as_bytes()).into_certificates();
    let key_id = parsed.first().and_then(|ca| ca.subject_key_id.clone()).context("a key identifier")?;
    let list = Authority::revoke(&certificate, &key_id, &key, leaf.parse_x509()?.raw_serial())?;
    world.operator.write(&[(SERVER, Data::from([("ca.crl".to_owned(), ByteString(list.into_bytes()))]))])?;
    world.admission_off()?;
    credential_name(world)?;
    wait_for(
        "gateways to refuse the revoked client",
        SOON,
        || Ok(refusals(world)? == world.ingress.addresses().len()),
    )?;
    world.admission_on()
}

/// The webhook rewrites the Gateway.
pub(crate) fn stays_refused(world: &mut World<'_>) -> Result<()> {
    world.step("Gateway rewritten")?;
    wait_for("the Gateway to name the managed Secret", SOON, || {
        let gateway = world.cluster.get("gateways.networking.istio.io", &world.ns, "shop")?;
        Ok(gateway["spec"]["servers"][0]["tls"]["credentialName"] == MANAGED)
    })?;
    wait_for("gateways to use it", SOON, || {
        let (pair, ca) = (format!("kubernetes://{MANAGED}"), format!("kubernetes://{MANAGED}-cacert"));
        let active = world.ingress.secrets().map(|(_, secrets)| secrets.active(&pair, &ca));
        active.map(|active| Ok(!active?.ca.is_empty())).try_fold(true, |all, one: Result<bool>| Ok(all && one?))
    })?;
    world.wait_handshakes(FOLLOWED)?;
    let refused = (0..TRIES).map(|_| refusals(world)).sum::<Result<usize>>()?;
    let tries = TRIES * world.ingress.addresses().len();
    ensure!(refused == tries, "expected the revoked client to be refused, saw {refused} of {tries} refused");
    renew_clients(world)
}

/// How many gateways refuse the revoked client.
fn refusals(world: &World<'_>) -> Result<usize> {
    Ok(world.visit_once(REVOKED, SHOP)?.iter().filter(|error| Side::of(error) == Side::Gateway).count())
}
