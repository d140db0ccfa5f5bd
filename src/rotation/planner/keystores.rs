//! Java clients whose reissue waits, because their truststores would hide a CA.

use super::clients::is_admitted;
use super::deadlines::{client_deadline, is_ahead};
use super::history::{View, authorities, migrated};
use super::pause::Pause;
use super::snapshot::{ClientState, Snapshot};
use super::truststores::{hidden, hides};
use crate::api::{StepName, Wait};
use crate::rotation::name_list::few;

/// Removes clients from those to reissue because the truststore of one would hide a CA that it needs, and returns why. All wait, since the way out may
/// be another CA. A client is reissued regardless shortly before a CA expires on which its connection depends, and if no gateway accepts it any more.
pub(super) fn block(view: &View<'_>, lagging: &mut Vec<&ClientState>) -> Option<Pause> {
    let next = match view.journal.offered.as_slice() {
        [] => view.journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default(),
        offered => offered,
    };
    let hidden = hidden(next)?;
    let newest = |client: &ClientState| view.journal.newest_of(&client.name);
    let deadline = |client: &ClientState| newest(client).and_then(|newest| client_deadline(view, newest));
    let is_due = |client: &ClientState| {
        let is_accepted = newest(client).is_some_and(|newest| is_admitted(view, newest));
        !is_accepted || !is_ahead(view, deadline(client))
    };
    // A new certificate would not change what its truststore shows.
    let is_useless = |client: &ClientState| {
        newest(client).is_some_and(|newest| migrated(&view.client_issuers, &newest.chain, view.now))
    };
    let affected: Vec<_> = lagging.iter().copied().filter(|client| hides(client)).collect();
    let names = few(affected.iter().map(|client| client.name.clone()))?;
    let blocks = affected.iter().any(|client| !is_due(client));
    lagging.retain(|client| (is_due(client) || !blocks) && !(hides(client) && is_useless(client)));
    let until = affected.iter().filter_map(|client| deadline(client)).filter(|at| *at > view.now).min();
    Some(Pause { until, ..Pause::for_action(reason(&names, hidden, blocks)) })
}

/// What a rotation would wait for whose new CA has the subject of the present one: cert-manager's CAs keep theirs.
pub(in crate::rotation) fn successor_wait(snapshot: &Snapshot<'_>) -> Option<Wait> {
    let present = authorities(snapshot.usable_server_ca().ok()?);
    let names = few(snapshot.declared_clients().filter(|client| hides(client)).map(|client| client.name.clone()))?;
    let reason = reason(&names, &present.first()?.subject, true);
    Some(Pause::for_action(reason).wait(StepName::ReissueClients))
}

fn reason(names: &str, subject: &str, blocks: bool) -> String {
    let result = if blocks { "no client is reissued" } else { "it may not find the CA of what gateways serve" };
    format!(
        "In truststore.p12 of {names} Java finds only one of several CAs with the subject {subject}, so {result}. Issue the new CA with another \
         subject, or let these clients use spec.keystores.jks of their Certificates and remove pkcs12"
    )
}
