//! Requests that are not approved.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::json;
use trustspan::identity::{GROUP, IdentityName, SIGNER};

use crate::{
    Bed,
    request_loop::{block_on, client},
    scene::{Scene, start_approver, start_approver_at},
    testbed::{SOON, free_port, http_get, wait_for, wait_for_value},
};

/// A request as a client could send it.
struct Request {
    name: &'static str,
    /// The reason of the denial; `None`: it is left alone.
    denied: Option<&'static str>,
    user: String,
    groups: &'static [&'static str],
    names: Vec<SanType>,
    usages: &'static [&'static str],
    signer: &'static str,
    expiration_seconds: Option<i32>,
}

const USAGES: &[&str] = &["digital signature", "client auth"];

fn object(request: &Request) -> Result<CertificateSigningRequest> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for group in request.groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, &*request.user);
    params.subject_alt_names = request.names.clone();
    let pem = params.serialize_request(&KeyPair::generate()?)?.pem()?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(request.name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: request.signer.to_owned(),
            usages: Some(request.usages.iter().map(|&usage| usage.to_owned()).collect()),
            expiration_seconds: request.expiration_seconds,
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// Requests of a client with huge subjects, and one whose decision an admission policy refuses: others are approved meanwhile.
pub(crate) fn hostile(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "hostile")?;
    let port = free_port()?;
    let approver = start_approver_at(&bed.main, port, &[])?;
    scene.apply(&scene.object(&json!({}))?)?;
    scene.wait_valid("False", "NoCertificate")?;
    let bootstrap = scene.bootstrap_kubeconfig()?;
    let request = |name, user: String| Request {
        name,
        denied: None,
        user,
        groups: &[GROUP],
        names: Vec::new(),
        usages: USAGES,
        signer: SIGNER,
        expiration_seconds: Some(3600),
    };
    let create = |request: &Request| {
        let object = object(request)?;
        block_on(async {
            let api: Api<CertificateSigningRequest> = Api::all(client(&bootstrap).await?);
            Ok(api.create(&PostParams::default(), &object).await.map(drop)?)
        })
    };
    let own = scene.identity.user();
    // Names decide about the order of the list.
    create(&request("a-subject-of-300000", format!("{own}{}", "\u{1}".repeat(300_000))))?;
    create(&request("b-subject-of-16000", format!("{own}{}", "\u{1}".repeat(16_000))))?;
    let denied = decision(bed, "b-subject-of-16000", SOON)?;
    let message = denied["message"].as_str().context("no message")?;
    ensure!(denied["reason"] == "UnexpectedSubject" && message.len() <= 1024, "{} bytes: {denied}", message.len());
    ensure!(!message.contains(char::is_control), "control characters: {message}");

    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "undecidable" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["certificates.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["certificatesigningrequests/approval"],
            }] },
            "validations": [{ "expression": "object.metadata.name != 'c-undecidable'", "message": "\n".repeat(3) + "undecidable" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "undecidable" },
        "spec": { "policyName": "undecidable", "validationActions": ["Deny"] },
    });
    bed.main.apply("default", &policy.to_string())?;
    bed.main.apply("default", &binding.to_string())?;
    create(&Request { groups: &[], ..request("c-undecidable", own.clone()) })?;
    let health = || Ok::<_, anyhow::Error>(http_get(port, "/healthz?verbose")?.1);
    // Until the policy is in effect, the request is denied: another one takes its place.
    wait_for("the decision to be refused", SOON, || {
        if bed.main.get("certificatesigningrequests", "default", "c-undecidable")?["status"]["conditions"].is_array() {
            bed.main.kubectl(["delete", "csr", "c-undecidable"]).ok()?;
            create(&Request { groups: &[], ..request("c-undecidable", own.clone()) })?;
        }
        Ok(health()?.contains("[-]certificate-signing-requests"))
    })?;
    create(&request("d-exact", own))?;
    ensure!(decision(bed, "d-exact", SOON)?["type"] == "Approved", "the exact request is approved");
    let left = bed.main.get("certificatesigningrequests", "default", "a-subject-of-300000")?;
    ensure!(left["status"]["conditions"].is_null(), "saw {}", left["status"]);
    ensure!(
        approver.log().lines().all(|line| !line.starts_with("undecidable")),
        "a message has forged a line of the log"
    );
    bed.main.kubectl(["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "undecidable"]).ok()?;
    ensure!(decision(bed, "c-undecidable", SOON)?["reason"] == "UnexpectedSubject");
    wait_for("the check to succeed", SOON, || Ok(health()?.contains("[+]certificate-signing-requests")))?;
    Ok(())
}

/// With the bootstrap kubeconfig of one identity: another identity, further usages, names and groups, another signer, a second key.
pub(crate) fn refused(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "refused")?;
    let approver = start_approver(&bed.main, &[])?;
    let mut other = scene.object(&json!({}))?;
    other["metadata"]["name"] = "checkout".into();
    scene.apply(&other)?;
    scene.apply(&scene.object(&json!({}))?)?;
    scene.wait_valid("False", "NoCertificate")?;
    let bootstrap = scene.bootstrap_kubeconfig()?;
    let own = scene.identity.user();
    let foreign = IdentityName::new(scene.namespace(), "checkout").user();
    let request = |name, denied| Request {
        name,
        denied,
        user: own.clone(),
        groups: &[GROUP],
        names: Vec::new(),
        usages: USAGES,
        signer: SIGNER,
        expiration_seconds: Some(3600),
    };
    let dns = vec![SanType::DnsName("kubernetes.default.svc".try_into()?)];
    let requests = [
        Request { user: foreign, ..request("foreign-identity", Some("NotAuthorized")) },
        Request {
            user: IdentityName::new("no", "body").user(),
            ..request("unknown-identity", Some("UnknownIdentity"))
        },
        Request {
            usages: &["digital signature", "client auth", "server auth"],
            ..request("server-auth", Some("UnexpectedUsages"))
        },
        Request {
            usages: &["digital signature", "key encipherment", "client auth"],
            ..request("key-encipherment", Some("UnexpectedUsages"))
        },
        Request { names: dns, ..request("dns-name", Some("UnexpectedExtensions")) },
        Request {
            names: vec![SanType::IpAddress([10, 0, 0, 1].into())],
            ..request("ip-address", Some("UnexpectedExtensions"))
        },
        Request { groups: &["developers"], ..request("other-group", Some("UnexpectedSubject")) },
        Request { groups: &[], ..request("no-group", Some("UnexpectedSubject")) },
        Request { expiration_seconds: Some(7200), ..request("long-life", Some("UnexpectedExpiration")) },
        Request { expiration_seconds: None, ..request("default-life", Some("UnexpectedExpiration")) },
        Request { signer: "kubernetes.io/kube-apiserver-client-kubelet", ..request("other-signer", None) },
        Request { signer: "example.com/signer", ..request("custom-signer", None) },
        Request { user: "admin".to_owned(), groups: &["developers"], ..request("other-user", None) },
    ];
    let create = |request: &Request| {
        let object = object(request)?;
        block_on(async {
            let api: Api<CertificateSigningRequest> = Api::all(client(&bootstrap).await?);
            Ok(api.create(&PostParams::default(), &object).await.map(drop)?)
        })
    };
    for request in &requests {
        create(request).with_context(|| request.name)?;
    }
    for request in requests.iter().filter(|request| request.denied.is_some()) {
        let condition = decision(bed, request.name, SOON)?;
        println!("{}: {} {}: {}", request.name, condition["type"], condition["reason"], condition["message"]);
        ensure!(
            condition["type"] == "Denied" && condition["reason"] == *request.denied.unwrap_or_default(),
            "{}",
            request.name
        );
    }
    // The approver has seen all of them: it denied those that came later.
    for request in requests.iter().filter(|request| request.denied.is_none()) {
        let stored = bed.main.get("certificatesigningrequests", "default", request.name)?;
        ensure!(
            stored["status"]["conditions"].is_null(),
            "{}: expected no decision, saw {}",
            request.name,
            stored["status"]
        );
        println!("{}: left alone", request.name);
    }
    // One token, one key.
    create(&request("first-key", None))?;
    ensure!(decision(bed, "first-key", SOON)?["type"] == "Approved", "the exact request is approved");
    create(&request("second-key", None))?;
    let second = decision(bed, "second-key", SOON)?;
    println!("second-key: {} {}", second["type"], second["reason"]);
    ensure!(second["reason"] == "TokenUsed", "saw {second}");
    let issued = scene.requests()?.iter().filter(|request| request["status"]["certificate"].is_string()).count();
    ensure!(issued <= 1, "{issued} certificates");
    drop(approver);
    Ok(())
}

/// The decision about a request.
fn decision(bed: &Bed, name: &str, limit: Duration) -> Result<serde_json::Value> {
    wait_for_value(&format!("a decision about {name}"), limit, || {
        let request = bed.main.get("certificatesigningrequests", "default", name)?;
        Ok(Some(request["status"]["conditions"][0].clone()).filter(|condition| condition.is_object()))
    })
}
