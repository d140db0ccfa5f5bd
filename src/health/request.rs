//! Path and query of a health request.

use percent_encoding::percent_decode_str;

use super::Check;

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Whether the process must be restarted. Depends on nothing else: a restart does not bring an API server back.
    Livez,
    /// Whether the process should get requests.
    Readyz,
    /// How every dependency is.
    Healthz,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 3] = [Self::Livez, Self::Readyz, Self::Healthz];

    /// The first segment of its path.
    pub fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
            Self::Healthz => "healthz",
        }
    }
}

/// A health request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthRequest {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The check, if only one is asked for.
    pub name: Option<String>,
    /// Whether a success lists all checks, too. A failure always does.
    pub is_verbose: bool,
    /// Names that are not counted.
    pub excluded: Vec<String>,
}

impl HealthRequest {
    /// Parses path and query, as in `/readyz/NAME?verbose` and `/readyz?exclude=NAME&exclude=NAME`; `None` if the path is none of an
    /// endpoint's.
    pub fn parse(path: &str, query: &str) -> Option<Self> {
        let (first, name) = match path.strip_prefix('/')?.split_once('/') {
            Some((first, name)) => (first, Some(decoded(name))),
            None => (path.strip_prefix('/')?, None),
        };
        let endpoint = Endpoint::ALL.into_iter().find(|endpoint| endpoint.name() == first)?;
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: Vec<_> = pairs.map(|(key, value)| (decoded(key), decoded(value))).collect();
        let is_verbose = pairs.iter().any(|(key, _)| key == "verbose");
        let excluded = pairs.into_iter().filter(|(key, _)| key == "exclude").map(|(_, value)| value).collect();
        Some(Self { endpoint, name, is_verbose, excluded })
    }

    /// The API server's warning about exclusions that match no check.
    pub(super) fn unknown_exclusions(&self, checks: &[Check]) -> Option<String> {
        let is_unknown = |name: &&String| !checks.iter().any(|check| check.name == **name);
        let mut unknown: Vec<_> = self.excluded.iter().filter(is_unknown).map(|name| format!("{name:?}")).collect();
        unknown.sort();
        unknown.dedup();
        let names = unknown.join(",");
        (!names.is_empty()).then(|| format!("warn: some health checks cannot be excluded: no matches for {names}\n"))
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
