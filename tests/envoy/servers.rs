//! Trial `server_chains`: Envoy as a client with the bundle of a case, and servers that present the chains of its probes.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use trustspan::trust::{
    bundle,
    chain::{Purpose, Refused},
};

use crate::{
    case::{CAUTIOUS, Probe},
    expect, generated,
    generated::Side,
    pki::{Identity, Keys, Kind, Spec, Usage},
    proxy::Content,
    run::Table,
    testbed::Seed,
    upstream::{BATCH, Client, Upstream},
};

/// The name that a client requests.
const HOST: &str = "client.example";
/// Named servers that Envoy accepts, and rustls and browsers do not: wildcards as a part of a label, or directly below
/// the top-level domain.
const WILD: &[&str] = &["server-wildcard-part", "server-wildcard-top"];

/// The number of servers with a generated name to which clients connect by another name. Envoy may accept names that
/// trustspan refuses.
const NAMES: usize = 300;
const DRAWN: &str = "name-";

/// A client with its bundle, and the server that it connects to.
struct Call {
    name: String,
    description: String,
    ca: Vec<u8>,
    crl: Option<Vec<u8>>,
    hosts: Vec<String>,
    server: Probe,
}

impl Call {
    fn upstream(&self) -> Upstream<'_> {
        let Self { ca, crl, hosts, server, .. } = self;
        Upstream { ca, crl: crl.as_deref(), hosts, identity: Arc::clone(&server.identity) }
    }

    fn may_be_stricter(&self) -> bool {
        WILD.contains(&self.name.as_str()) || self.name.starts_with(&format!("server-{DRAWN}"))
    }
}

/// Runs all calls, and fails with the disagreements.
pub(crate) fn run(count: usize, only: Option<&str>, table: &mut Table) -> Result<()> {
    let mut calls = named()?;
    for number in 0..count {
        calls.extend(generated(number)?);
    }
    calls.retain(|call| only.is_none_or(|only| call.name == only));
    let mut disagreements = Vec::new();
    for batch in calls.chunks(BATCH) {
        disagreements.extend(compare(batch, table)?);
    }
    ensure!(
        disagreements.is_empty(),
        "{} of {} servers disagree\n{}",
        disagreements.len(),
        calls.len(),
        disagreements.iter().take(12).map(String::as_str).collect::<String>(),
    );
    Ok(())
}

fn compare(calls: &[Call], table: &mut Table) -> Result<Vec<String>> {
    let upstreams: Vec<_> = calls.iter().map(Call::upstream).collect();
    let client = Client::start(&upstreams)?;
    let mut disagreements = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let seen = client.ask(number).with_context(|| call.name.clone())?;
        let bundle = bundle::read(&call.ca);
        let purpose = Purpose::Server { hosts: &call.hosts };
        let said = expect::judged(&bundle, call.crl.as_deref(), &call.server, purpose, Timestamp::now());
        let said = said.with_context(|| format!("{}: nothing is said", call.name))?;
        let id = said.as_ref().err().map(Refused::id);
        let cautious = id.filter(|id| CAUTIOUS.contains(id) || *id == "host" && call.may_be_stricter());
        table.add_server(said.is_ok(), seen.is_ok(), cautious.filter(|_| seen.is_ok()));
        let what = match (said, seen) {
            (Ok(()), Err(why)) => format!("we say it is accepted, Envoy refuses it: {why}"),
            (Err(refused), Ok(())) if cautious.is_none() => {
                format!("we say {}: {refused}. Envoy takes it", refused.id())
            }
            _ => continue,
        };
        let Call { name, description, hosts, server, .. } = call;
        disagreements.push(format!("{name}: {description}\n  server {} for {hosts:?}: {what}\n", server.label));
    }
    Ok(disagreements)
}

fn generated(number: usize) -> Result<Vec<Call>> {
    let case = generated::case_of(&format!("server-{number}"), Side::Servers)?;
    let Content::Trust { ca, crl } = case.content else { bail!("{}: no bundle", case.name) };
    let seed = &mut Seed::of_run(&format!("hosts of {}", case.name));
    let mut call = |server| Call {
        name: case.name.clone(),
        description: case.description.clone(),
        ca: ca.clone(),
        crl: crl.clone(),
        hosts: if seed.below(4) == 0 { vec![HOST.to_owned()] } else { Vec::new() },
        server,
    };
    Ok(case.probes.into_iter().map(&mut call).collect())
}

/// Servers with named cases of certificates, each issued by a valid CA.
fn named() -> Result<Vec<Call>> {
    let mut keys = Keys::shuffled(&mut Seed::of_run("servers"));
    let root = Identity::root(Spec::ca("root"), keys.of(Kind::P256)?)?;
    let mut calls = Vec::new();
    let mut call = |name: &str, kind: Kind, host: &str, change: &dyn Fn(&mut Spec)| -> Result<()> {
        let mut spec = Spec { eku: Vec::new(), san: Some(HOST.to_owned()), ..Spec::leaf(HOST) };
        change(&mut spec);
        let identity = root.issue(spec, keys.of(kind)?)?.shown_with(&[])?;
        calls.push(Call {
            name: format!("server-{name}"),
            description: "one CA".to_owned(),
            ca: root.pem().into_bytes(),
            crl: None,
            hosts: vec![host.to_owned()],
            server: Probe { label: format!("{name} ({kind:?})"), identity, shows: None, plain_of: None },
        });
        Ok(())
    };
    for (kind, name) in [(Kind::P256, "ecdsa"), (Kind::Rsa2048, "rsa")] {
        call(name, kind, HOST, &|_| {})?;
        call(&format!("{name}-signs"), kind, HOST, &|spec| spec.usage = Usage::OnlySignature)?;
        call(&format!("{name}-encipherment"), kind, HOST, &|spec| spec.usage = Usage::Encipherment)?;
        call(&format!("{name}-signs-certificates"), kind, HOST, &|spec| spec.usage = Usage::CertSign)?;
    }
    let hosts = [
        ("exact", Some("shop.example.com"), "shop.example.com"),
        ("capitals", Some("SHOP.example.com"), "shop.example.com"),
        ("wildcard", Some("*.example.com"), "shop.example.com"),
        ("wildcard-deep", Some("*.example.com"), "a.shop.example.com"),
        ("wildcard-bare", Some("*.example.com"), "example.com"),
        ("wildcard-part", Some("s*.example.com"), "shop.example.com"),
        ("wildcard-inner", Some("shop.*.com"), "shop.example.com"),
        ("wildcard-top", Some("*.com"), "example.com"),
        ("wildcards", Some("*.a.*.example"), "b.a.*.example"),
        ("other", Some("pay.example.com"), "shop.example.com"),
        ("common-name-only", None, HOST),
        ("mailbox", Some("shop@example.com"), "shop.example.com"),
        ("address", Some("10.0.0.1"), "10.0.0.1"),
        ("other-address", Some("10.0.0.2"), "10.0.0.1"),
    ];
    for (name, san, host) in hosts {
        call(name, Kind::P256, host, &|spec| spec.san = san.map(str::to_owned))?;
    }
    let seed = &mut Seed::of_run("names");
    for number in 0..NAMES {
        let (san, host) = drawn(seed);
        call(&format!("{DRAWN}{number}"), Kind::P256, &host, &|spec| spec.san = Some(san.clone()))?;
    }
    Ok(calls)
}

/// A random name for a certificate, and a host that it may cover.
fn drawn(seed: &mut Seed) -> (String, String) {
    let labels = (0..1 + seed.below(3)).map(|_| {
        let pairs = [
            ("a", "a"),
            ("A-b", "a-B"),
            ("a_b", "a_b"),
            ("xn--a", "XN--a"),
            ("a", "b"),
            ("*", "a"),
            ("*", "a.b"),
            ("*", "*"),
            ("*", "xn--a"),
            ("a*", "aa"),
            ("*a", "aa"),
            ("a*a", "aa"),
            ("**", "aa"),
        ];
        pairs[seed.below(pairs.len() as u64) as usize]
    });
    let labels: Vec<_> = labels.collect();
    let (names, hosts): (Vec<_>, Vec<_>) = labels.into_iter().unzip();
    (format!("{}.example", names.join(".")), format!("{}.example", hosts.join(".")))
}
