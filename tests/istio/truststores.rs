//! Reads `truststore.jks` and `truststore.p12` of a Secret as Java does.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use p12_keystore::Pkcs12Archive;
use rustls::pki_types::CertificateDer;
use trustspan::trust::Secret;

use crate::client::value;

/// The password of all keystores.
pub(crate) const PASSWORD: &str = "changeit";

/// The CAs in `truststore.p12`. Of several with one name Java keeps the last (OpenJDK, `PKCS12KeyStore.loadSafeContents`).
pub(crate) fn pkcs12(secret: &Secret) -> Result<Vec<CertificateDer<'static>>> {
    let archive = Pkcs12Archive::from_pkcs12(value(secret, "truststore.p12")?, PASSWORD)?;
    let trusted = archive.certs.iter().filter(|bag| bag.trusted);
    let named = trusted.map(|bag| {
        let name = bag.friendly_name.as_deref().context("an entry without a name")?.to_lowercase();
        Ok((name, CertificateDer::from(bag.cert.as_der().to_vec())))
    });
    Ok(named.collect::<Result<BTreeMap<_, _>>>()?.into_values().collect())
}

/// The CAs in `truststore.jks`.
pub(crate) fn jks(secret: &Secret) -> Result<Vec<CertificateDer<'static>>> {
    let file = value(secret, "truststore.jks")?;
    let (content, checksum) = file.split_at_checked(file.len().saturating_sub(20)).context("a file of some bytes")?;
    ensure!(checksum_of(content) == checksum, "expected the checksum of a store with this password");
    let mut reader = Reader(content);
    ensure!(reader.number()? == 0xFEED_FEED && reader.number()? == 2, "expected a JKS store of version 2");
    let named = (0..reader.number()?).map(|_| {
        if reader.number()? != 2 {
            bail!("expected only trusted certificates");
        }
        let name = reader.text()?.to_lowercase();
        reader.bytes(8).context("a date")?;
        let kind = reader.text()?;
        ensure!(kind == "X509" || kind == "X.509", "expected a certificate, saw {kind}");
        let length = reader.number()? as usize;
        Ok((name, CertificateDer::from(reader.bytes(length)?.to_vec())))
    });
    let named = named.collect::<Result<BTreeMap<_, _>>>()?;
    ensure!(reader.0.is_empty(), "{} bytes after the entries", reader.0.len());
    Ok(named.into_values().collect())
}

/// OpenJDK, `JavaKeyStore.getPreKeyedHash`.
fn checksum_of(content: &[u8]) -> Vec<u8> {
    let password = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes);
    let all: Vec<_> = password.chain(*b"Mighty Aphrodite").chain(content.iter().copied()).collect();
    digest(&SHA1_FOR_LEGACY_USE_ONLY, &all).as_ref().to_vec()
}

/// The rest of a JKS store (OpenJDK, `JavaKeyStore.engineLoad`).
struct Reader<'s>(&'s [u8]);

impl<'s> Reader<'s> {
    fn bytes(&mut self, length: usize) -> Result<&'s [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).context("a file that ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.bytes(4)?.try_into()?))
    }

    fn text(&mut self) -> Result<&'s str> {
        let length = u16::from_be_bytes(self.bytes(2)?.try_into()?);
        Ok(std::str::from_utf8(self.bytes(length.into())?)?)
    }
}
