//! When a client needs a bootstrap kubeconfig.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};

use super::IdentityName;
use super::kubeconfig::Server;
use crate::api::{BootstrapToken, IssuedCertificate};
use crate::trust::Certificate;
use crate::trust::chain::{Purpose, Store};

/// How long a token stays after a certificate was issued for it: with the token the client reads its certificate.
const COLLECTION_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// The last part of a certificate's life in which the client is considered unable to renew it: it should have at 70 to 90 %.
const OVERDUE_PART: i32 = 20;

/// Delay after the first token that expired unused, as a part of its life: a minute of an hour. It doubles after each further one, up to the whole life.
const DELAY_PART: i32 = 60;

/// What the approver has read about an identity.
#[derive(Clone, Debug)]
pub struct Observed<'o> {
    /// The identity.
    pub identity: &'o IdentityName,
    /// How the API server is reached now.
    pub server: &'o Server,
    /// The certificate that was issued last.
    pub certificate: Option<&'o IssuedCertificate>,
    /// The bootstrap token.
    pub bootstrap: Option<&'o BootstrapToken>,
    /// When a new bootstrap kubeconfig was requested.
    pub requested_at: Option<Timestamp>,
    /// The CAs by which the API server verifies clients. Empty: not known.
    pub client_cas: &'o [Certificate],
}

/// Why the client needs a bootstrap kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It has no certificate.
    NoCertificate,
    /// Its certificate expires soon, and was not renewed.
    Expiring,
    /// The API server's CAs were changed.
    ServerCAChanged,
    /// The API server's address was changed.
    EndpointChanged,
    /// The API server does not accept the issuer of the certificate any more.
    ClientCAChanged,
    /// A new one was requested.
    Requested,
}

impl Need {
    /// Reason of a condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoCertificate => "NoCertificate",
            Self::Expiring => "Expiring",
            Self::ServerCAChanged => "ServerCAChanged",
            Self::EndpointChanged => "EndpointChanged",
            Self::ClientCAChanged => "ClientCAChanged",
            Self::Requested => "Requested",
        }
    }

    /// What has happened, as a sentence.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoCertificate => "The client has no certificate.",
            Self::Expiring => "The client has not renewed its certificate, which expires soon.",
            Self::ServerCAChanged => "The CAs of the API server have changed.",
            Self::EndpointChanged => "The address of the API server has changed.",
            Self::ClientCAChanged => "The API server does not accept the issuer of the client's certificate any more.",
            Self::Requested => "A new bootstrap kubeconfig was requested.",
        }
    }
}

/// The next step for an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The client has what it needs. Its token is removed if there is one, `remove_token_at` that time.
    Valid {
        /// When the token is removed.
        remove_token_at: Option<Timestamp>,
    },
    /// A bootstrap kubeconfig waits for the client.
    Wait(Need),
    /// The last token has expired. A new bootstrap kubeconfig is made later.
    Delay(Need, Timestamp),
    /// The last bootstrap kubeconfig is not in all of its Secrets.
    Deliver(Need),
    /// Make a token and a bootstrap kubeconfig.
    Bootstrap(Need),
}

/// Plans the next step.
pub fn plan(observed: &Observed<'_>, now: Timestamp) -> Plan {
    let token = observed.bootstrap;
    let Some(need) = need(observed, now) else {
        let issued = observed.certificate.map(|certificate| certificate.issued_at);
        let collected = issued.and_then(|issued| issued.saturating_add(COLLECTION_PERIOD).ok());
        return Plan::Valid { remove_token_at: token.map(|token| collected.unwrap_or(now).min(token.expiration)) };
    };
    let Some(token) = token.filter(|token| is_for(token, observed)) else {
        return Plan::Bootstrap(need);
    };
    if now < token.expiration {
        return if token.delivered { Plan::Wait(need) } else { Plan::Deliver(need) };
    }
    let (life, doublings) =
        (token.expiration.duration_since(token.created_at), token.attempts.saturating_sub(1).min(6));
    let delay = (life / DELAY_PART).saturating_mul(1 << doublings).min(life);
    let end = token.expiration.saturating_add(delay).unwrap_or(Timestamp::MAX);
    if now < end { Plan::Delay(need, end) } else { Plan::Bootstrap(need) }
}

/// Whether a token is for the server as it is now, and was made after the last request for one.
fn is_for(token: &BootstrapToken, observed: &Observed<'_>) -> bool {
    token.endpoint == observed.server.endpoint
        && token.ca_hash == observed.server.ca_hash()
        && observed.requested_at.is_none_or(|requested| requested <= token.created_at)
}

fn need(observed: &Observed<'_>, now: Timestamp) -> Option<Need> {
    let Some(issued) = observed.certificate else { return Some(Need::NoCertificate) };
    let der = STANDARD.decode(&issued.certificate).unwrap_or_default();
    // After a restore into another cluster the record may be of another identity.
    let Some(certificate) = Certificate::parse(&der).ok().filter(|one| is_of(observed.identity, one)) else {
        return Some(Need::NoCertificate);
    };
    let life = certificate.not_after.duration_since(certificate.not_before);
    let overdue = certificate.not_after.saturating_sub(life / OVERDUE_PART).unwrap_or(certificate.not_after);
    let is_accepted = || {
        let store = Store::new(observed.client_cas, None);
        // What has expired is reported as such.
        store.verify(std::slice::from_ref(&certificate), Purpose::Client, certificate.not_before.max(now)).is_ok()
    };
    if now >= overdue {
        Some(Need::Expiring)
    } else if issued.endpoint != observed.server.endpoint {
        Some(Need::EndpointChanged)
    } else if ![&issued.ca_hash, &issued.bundle_hash].contains(&&observed.server.ca_hash()) {
        Some(Need::ServerCAChanged)
    } else if !observed.client_cas.is_empty() && !is_accepted() {
        Some(Need::ClientCAChanged)
    } else if observed.requested_at.is_some_and(|requested| requested > issued.issued_at) {
        Some(Need::Requested)
    } else {
        None
    }
}

/// Whether a certificate names this identity.
fn is_of(identity: &IdentityName, certificate: &Certificate) -> bool {
    common_name(certificate).is_some_and(|user| user == identity.user())
}

/// The common name of a certificate: its user name.
pub fn common_name(certificate: &Certificate) -> Option<String> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(&certificate.der).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name)
}

/// The CAs of a bootstrap kubeconfig: those of the API server, and if all of them are new, those that it had when `before` was made and that are
/// in the last kubeconfig. Replicas of an API server switch one after another.
pub fn rolled_cas(
    server: &Server,
    before: Option<&BootstrapToken>,
    last: Option<&Server>,
    now: Timestamp,
) -> Vec<Certificate> {
    let mut cas = server.cas.clone();
    let Some((before, last)) = before
        .zip(last)
        .filter(|(before, last)| before.endpoint == server.endpoint && last.endpoint == server.endpoint)
    else {
        return cas;
    };
    let is_same = before.ca_hash == server.ca_hash();
    // With one CA in common, the roll has a step with both.
    let is_replaced = !server.cas.iter().any(|ca| before.cas.contains(&ca.fingerprint));
    let kept = last.cas.iter().filter(|ca| {
        let was_current = is_replaced && before.cas.contains(&ca.fingerprint);
        (is_same || was_current) && !server.cas.contains(ca) && !ca.is_expired(now)
    });
    cas.extend(kept.cloned());
    cas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::{self, Authority};

    const ENDPOINT: &str = "https://api.example.com";

    struct Scene {
        identity: IdentityName,
        clients: Authority,
        server: Server,
        certificate: Option<IssuedCertificate>,
        bootstrap: Option<BootstrapToken>,
        requested_at: Option<Timestamp>,
        client_cas: Vec<Certificate>,
        now: Timestamp,
    }

    impl Scene {
        /// An identity with a certificate of 2025 to 2027, in 2026.
        fn new() -> Self {
            let (identity, clients) = (IdentityName::new("shop", "payments"), fixtures::ca("clients"));
            let server = Server::new(ENDPOINT, fixtures::ca("server").pem().as_bytes()).unwrap();
            let mut scene = Self {
                identity,
                server,
                certificate: None,
                bootstrap: None,
                requested_at: None,
                client_cas: fixtures::certificates(&clients.pem()),
                clients,
                now: fixtures::now(),
            };
            scene.certificate = Some(scene.issued(&scene.clients));
            scene
        }

        fn issued(&self, issuer: &Authority) -> IssuedCertificate {
            let certificate = fixtures::parsed(issuer.leaf(&self.identity.user()).der());
            IssuedCertificate {
                request: "client-identity-1".to_owned(),
                certificate: STANDARD.encode(&certificate.der),
                not_after: certificate.not_after,
                issued_at: self.now,
                endpoint: self.server.endpoint.clone(),
                ca_hash: self.server.ca_hash(),
                bundle_hash: self.server.ca_hash(),
            }
        }

        fn token(&self) -> BootstrapToken {
            BootstrapToken {
                token_id: "abcdef".to_owned(),
                created_at: self.now,
                expiration: self.after(3600),
                endpoint: self.server.endpoint.clone(),
                ca_hash: self.server.ca_hash(),
                bundle_hash: self.server.ca_hash(),
                cas: self.server.cas.iter().map(|ca| ca.fingerprint.clone()).collect(),
                delivered: true,
                attempts: 1,
                key_hash: None,
            }
        }

        fn after(&self, seconds: i64) -> Timestamp {
            self.now + SignedDuration::from_secs(seconds)
        }

        fn plan_at(&self, now: Timestamp) -> Plan {
            let observed = Observed {
                identity: &self.identity,
                server: &self.server,
                certificate: self.certificate.as_ref(),
                bootstrap: self.bootstrap.as_ref(),
                requested_at: self.requested_at,
                client_cas: &self.client_cas,
            };
            plan(&observed, now)
        }

        fn plan(&self) -> Plan {
            self.plan_at(self.now)
        }
    }

    #[test]
    fn a_client_with_a_valid_certificate_needs_nothing() {
        let mut scene = Scene::new();
        assert_eq!(scene.plan(), Plan::Valid { remove_token_at: None });
        scene.client_cas.clear();
        assert_eq!(scene.plan(), Plan::Valid { remove_token_at: None }, "the client CAs are not known");
        scene.bootstrap = Some(scene.token());
        assert_eq!(
            scene.plan(),
            Plan::Valid { remove_token_at: Some(scene.after(300)) },
            "time to read the certificate"
        );
    }

    #[test]
    fn each_change_needs_a_bootstrap_kubeconfig() {
        let scene = Scene { certificate: None, ..Scene::new() };
        assert_eq!(scene.plan(), Plan::Bootstrap(Need::NoCertificate));

        let mut scene = Scene::new();
        scene.server.endpoint = "https://moved.example.com".to_owned();
        assert_eq!(scene.plan(), Plan::Bootstrap(Need::EndpointChanged));

        let mut scene = Scene::new();
        scene.server.cas.extend(fixtures::certificates(&fixtures::ca("new").pem()));
        assert_eq!(scene.plan(), Plan::Bootstrap(Need::ServerCAChanged));

        let scene = Scene { client_cas: fixtures::certificates(&fixtures::ca("others").pem()), ..Scene::new() };
        assert_eq!(scene.plan(), Plan::Bootstrap(Need::ClientCAChanged));

        let mut scene = Scene::new();
        scene.requested_at = Some(scene.after(1));
        assert_eq!(scene.plan(), Plan::Bootstrap(Need::Requested));
        scene.requested_at = Some(scene.now);
        assert_eq!(scene.plan(), Plan::Valid { remove_token_at: None }, "requested before it was issued");

        let mut scene = Scene::new();
        scene.certificate = Some(IssuedCertificate {
            certificate: STANDARD.encode(scene.clients.leaf("trustspan.dev:client-identity:shop:checkout").der()),
            ..scene.issued(&scene.clients)
        });
        assert_eq!(scene.plan(), Plan::Bootstrap(Need::NoCertificate), "the certificate of another identity");
    }

    #[test]
    fn a_certificate_that_was_not_renewed_needs_one_in_its_last_twentieth() {
        let scene = Scene::new();
        let der = STANDARD.decode(&scene.certificate.as_ref().unwrap().certificate).unwrap();
        let certificate = fixtures::parsed(&der);
        let life = certificate.not_after.duration_since(certificate.not_before);
        let overdue = certificate.not_after - life / 20;
        assert_eq!(scene.plan_at(overdue - SignedDuration::from_secs(1)), Plan::Valid { remove_token_at: None });
        assert_eq!(scene.plan_at(overdue), Plan::Bootstrap(Need::Expiring));
    }

    #[test]
    fn a_token_that_expired_unused_is_replaced_after_growing_delays() {
        let mut scene = Scene { certificate: None, ..Scene::new() };
        scene.bootstrap = Some(scene.token());
        assert_eq!(scene.plan_at(scene.after(3599)), Plan::Wait(Need::NoCertificate));
        for (attempts, minutes) in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (u32::MAX, 60)] {
            scene.bootstrap.as_mut().unwrap().attempts = attempts;
            let end = scene.after(3600 + minutes * 60);
            assert_eq!(scene.plan_at(scene.after(3600)), Plan::Delay(Need::NoCertificate, end));
            assert_eq!(scene.plan_at(end), Plan::Bootstrap(Need::NoCertificate), "{attempts}");
        }
    }

    #[test]
    fn a_token_for_another_server_is_replaced_at_once_and_an_undelivered_kubeconfig_is_delivered() {
        let mut scene = Scene { certificate: None, ..Scene::new() };
        let token = scene.token();
        let changes: [fn(&mut BootstrapToken); 2] = [|one| one.endpoint.push('x'), |one| one.ca_hash.push('x')];
        for change in changes {
            let mut changed = token.clone();
            change(&mut changed);
            scene.bootstrap = Some(changed);
            assert_eq!(scene.plan(), Plan::Bootstrap(Need::NoCertificate));
        }
        scene.bootstrap = Some(BootstrapToken { delivered: false, ..token.clone() });
        assert_eq!(scene.plan(), Plan::Deliver(Need::NoCertificate));
        scene.bootstrap = Some(token);
        assert_eq!(scene.plan(), Plan::Wait(Need::NoCertificate));
        scene.requested_at = Some(scene.after(1));
        assert_eq!(scene.plan_at(scene.after(1)), Plan::Bootstrap(Need::NoCertificate));
    }

    #[test]
    fn a_ca_roll_keeps_the_previous_cas_until_the_next_one() {
        let [old, new, newer] =
            ["old", "new", "newer"].map(|name| fixtures::certificates(&fixtures::ca(name).pem()).remove(0));
        let server = |cas: &[&Certificate]| Server {
            endpoint: ENDPOINT.to_owned(),
            cas: cas.iter().map(|ca| (*ca).clone()).collect(),
        };
        let scene = Scene::new();
        let token = |server: &Server| BootstrapToken {
            ca_hash: server.ca_hash(),
            cas: server.cas.iter().map(|ca| ca.fingerprint.clone()).collect(),
            ..scene.token()
        };
        let rolled =
            |to: &Server, before: &Server, last: &Server| rolled_cas(to, Some(&token(before)), Some(last), scene.now);
        let (one, two, three) = (server(&[&old]), server(&[&new]), server(&[&newer]));
        let both = server(&[&new, &old]);
        assert_eq!(rolled(&two, &one, &one), both.cas);
        assert_eq!(rolled(&two, &two, &both), both.cas, "another token for the same server");
        assert_eq!(rolled(&three, &two, &both), server(&[&newer, &new]).cas, "the first is dropped");
        assert_eq!(rolled(&both, &one, &one), both.cas, "the API server publishes both");
        assert_eq!(rolled(&two, &both, &both), two.cas, "a roll in steps needs nothing more");
        assert_eq!(rolled_cas(&two, None, Some(&one), scene.now), two.cas);
        let moved = Server { endpoint: "https://moved.example.com".to_owned(), ..two.clone() };
        assert_eq!(rolled_cas(&moved, Some(&token(&one)), Some(&one), scene.now), two.cas, "another API server");
    }
}
