//! `trustspan-node mirror` on the real API server, with the rights of `manifests/node`.

// A lock is poisoned only if the test has failed already.
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::testbed::{Authority, Cluster, Mirror, MirrorRights, SOON, Seed, User, wait_for};

cases![
    mirror_keeps_the_last_good_content_and_puts_drift_back,
    mirror_writes_no_ca_that_its_signers_did_not_sign,
    mirror_reports_what_the_file_holds,
    mirror_starts_from_a_bootstrap_file_without_a_second_write,
    mirror_keeps_the_file_on_a_full_disk_and_in_a_read_only_directory,
    mirror_is_killed_at_any_moment_and_the_file_is_never_torn,
    mirror_manifests_are_accepted_and_as_restricted_as_a_host_path_permits,
];

/// Rotations of the test that kills mirrors; `TRUSTSPAN_MIRROR_ROTATIONS` sets another number.
const ROTATIONS: usize = 30;

/// The bundle as the mirror writes it.
fn text(cas: &[&Authority]) -> String {
    cas.iter().map(|ca| ca.pem().replace("\r\n", "\n")).collect()
}

/// Writes ConfigMap `trust`.
fn write(cluster: &Cluster, ns: &str, bundle: &str) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "trust" }, "data": { "ca.crt": bundle },
    });
    // Not `apply`, which would store the text a second time.
    let verb = if cluster.exists("configmap", ns, "trust")? { "replace" } else { "create" };
    cluster.kubectl([verb, "-f", "-"]).ns(ns).stdin(object.to_string()).ok().map(drop)
}

fn wait_file(mirror: &Mirror, file: &Path, expected: &str) -> Result<()> {
    let waited = wait_for("the file to have the new content", SOON, || Ok(fs::read_to_string(file)? == expected));
    waited.with_context(|| mirror.log())
}

/// The inode, and the time of the last write.
fn version(file: &Path) -> Result<(u64, i64, i64)> {
    let stored = fs::metadata(file)?;
    Ok((stored.ino(), stored.mtime(), stored.mtime_nsec()))
}

/// The path of a check of the mirrored file.
fn check(endpoint: &str, file: &Path) -> String {
    format!("/{endpoint}/mirrored-file{}", file.display())
}

fn metric(mirror: &Mirror, name: &str) -> Result<String> {
    let (_, body) = mirror.request("/metrics")?;
    let line = body.lines().find_map(|line| line.strip_prefix(name)).with_context(|| body.clone())?;
    Ok(line.trim().to_owned())
}

fn mirror_keeps_the_last_good_content_and_puts_drift_back(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let [one, two, three] = ["one", "two", "three"].map(Authority::new);
        let (one, two, three) = (one?, two?, three?);
        let directory = cluster.temp_dir("mirrored")?;
        let file = directory.join("ca.crt");
        write(cluster, ns, &text(&[&one]))?;
        // Another mechanism wrote the file: same list, other text, mode and owner.
        fs::write(&file, format!("# clients\n\n{}", one.pem()))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
        chown(&file, Some(12), Some(34)).context("not root: only root may test that the owner is kept")?;
        fs::write(directory.join(".trustspan-ca.crt.abc123"), "left by a killed run")?;
        let before = version(&file)?;
        let rights = MirrorRights::grant(cluster, ns, "configmap", "trust")?;
        let source = format!("configmap/{ns}/trust");
        let mut mirror = Mirror::start(cluster, &rights, &source, &directory, &[])?;
        mirror.wait_answer("/readyz", 200, "ok")?;
        mirror.wait_answer(&check("healthz", &file), 200, "ok")?;
        ensure!(version(&file)? == before, "written although the list is the same");
        ensure!(fs::read_dir(&directory)?.count() == 1, "the temporary file of the killed run is still there");

        write(cluster, ns, &text(&[&two, &one]))?;
        wait_file(&mirror, &file, &text(&[&two, &one]))?;
        let stored = fs::metadata(&file)?;
        ensure!((stored.uid(), stored.gid(), stored.mode() & 0o777) == (12, 34, 0o640), "saw {stored:?}");

        for (what, drift) in [("changed", Some(three.pem())), ("damaged", Some("text".to_owned())), ("removed", None)] {
            match drift {
                Some(text) => fs::write(&file, text)?,
                None => fs::remove_file(&file)?,
            }
            wait_file(&mirror, &file, &text(&[&two, &one]))?;
            wait_for("a line in the log", SOON, || Ok(mirror.log().contains(&format!("file was {what}"))))?;
        }
        wait_for("the metric", SOON, || Ok(metric(&mirror, "trustspan_mirror_writes_total{cause=\"drift\"}")? == "3"))?;

        let good = version(&file)?;
        write(cluster, ns, &(two.pem() + &one.pem().replacen("MII", "M!I", 1)))?;
        mirror.wait_answer(&check("healthz", &file), 500, "content refused, the file stays as it is")?;
        write(cluster, ns, "")?;
        mirror.wait_answer(&check("healthz", &file), 500, "content refused")?;
        cluster.kubectl(["delete", "configmap", "trust"]).ns(ns).ok()?;
        mirror.wait_answer(&check("healthz", &file), 500, "does not exist; the file stays as it is")?;
        ensure!(version(&file)? == good, "written without content");
        // Drift is put back without a source as well.
        fs::remove_file(&file)?;
        wait_file(&mirror, &file, &text(&[&two, &one]))?;
        mirror.stop()?;
        let good = version(&file)?;
        let mirror = Mirror::start(cluster, &rights, &source, &directory, &[])?;
        mirror.wait_answer(&check("healthz", &file), 500, "does not exist")?;
        ensure!(version(&file)? == good, "the file does not survive the end of the source and of the mirror");
        write(cluster, ns, &text(&[&three]))?;
        wait_file(&mirror, &file, &text(&[&three]))?;
        mirror.wait_answer(&check("healthz", &file), 200, "ok")
    })
}

/// An ordinary rotation below a root of the operator needs no action; a CA that an editor of the source adds is not written.
fn mirror_writes_no_ca_that_its_signers_did_not_sign(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let (root, other) = (Authority::new("root")?, Authority::new("other")?);
        let (old, new) = (root.intermediate("old")?, root.intermediate("new")?);
        let directory = cluster.temp_dir("mirrored")?;
        let (file, signers) = (directory.join("ca.crt"), cluster.temp_dir("signers")?.join("ca.crt"));
        write(cluster, ns, &text(&[&old]))?;
        let rights = MirrorRights::grant(cluster, ns, "configmap", "trust")?;
        let flags = ["--signers", signers.to_str().context("a path in UTF-8")?];
        let mirror = Mirror::start(cluster, &rights, &format!("configmap/{ns}/trust"), &directory, &flags)?;
        let refused = |words: &str| mirror.wait_answer(&check("healthz", &file), 500, words);
        refused("no such file")?;
        ensure!(!file.exists(), "written without signers");
        fs::write(&signers, text(&[&root]))?;
        wait_file(&mirror, &file, &text(&[&old]))?;
        write(cluster, ns, &text(&[&new, &old]))?;
        wait_file(&mirror, &file, &text(&[&new, &old]))?;

        write(cluster, ns, &text(&[&new, &other]))?;
        refused("CN=other is neither in the file of --signers nor signed by a CA in it")?;
        ensure!(fs::read_to_string(&file)? == text(&[&new, &old]), "the CA was written");
        fs::write(&signers, text(&[&root, &other]))?;
        wait_file(&mirror, &file, &text(&[&new, &other]))
    })
}

/// The MirroredFile of a namespace.
pub(crate) fn report(cluster: &Cluster, ns: &str) -> Result<Value> {
    let mut listed = cluster.list("mirroredfiles", ns, "")?;
    ensure!(listed.len() == 1, "expected one MirroredFile, saw {listed:?}");
    Ok(listed.remove(0))
}

fn mirror_reports_what_the_file_holds(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let (one, two) = (Authority::new("one")?, Authority::new("two")?);
        let directory = cluster.temp_dir("mirrored")?;
        let file = directory.join("ca.crt");
        write(cluster, ns, &text(&[&one]))?;
        let rights = MirrorRights::grant(cluster, ns, "configmap", "trust")?;
        let mirror = Mirror::start(cluster, &rights, &format!("configmap/{ns}/trust"), &directory, &[])?;
        mirror.wait_answer("/readyz", 200, "ok")?;
        let first = report(cluster, ns)?;
        ensure!(first["spec"]["node"] == "node-1" && first["spec"]["path"] == file.display().to_string(), "{first}");
        let status = &first["status"];
        ensure!(status["conditions"][0]["reason"] == "Mirrored" && status["firstExpiry"].is_string(), "{first}");
        let hash = status["sha256"].clone();
        // A change of the text only is no change of the report.
        write(cluster, ns, &format!("# again\n{}", one.pem()))?;
        write(cluster, ns, &text(&[&two, &one]))?;
        wait_for("the hash of both CAs", SOON, || Ok(report(cluster, ns)?["status"]["sha256"] != hash))?;
        fs::remove_file(&file)?;
        wait_for("the drift in the report", SOON, || Ok(report(cluster, ns)?["status"]["lastDrift"].is_string()))?;
        write(cluster, ns, "text")?;
        wait_for("the refusal in the report", SOON, || {
            let condition = report(cluster, ns)?["status"]["conditions"][0].take();
            ensure!(condition["reason"] == "Refused" && condition["status"] == "False", "saw {condition}");
            Ok(true)
        })?;

        // Without the right to read, the check is of the kind that needs a change, and the file stays.
        cluster.kubectl(["delete", "rolebinding", "--all"]).ns(ns).ok()?;
        drop(mirror);
        let mirror = Mirror::start(cluster, &rights, &format!("configmap/{ns}/trust"), &directory, &[])?;
        mirror.wait_answer(&check("healthz", &file), 500, "cannot read ConfigMap")?;
        mirror.wait_answer("/readyz", 500, "")?;
        ensure!(fs::read_to_string(&file)? == text(&[&two, &one]), "the file has changed");
        write(cluster, ns, &text(&[&two]))?;
        MirrorRights::grant_to(cluster, ns, "configmap", "trust", &rights.account)?;
        wait_file(&mirror, &file, &text(&[&two])).context("the right was granted again")?;
        // Objects of other namespaces can be neither read nor written with these rights.
        let kubeconfig = format!("--kubeconfig={}", rights.kubeconfig.display());
        for (verb, resource) in [("get", "secrets"), ("list", "configmaps"), ("patch", "mirroredfiles")] {
            let asked = cluster.kubectl(["auth", "can-i", verb, resource, "-n", "default", &kubeconfig]).run()?;
            ensure!(!asked.success(), "may {verb} {resource}");
        }
        Ok(())
    })
}

fn mirror_starts_from_a_bootstrap_file_without_a_second_write(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let (one, two) = (Authority::new("one")?, Authority::new("two")?);
        let (directory, other) = (cluster.temp_dir("mirrored")?.join("new/directory"), cluster.temp_dir("bootstrap")?);
        let (file, bootstrap) = (directory.join("ca.crt"), other.join("bootstrap.crt"));
        fs::write(&bootstrap, format!("# at installation\n{}\n\n{}", one.pem(), two.pem()))?;
        let flag = format!("--bootstrap={}", bootstrap.display());
        let source = format!("configmap/{ns}/trust");
        let unreachable = MirrorRights::unreachable(cluster)?;
        let mut mirror = Mirror::start(cluster, &unreachable, &source, &directory, &[&flag, "--mode=0600"])?;
        wait_file(&mirror, &file, &text(&[&one, &two]))?;
        mirror.wait_answer(&check("healthz", &file), 503, "unreachable, retrying")?;
        mirror.stop()?;
        ensure!(fs::metadata(&file)?.mode() & 0o777 == 0o600, "another mode than --mode");

        let before = version(&file)?;
        write(cluster, ns, &format!("{}# the same list\n{}", one.pem(), two.pem()))?;
        let rights = MirrorRights::grant(cluster, ns, "configmap", "trust")?;
        let mirror = Mirror::start(cluster, &rights, &source, &directory, &[&flag])?;
        mirror.wait_answer(&check("healthz", &file), 200, "ok")?;
        for cause in ["update", "drift", "bootstrap"] {
            let writes = metric(&mirror, &format!("trustspan_mirror_writes_total{{cause=\"{cause}\"}}"))?;
            ensure!(writes == "0", "{writes} writes of cause {cause}");
        }
        ensure!(version(&file)? == before, "another inode or time of the last write");
        Ok(())
    })
}

/// A mounted tmpfs, which is unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(directory: PathBuf, size: &str) -> Result<Self> {
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &directory.display().to_string()])
            .context("expected to run as root, with the right to mount a tmpfs")?;
        Ok(Self(directory))
    }

    fn remount(&self, option: &str) -> Result<()> {
        run("mount", &["-o", &format!("remount,{option}"), &self.0.display().to_string()])
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", &self.0.display().to_string()]);
    }
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn mirror_keeps_the_file_on_a_full_disk_and_in_a_read_only_directory(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let (one, two, three) = (Authority::new("one")?, Authority::new("two")?, Authority::new("three")?);
        let mount = Mount::new(cluster.temp_dir("small")?, "64k")?;
        let file = mount.0.join("ca.crt");
        write(cluster, ns, &text(&[&one]))?;
        let rights = MirrorRights::grant(cluster, ns, "configmap", "trust")?;
        let mirror = Mirror::start(cluster, &rights, &format!("configmap/{ns}/trust"), &mount.0, &[])?;
        mirror.wait_answer(&check("healthz", &file), 200, "ok")?;

        let filler = mount.0.join("filler");
        ensure!(fs::write(&filler, vec![0; 1 << 20]).is_err(), "the disk is not full");
        let before = version(&file)?;
        write(cluster, ns, &text(&[&two, &one]))?;
        mirror.wait_answer(&check("healthz", &file), 503, "its content stays: cannot write to directory")?;
        ensure!(version(&file)? == before && fs::read_to_string(&file)? == text(&[&one]), "the file has changed");
        wait_for("the failure in the report", SOON, || {
            let message = report(cluster, ns)?["status"]["conditions"][0]["message"].to_string();
            ensure!(message.contains("no storage space"), "saw {message}");
            Ok(true)
        })?;
        fs::remove_file(&filler)?;
        wait_file(&mirror, &file, &text(&[&two, &one]))?;

        mount.remount("ro")?;
        write(cluster, ns, &text(&[&three, &two, &one]))?;
        mirror.wait_answer(&check("healthz", &file), 500, "its content stays: cannot create a file in directory")?;
        ensure!(mirror.log().contains("read-only filesystem"), "{}", mirror.log());
        ensure!(fs::read_to_string(&file)? == text(&[&two, &one]), "the file has changed");
        mount.remount("rw")?;
        wait_file(&mirror, &file, &text(&[&three, &two, &one]))?;
        let names: Vec<_> = fs::read_dir(&mount.0)?.map(|entry| entry.map(|entry| entry.file_name())).collect();
        ensure!(names.len() == 1, "temporary files are left: {names:?}");
        Ok(())
    })
}

/// Reads a file in a loop, and counts what is not one of the known contents.
struct Reader {
    known: Mutex<HashSet<String>>,
    reads: AtomicUsize,
    faults: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Reader {
    fn run(&self, file: &Path) {
        while !self.is_over.load(SeqCst) {
            let fault = match fs::read_to_string(file) {
                Ok(text) if self.known.lock().unwrap().contains(&text) => None,
                Ok(text) => Some(format!("{} bytes that were never the content", text.len())),
                Err(error) => Some(error.to_string()),
            };
            self.faults.lock().unwrap().extend(fault);
            self.reads.fetch_add(1, SeqCst);
        }
    }
}

/// The size of a temporary file of the mirror, if there is one.
fn temporary_file(directory: &Path) -> Result<Option<u64>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(".trustspan-") {
            // It may have been renamed meanwhile.
            return Ok(entry.metadata().ok().map(|stored| stored.len()));
        }
    }
    Ok(None)
}

fn mirror_is_killed_at_any_moment_and_the_file_is_never_torn(cluster: &Cluster) -> Result<()> {
    let rotations = std::env::var("TRUSTSPAN_MIRROR_ROTATIONS").map_or(Ok(ROTATIONS), |number| number.parse())?;
    let started = Instant::now();
    cluster.with_temp_ns(|ns| {
        let mut seed = Seed::of_run("kills of mirrors");
        let others = (0..40).map(|number| Authority::new(&format!("other {number}"))).collect::<Result<Vec<_>>>()?;
        let bundle = |number: usize| -> Result<String> {
            let new = Authority::new(&format!("ca {number}"))?;
            Ok(text(&std::iter::once(&new).chain(&others).collect::<Vec<_>>()))
        };
        // On a disk: a write takes longer there than in memory.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let (directory, file) = (directory.path(), directory.path().join("ca.crt"));
        let first = bundle(0)?;
        write(cluster, ns, &first)?;
        let rights = MirrorRights::grant(cluster, ns, "configmap", "trust")?;
        let source = format!("configmap/{ns}/trust");
        let mut mirror = Mirror::start(cluster, &rights, &source, directory, &[])?;
        wait_file(&mirror, &file, &first)?;
        let reader = Arc::new(Reader {
            known: Mutex::new(HashSet::from([first])),
            reads: AtomicUsize::new(0),
            faults: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let reading = thread::spawn({
            let (reader, file) = (reader.clone(), file.clone());
            move || reader.run(&file)
        });
        let (mut during_a_write, mut kills) = (0, 0);
        for number in 1..=rotations {
            let content = bundle(number)?;
            reader.known.lock().unwrap().insert(content.clone());
            let inode = fs::metadata(&file)?.ino();
            write(cluster, ns, &content)?;
            if seed.below(8) == 0 {
                thread::sleep(Duration::from_micros(seed.below(100_000)));
            } else {
                // The content may be in place before the temporary file is seen here.
                while temporary_file(directory)?.is_none_or(|size| size == 0) && fs::metadata(&file)?.ino() == inode {}
            }
            mirror.kill()?;
            kills += 1;
            // What the killed process left is what it had not renamed.
            during_a_write += usize::from(temporary_file(directory)?.is_some_and(|size| size > 0));
            mirror = Mirror::start(cluster, &rights, &source, directory, &[])?;
            wait_file(&mirror, &file, &content)?;
            if number % 100 == 0 {
                eprintln!("{number} rotations, {during_a_write} kills between first byte and rename");
            }
        }
        wait_for("no temporary file", SOON, || Ok(temporary_file(directory)?.is_none()))?;
        reader.is_over.store(true, SeqCst);
        if reading.join().is_err() {
            bail!("the reader has panicked");
        }
        let (faults, reads) = (reader.faults.lock().unwrap().clone(), reader.reads.load(SeqCst));
        println!(
            "mirror: {rotations} rotations, {kills} kills, {during_a_write} of them between first byte and rename; {reads} reads, {} torn, \
             empty or missing; {:.0?}, TRUSTSPAN_SEED={}",
            faults.len(),
            started.elapsed(),
            Seed::number()
        );
        ensure!(faults.is_empty(), "{:?}", faults.iter().take(5).collect::<Vec<_>>());
        // On a busy machine the test sees fewer temporary files in time; the long run needs three in ten.
        let least = if rotations < 1000 { rotations / 10 } else { rotations * 3 / 10 };
        ensure!(during_a_write >= least, "only {during_a_write} of {rotations} kills during a write");
        Ok(())
    })
}

fn mirror_manifests_are_accepted_and_as_restricted_as_a_host_path_permits(cluster: &Cluster) -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/node");
    let directory = directory.display().to_string();
    let created = cluster.kubectl(["create", "namespace", "istio-ingress"]).run()?;
    ensure!(created.success() || cluster.exists("namespace", "", "istio-ingress")?, "{created:?}");
    cluster.kubectl(["apply", "-k", &directory]).ok()?;
    let set = cluster.get("daemonset", "trustspan-node", "trustspan-mirror")?;
    let mut pod = set["spec"]["template"].clone();
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    pod["metadata"]["name"] = json!("mirror");
    cluster.with_temp_ns(|ns| {
        pod["spec"]["serviceAccountName"] = json!("default");
        cluster.kubectl(["create", "serviceaccount", "default"]).ns(ns).run()?;
        cluster.kubectl(["label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted"]).ok()?;
        let refused = cluster.kubectl(["apply", "-f", "-"]).ns(ns).stdin(pod.to_string()).user(User::Admin).fails()?;
        let (_, reasons) =
            refused.split_once("violates PodSecurity \"restricted:latest\": ").with_context(|| refused.clone())?;
        for reason in reasons.trim().trim_end_matches('.').split("), ") {
            let is_of_files = ["hostPath", "runAsNonRoot", "runAsUser=0"].iter().any(|word| reason.contains(word));
            ensure!(is_of_files, "{reason}");
        }
        Ok(())
    })
}
