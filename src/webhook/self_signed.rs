//! A serving certificate that is generated at start, for `trustspan serve -f` without one. Its keys never leave this process.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::tls::{ServingCertificate, ServingCertificateError, ServingPairFiles, not_after};
use crate::store::atomic_file;

/// File name of the CA certificate in `--cert-dir`.
pub const CA: &str = "ca.crt";

/// A generated CA.
#[derive(Debug)]
pub struct GeneratedCa {
    /// Its certificate.
    pub path: PathBuf,
    /// While it is open, no other process writes a CA to the directory. The operating system closes it with the process.
    _lock: File,
}

/// Generates a CA and a serving certificate for localhost and `bound`, valid for a year, and writes the CA certificate to `dir/ca.crt`.
///
/// # Errors
/// If the file cannot be written, or another process serves with the CA in it.
pub fn make(
    dir: &Path,
    bound: IpAddr,
    now: Timestamp,
) -> Result<(ServingCertificate, GeneratedCa), ServingCertificateError> {
    let (ca, pair) = generate(bound, now).map_err(ServingCertificateError::Make)?;
    let path = dir.join(CA);
    // Atomically: `curl --cacert` may read it while another server starts.
    match lock(dir).and_then(|lock| atomic_file::replace(&path, ca.as_bytes(), 0o644).map(|()| lock)) {
        Ok(_lock) => Ok((ServingCertificate::new(pair), GeneratedCa { path, _lock })),
        Err(source) => Err(ServingCertificateError::File { path, source }),
    }
}

/// Locks the directory, so that clients of one server do not trust the CA of another one.
fn lock(dir: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let file = File::open(dir)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::Error::other(
            "another trustspan serve has generated this CA and still runs: set another --cert-dir",
        )),
        // Not every file system has locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn generate(bound: IpAddr, now: Timestamp) -> Result<(String, ServingPairFiles), String> {
    let text = |e: rcgen::Error| e.to_string();
    let today = now.to_zoned(TimeZone::UTC).date();
    let mut ca = params("trustspan ephemeral CA", today)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // ECDSA P-256, the default of rcgen.
    let ca_key = KeyPair::generate().map_err(text)?;
    let ca_certificate = ca.self_signed(&ca_key).map_err(text)?;

    let mut leaf = params("trustspan", today)?;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let mut addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    if !bound.is_unspecified() && !addresses.contains(&bound) {
        addresses.push(bound);
    }
    leaf.subject_alt_names = vec![SanType::DnsName("localhost".try_into().map_err(text)?)];
    leaf.subject_alt_names.extend(addresses.into_iter().map(SanType::IpAddress));
    let leaf_key = KeyPair::generate().map_err(text)?;
    let leaf = leaf.signed_by(&leaf_key, &Issuer::new(ca, ca_key)).map_err(text)?;

    let der = leaf.der().clone();
    let not_after = not_after(&der).ok_or("its validity does not parse")?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let pair = ServingPairFiles::new(vec![der], key, not_after, [0; 32]).map_err(|e| e.to_string())?;
    Ok((ca_certificate.pem(), pair))
}

fn params(name: &str, today: Date) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let at = |date: Date| {
        let (month, day) = (u8::try_from(date.month()), u8::try_from(date.day()));
        Ok::<_, String>(rcgen::date_time_ymd(
            i32::from(date.year()),
            month.map_err(|e| e.to_string())?,
            day.map_err(|e| e.to_string())?,
        ))
    };
    // Valid from yesterday, since the clock of the caller may be slow.
    params.not_before = at(today.checked_sub(1.day()).map_err(|e| e.to_string())?)?;
    params.not_after = at(today.checked_add(1.year()).map_err(|e| e.to_string())?)?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_only_the_ca_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("new/certs");
        let now: Timestamp = "2028-02-29T12:00:00Z".parse().unwrap();
        let (certificate, GeneratedCa { path, .. }) = make(&into, Ipv4Addr::UNSPECIFIED.into(), now).unwrap();
        assert_eq!(certificate.not_after(), "2029-02-28T00:00:00Z".parse().unwrap());
        assert_eq!(path, into.join(CA));
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains("BEGIN CERTIFICATE") && !text.contains("KEY"), "{text}");
    }

    #[test]
    fn a_second_server_does_not_overwrite_the_ca_of_one_that_runs() {
        let dir = tempfile::tempdir().unwrap();
        let now: Timestamp = "2028-02-29T12:00:00Z".parse().unwrap();
        let make = || make(dir.path(), Ipv4Addr::LOCALHOST.into(), now);
        let (_, first) = make().unwrap();
        let text = fs::read(&first.path).unwrap();
        assert!(make().unwrap_err().to_string().contains("set another --cert-dir"));
        assert_eq!(fs::read(&first.path).unwrap(), text);
        drop(first);
        make().unwrap();
    }
}
