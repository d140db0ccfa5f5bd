#!/usr/bin/env python3
"""Checks that the comparison with BoringSSL finds each wrong verdict of the past again.

Usage: taken_back.py [--cases N] [NAME…]     N cases of each run (default: 3000); NAME selects fixes (default: all)

It copies the tree into target/taken_back, takes back one fix at a time (FIXES), builds the comparison, and runs it. That run
must fail and print disagreements. Without a change it must not. TRUSTSPAN_SEED repeats a run. `./test taken_back` sets the
environment of the build.

Exit code: 0 if each fix was found, otherwise 1.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "target/taken_back"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
LOG = ROOT / "target/taken_back.log"

BROKEN_PATH = "src/trust/rules/broken_path.rs"
BUNDLE = "src/trust/bundle.rs"
CHAIN = "src/trust/chain/mod.rs"
CONSTRAINTS = "src/trust/chain/constraints.rs"
CONTEXT = "src/trust/rule_context.rs"
CRL = "src/trust/chain/crl.rs"
DER = "src/trust/der.rs"
EXPIRED = "src/trust/rules/expired_beside_renewed.rs"
ISSUING = "src/trust/chain/issuing.rs"
MALFORMED = "src/trust/malformed_pem.rs"
NAMES = "src/trust/chain/general_name.rs"
NOT_YET_VALID = "src/trust/rules/not_yet_valid.rs"
PATH = "src/trust/chain/path_checks.rs"
SAME_SUBJECT = "src/trust/rules/same_subject_ambiguity.rs"
SIGNATURE = "src/trust/chain/signature.rs"
TAKEN_AWAY = "src/trust/rules/taken_away.rs"

# Each fix: name, file, the code, and the code without the fix.
FIXES = [
    (
        "malformed-key-in-bundle",
        BUNDLE,
        '        "RSA PRIVATE KEY" | "EC PRIVATE KEY" | "DSA PRIVATE KEY" => Role::Key,\n',
        "",
    ),
    ("trailing-byte", CHAIN, ".filter(|_| purpose == Purpose::Client)", ".filter(|_| false)"),
    (
        "other-name",
        NAMES,
        "is_type && is_wrapped(&mut input, 0, |_| true) && input.0.is_empty()",
        """let value =
        input.take(CONTEXT | CONSTRUCTED, "").ok().and_then(|mut value| value.any().filter(|_| value.0.is_empty()));
    is_type && value.is_some() && input.0.is_empty()""",
    ),
    ("private-tag", NAMES, "tag & CLASS == CONTEXT", "tag & CONTEXT != 0"),
    (
        "party-name",
        NAMES,
        "is_wrapped(input, number, |tag| DIRECTORY_STRINGS.contains(&tag))",
        """input.take(CONTEXT | CONSTRUCTED | number, "").is_ok_and(|mut value| {
        value.any().is_some_and(|(tag, _)| DIRECTORY_STRINGS.contains(&tag)) && value.0.is_empty()
    })""",
    ),
    ("leaf-key", PATH, " || !presented.has_readable_key()", ""),
    ("leaf-key-long-exponent", SIGNATURE, "(2..=33).contains", "(2..).contains"),
    ("leaf-key-even-exponent", SIGNATURE, "is_odd(exponent)", "true"),
    ("leaf-key-exponent-1", SIGNATURE, "(2..=33).contains", "(1..=33).contains"),
    ("leaf-key-even-modulus", SIGNATURE, "is_odd(modulus)", "true"),
    ("leaf-key-long-modulus", SIGNATURE, "(512..=16_384)", "(512..)"),
    ("leaf-key-point", SIGNATURE, "    ParsedPublicKey::new(algorithm, bits).is_ok()", "    true"),
    (
        "long-arc",
        DER,
        """    let mut starts = true;
    for byte in value {
        if starts && *byte == 0x80 {
            return Err(WHAT);
        }
        starts = byte & 0x80 == 0;
""",
        """    let (mut starts, mut arc) = (true, 0_u64);
    for byte in value {
        if (starts && *byte == 0x80) || arc > u64::MAX >> 7 {
            return Err(WHAT);
        }
        arc = arc << 7 | u64::from(byte & 0x7f);
        starts = byte & 0x80 == 0;
        if starts {
            arc = 0;
        }
""",
    ),
    (
        "sha-224",
        SIGNATURE,
        "        (Key::P256, 2) =>",
        "        (Key::P256, 1) => &sig::ECDSA_P256_SHA1_ASN1,\n        (Key::P256, 2) =>",
    ),
    (
        "list-algorithm",
        CRL,
        "it is signed with an algorithm that cannot be verified here; sign it with SHA-256",
        "the CA did not sign it; publish it again",
    ),
    (
        "subtree-after-match",
        CONSTRAINTS,
        "is_permitted = Some(fits || within(&form, subtree, false, false)?);",
        "is_permitted = Some(within(&form, subtree, false, false)? || fits);",
    ),
    ("apart-in-one-block", BUNDLE, "if trailing.len() >= ANOTHER {", "if der::certificate(trailing).is_ok() {"),
    (
        "one-platform",
        BUNDLE,
        "signed.rejected.is_some() || pem.is_ascii()",
        "signed.rejected.as_ref().is_some_and(|one| !matches!(one.fault, PemFault::Content(_))) || pem.is_ascii()",
    ),
    (
        "encrypted-key",
        BUNDLE,
        "number <= BUNDLE_KEYS && private_key::is_readable(block)",
        "block.is_encrypted || number <= BUNDLE_KEYS && private_key::is_readable(block)",
    ),
    ("blank-in-unmarked-base64", MALFORMED, "b'+' | b'/' | b'=' | b' ' | b'\\t'", "b'+' | b'/' | b'='"),
    ("text-after-no-label", MALFORMED, "(is_empty || names", "(names"),
    ("broken-path", BROKEN_PATH, "Some(Broken { blocked, shape: Some(shape)", "None::<()>?; Some(Broken { blocked, shape: Some(shape)"),
    (
        "two-reasons",
        BROKEN_PATH,
        "let are_all = without.is_some() &&",
        "let are_all = without.as_ref().is_some_and(|blocked| !blocked.has_its_subject) &&",
    ),
    ("path-leads-back", ISSUING, "let leads_back = by == ca && at > 1;", "let leads_back = false;"),
    (
        "trusted-below",
        PATH,
        "parsed.certificate.trusts_clients.is_some()",
        "parsed.certificate.trusts_clients == Some(false)",
    ),
    ("removed-ahead", CONTEXT, '{ " at that time" } else', '{ "" } else'),
    ("put-before-ahead", EXPIRED, "true if is_renewal &&", "true if"),
    (
        "future-renewal",
        NOT_YET_VALID,
        "first.is_valid_at(context.now) && verify_the_same(first, &entry.certificate)",
        "first.is_valid_at(context.now) && first.subject_der == entry.certificate.subject_der",
    ),
    (
        "expired-with-the-same-subject",
        SAME_SUBJECT,
        "(valid(&pair.first.certificate) || pair.have_different_key_ids())",
        "valid(&pair.first.certificate)",
    ),
    (
        "reason-by-subject",
        ISSUING,
        "                let link = |at: usize| self.find",
        """let at = path.links.iter().position(|link| link.certificate.subject == path.links[at].certificate.subject)?;
let link = |at: usize| self.find""",
    ),
    ("trust-settings", BUNDLE, "der::trusts_clients(trailing).filter(|_| aux)", "der::trusts_clients(trailing).filter(|_| aux && trailing.is_empty())"),
    ("taken-away", TAKEN_AWAY, "        return None;\n    }\n    let mut seen", "    }\n    return None;\n    let mut seen"),
    ("relative-object-id", DER, "6 | RELATIVE_OID => object", "6 => object"),
    ("signature-length", DER, "if has_long_length(signature)", "if false"),
]


def copied():
    """Copies the files that git knows or would add. All get the current time, so that cargo compiles none from an old change."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    shutil.rmtree(COPY, ignore_errors=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, COPY / name)


def without(code, old, new, name):
    if code.count(old) != 1:
        sys.exit(f"{name}: expected its code once in the file, found it {code.count(old)} times; correct FIXES")
    return code.replace(old, new)


def run(cases, log):
    """Builds and runs the comparison; returns its exit code and what it printed."""
    # Without optimisation a change is compiled in seconds, and a case takes little longer.
    settings = ["--release", "--config", "profile.release.package.trustspan.opt-level=0", "--target-dir", TARGET]
    build = ["cargo", "build", "--locked", "--manifest-path", COPY / "tests/boringssl/Cargo.toml", *settings]
    subprocess.run(build, check=True, stdout=log, stderr=log, env=os.environ | {"CARGO_INCREMENTAL": "1"})
    compare = [TARGET / "release/trustspan-boringssl", str(cases)]
    done = subprocess.run(compare, stdout=subprocess.PIPE, stderr=log, text=True)
    log.write(done.stdout)
    return done.returncode, done.stdout


def disagreements(text):
    """The kinds of cases that disagree with their numbers, and the kinds of disagreements."""
    table, _, listed = text.partition("  disagree  ")[2].partition("all disagreements, ")
    rows = re.findall(r"^(\w+) +\d+ +\d+ +(\d+) +\d+$", table, re.M)
    return {name: int(count) for name, count in rows if int(count)}, re.findall(r"^ *\d+  (.*) \([\w-]+\)$", listed, re.M)


def main():
    names = [name for name, *_ in FIXES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no such fix: {', '.join(sorted(unknown))}. expected some of {', '.join(names)}")
    chosen = [fix for fix in FIXES if not arguments.names or fix[0] in arguments.names]
    copied()
    # Before the first build: code that has changed since.
    changed = [without((COPY / file).read_text(), old, new, name) for name, file, old, new in chosen]
    missed = 0
    with LOG.open("w", buffering=1) as log:
        code, text = run(arguments.cases, log)
        if code != 0 or "all disagreements" in text:
            sys.exit(f"{text}\nexpected no disagreement with every fix in place; see {LOG}")
        print(f"nothing taken back: no disagreement in {arguments.cases} cases\n", flush=True)
        print(f"{'taken back':24}{'seconds':>8}{'cases':>8}  found by, and the first disagreement", flush=True)
        for (name, file, *_), code_without in zip(chosen, changed):
            started, sound = time.monotonic(), (COPY / file).read_text()
            (COPY / file).write_text(code_without)
            code, text = run(arguments.cases, log)
            (COPY / file).write_text(sound)
            by, what = disagreements(text)
            found = code != 0 and by and what
            missed += not found
            where = ", ".join(f"{kind} {count}" for kind, count in by.items())
            result = f"{where}: {what[0]}" if found else "NOT FOUND"
            print(f"{name:24}{time.monotonic() - started:8.0f}{sum(by.values()):8}  {result}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found; the output of all runs is in {LOG}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
