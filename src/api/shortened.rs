//! Values of users, as messages quote them: enough to find them, too little to reveal a private key in the wrong field.

/// Characters that are quoted. Those of a private key in PKCS #8 (RFC 5958) reveal nothing: its header alone has at least 21 characters of
/// base64, for Ed25519 (RFC 8410, section 7).
const QUOTED: usize = 20;

/// At most 20 characters, the last of which is an ellipsis if there were more.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED - 1) {
        Some((at, last)) if at + last.len_utf8() < text.len() => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}

/// A message with its quotes shortened: serde quotes a value that does not fit a type.
pub(crate) fn with_short_quotes(message: &str) -> String {
    ["`", "\""].iter().fold(message.to_owned(), |message, mark| {
        let parts = message.split(mark).enumerate();
        let parts = parts.map(|(at, part)| if at % 2 == 0 { part.to_owned() } else { shortened(part) });
        parts.collect::<Vec<_>>().join(mark)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::GatewaySecretSpec;

    #[test]
    fn keeps_twenty_characters() {
        assert_eq!(shortened("gateway-root-of-team"), "gateway-root-of-team");
        assert_eq!(shortened("gateway-root-of-teams"), "gateway-root-of-tea…");
        assert_eq!(shortened("ä".repeat(21).as_str()), format!("{}…", "ä".repeat(19)));
    }

    #[test]
    fn shortens_a_long_value_in_an_error() {
        let said =
            |spec: Value| with_short_quotes(&GatewaySecretSpec::deserialize(&spec).expect_err("no spec").to_string());
        let long = "-----BEGIN PRIVATE KEY----- MC4CAQAwBQYDK2VwBCIEIPublic";
        for field in ["mode", "certificateRef"] {
            let spec = json!({"sourceSecretName": "root", field: long, "clients": long});
            let error = said(spec);
            assert!(!error.contains("KEY") && error.contains('…'), "{error}");
        }
        assert_eq!(said(json!({"caSecretRef": {}})), "missing field `name`");
        assert_eq!(
            said(json!({"sourceSecretName": "root", "mode": "Cpy"})),
            "unknown variant `Cpy`, expected `Bundle` or `Copy`"
        );
    }
}
