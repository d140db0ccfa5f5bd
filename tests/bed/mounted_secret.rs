//! A stand-in for the kubelet: copies a Secret to a directory some time after it has changed, as the kubelet updates a mounted Secret.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::{runtime::Handle, time::sleep};

/// How often the Secret is read.
const INTERVAL: Duration = Duration::from_millis(100);

/// Follows a Secret until the runtime ends. Each change is written `delay` after it was seen, all keys at once (`AtomicWriter` of the kubelet:
/// the link `..data` is replaced).
pub(crate) fn mount(runtime: &Handle, client: Client, (namespace, name): (&str, &str), dir: PathBuf, delay: Duration) {
    let (api, name): (Api<Secret>, _) = (Api::namespaced(client, namespace), name.to_owned());
    runtime.spawn(async move {
        let mut written = None;
        for version in 0_u64.. {
            // The kubelet keeps what it has while the API server does not answer.
            if let Ok(Some(secret)) = api.get_opt(&name).await
                && written.as_ref() != Some(&secret.data)
            {
                sleep(delay).await;
                match write(&dir, version, &secret) {
                    Ok(()) => written = Some(secret.data),
                    Err(error) => eprintln!("{}: {error:#}", dir.display()),
                }
            }
            sleep(INTERVAL).await;
        }
    });
}

/// Writes a version of a Secret, all keys at once.
pub(crate) fn write(dir: &Path, version: u64, secret: &Secret) -> Result<()> {
    let name = format!("..{version}");
    fs::create_dir_all(dir.join(&name))?;
    for (key, value) in secret.data.iter().flatten() {
        fs::write(dir.join(&name).join(key), &value.0)?;
    }
    let link = dir.join("..data_tmp");
    symlink(&name, &link)?;
    Ok(fs::rename(link, dir.join("..data"))?)
}
