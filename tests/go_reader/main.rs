//! Compares `TlsConsumer::Go` with the real Go: bundles whose text or DER was mutated, and pairs.
//!
//! `TRUSTSPAN_SEED` repeats a run.

// The texts and CAs are those of the comparison with Envoy.
#[path = "../envoy/mutate.rs"]
mod mutate;
#[path = "../envoy/pki.rs"]
#[allow(dead_code)] // a part of it is used here
mod pki;
#[path = "../bed/seed.rs"]
mod seed;
/// The path under which the shared modules expect the test bed.
mod testbed {
    pub(crate) use super::seed::Seed;
}

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use trustspan::trust::TlsConsumer;

use mutate::mutate;
use pki::{Basic, Dates, Identity, Keys, Kind, Spec};
use testbed::Seed;

const BUNDLES: usize = 3_000;
const PAIRS: usize = 500;

/// The output line of the Go program for each input line.
fn go(lines: &[String]) -> Result<Vec<String>> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go_reader/main.go");
    let mut go = Command::new("go")
        .args(["run", program])
        .env("GOTOOLCHAIN", "local")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting go")?;
    let mut stdin = go.stdin.take().context("stdin")?;
    let input = lines.join("\n") + "\n";
    let feeder = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = go.wait_with_output()?;
    feeder.join().map_err(|_| anyhow::anyhow!("the feeder panicked"))??;
    ensure!(output.status.success(), "go ended with {:?}", output.status);
    let results: Vec<_> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(results.len() == lines.len(), "{} lines, {} results", lines.len(), results.len());
    Ok(results)
}

struct Case {
    description: String,
    text: Vec<u8>,
}

fn bundles(seed: &mut Seed) -> Result<Vec<Case>> {
    let mut keys = Keys::shuffled(seed);
    let kinds = [Kind::P256, Kind::P384, Kind::Rsa2048, Kind::Ed25519, Kind::P521];
    let roots: Vec<_> = kinds
        .into_iter()
        .enumerate()
        .map(|(number, kind)| Ok(Identity::root(Spec::ca(format!("root {number}")), keys.of(kind)?)?.pem()))
        .collect::<Result<_>>()?;
    let case = |_| {
        let count = 1 + seed.below(3) as usize;
        let mut text: Vec<u8> =
            (0..count).flat_map(|_| roots[seed.below(roots.len() as u64) as usize].bytes()).collect();
        let mutations = seed.below(4);
        Case { description: mutate(&mut text, mutations, seed), text }
    };
    Ok((0..BUNDLES).map(case).collect())
}

/// Go must load everything that trustspan allows. It may load more only if BoringSSL rejects the certificate.
#[test]
fn bundles_are_read_as_go_reads_them() -> Result<()> {
    let cases = bundles(&mut Seed::of_run("go bundles"))?;
    let results = go(&cases.iter().map(|case| format!("bundle {}", STANDARD.encode(&case.text))).collect::<Vec<_>>())?;
    let (mut wrong, mut stricter, mut partial) = (0, 0, 0);
    for (case, result) in cases.iter().zip(&results) {
        let bundle = TlsConsumer::Go.bundle(&case.text);
        let ours: Vec<_> = bundle.entries.iter().map(|entry| entry.certificate.fingerprint.as_str()).collect();
        let theirs: Vec<_> = result.split_whitespace().collect();
        partial += usize::from(!theirs.is_empty() && (!bundle.malformed.is_empty() || !bundle.skipped.is_empty()));
        if ours == theirs {
            continue;
        }
        // A certificate that only Go loads is reported as left out.
        if ours.iter().all(|one| theirs.contains(one)) && !bundle.malformed.is_empty() {
            stricter += 1;
            println!("stricter: {}", case.description);
            continue;
        }
        wrong += 1;
        println!(
            "{}: Go takes {theirs:?}, expected {ours:?}\n{}",
            case.description,
            String::from_utf8_lossy(&case.text)
        );
    }
    println!("{} bundles: {partial} taken in part, {stricter} judged more strictly, {wrong} wrong", cases.len());
    assert_eq!(wrong, 0);
    assert!(partial > 100, "the mutations hide too little");
    Ok(())
}

#[test]
fn pairs_are_read_as_go_reads_them() -> Result<()> {
    let seed = &mut Seed::of_run("go pairs");
    let mut keys = Keys::shuffled(seed);
    let ca = Identity::root(Spec::ca("root"), keys.of(Kind::P256)?)?;
    let mut cases = Vec::new();
    for number in 0..PAIRS {
        let key = keys.any()?;
        let leaf = ca.issue(Spec::leaf(format!("leaf {}", number % 7)), key.clone())?;
        let (label, der) = key.traditional()?;
        let texts = [key.pem(), pki::block(label, &der), pki::block("PRIVATE KEY", &der), keys.any()?.pem()];
        let mut private_key = texts[seed.below(4) as usize].clone().into_bytes();
        let mut chain = (leaf.pem() + &ca.pem()).into_bytes();
        let mut description = format!("{:?}", key.kind);
        for text in [&mut private_key, &mut chain] {
            let count = seed.below(2);
            description = format!("{description}; {}", mutate(text, count, seed));
        }
        cases.push((description, chain, private_key));
    }
    let input = |(_, chain, key): &(String, Vec<u8>, Vec<u8>)| {
        format!("pair {} {}", STANDARD.encode(chain), STANDARD.encode(key))
    };
    let results = go(&cases.iter().map(input).collect::<Vec<_>>())?;
    let (mut wrong, mut stricter, mut taken) = (0, 0, 0);
    for ((description, chain, private_key), result) in cases.iter().zip(&results) {
        let chain = TlsConsumer::Go.chain(chain);
        let leaf = chain.entries.first().filter(|_| chain.rejected.is_none());
        let ours = leaf
            .is_some_and(|leaf| TlsConsumer::Go.public_key(private_key).as_ref() == Ok(&leaf.certificate.public_key));
        let theirs = result == "true";
        taken += usize::from(theirs);
        if ours && !theirs {
            wrong += 1;
            println!("wrong: {description}: Go refuses it");
        } else if ours != theirs {
            stricter += 1;
            println!("stricter: {description}: Go takes it");
        }
    }
    println!("{} pairs: {taken} taken, {stricter} judged more strictly, {wrong} wrong", cases.len());
    assert_eq!(wrong, 0);
    assert!(taken > 50, "Go took only {taken}");
    Ok(())
}

/// Why some rules do not apply to `TlsConsumer::Go`, or only warn.
#[test]
fn go_verifies_what_only_envoy_refuses() -> Result<()> {
    let mut keys = Keys::shuffled(&mut Seed::of_run("go verifies"));
    let key = keys.of(Kind::P256)?;
    let bare = |dates| Spec { dates, subject_key_id: false, ..Spec::ca("root") };
    let renewed = Identity::root(bare(Dates::Valid), key.clone())?;
    let expired = Identity::root(bare(Dates::Expired), key)?;
    let other = Identity::root(bare(Dates::Valid), keys.of(Kind::P256)?)?;
    let leaf = |ca: &Identity, keys: &mut Keys| {
        ca.issue(Spec { authority_key_id: false, ..Spec::leaf("leaf") }, keys.of(Kind::P256)?)
    };
    let (of_root, of_other) = (leaf(&renewed, &mut keys)?, leaf(&other, &mut keys)?);
    let no_ca = Identity::root(Spec { basic: Basic::NotCa, ..Spec::leaf("self-signed") }, keys.of(Kind::P256)?)?;
    let of_no_ca = leaf(&no_ca, &mut keys)?;
    let future = Identity::root(bare(Dates::Future), keys.of(Kind::P256)?)?;
    let of_future = leaf(&future, &mut keys)?;
    let many: String = (0..2_000).map(|_| other.pem()).chain([renewed.pem()]).collect();
    let cases = [
        ("the expired CA first, then its renewal", expired.pem() + &renewed.pem(), &of_root, true),
        ("only the expired CA", expired.pem(), &of_root, false),
        ("only a CA that is not valid yet", future.pem(), &of_future, false),
        ("the first of two CAs with one subject", renewed.pem() + &other.pem(), &of_root, true),
        ("the second of two CAs with one subject", renewed.pem() + &other.pem(), &of_other, true),
        ("behind two thousand others", many, &of_root, true),
        ("a certificate that is not a CA, itself", no_ca.pem(), &no_ca, true),
        ("a leaf of a certificate that is not a CA", no_ca.pem(), &of_no_ca, false),
    ];
    let input = |(_, text, leaf, _): &(&str, String, &Identity, bool)| {
        format!("verify {} {}", STANDARD.encode(text), STANDARD.encode(leaf.pem()))
    };
    let results = go(&cases.iter().map(input).collect::<Vec<_>>())?;
    for ((description, _, _, expected), result) in cases.iter().zip(&results) {
        assert_eq!(*result == "true", *expected, "{description}");
    }
    Ok(())
}
