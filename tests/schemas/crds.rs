//! The schemas of every served version of every CRD, and their fields that could name an object which a rotation
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// A served version of a kind, with its OpenAPI schema.
#[derive(Clone)]
pub(crate) struct Schema {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) schema: Value,
}

/// Reads the CRDs in the subdirectories of a directory: every served version.
pub(crate) fn read(dir: &Path) -> Result<Vec<Schema>> {
    let mut files = Vec::new();
    for project in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        for file in fs::read_dir(project?.path())? {
            files.push(file?.path());
        }
    }
    files.sort();
    let mut schemas = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        for document in
            format!("\n{text}").split("\n---").filter(|document| document.contains("CustomResourceDefinition"))
        {
            let crd: Value = serde_saphyr::from_str(document).with_context(|| file.display().to_string())?;
            if crd["kind"] == "CustomResourceDefinition" {
                schemas.extend(served(&crd));
            }
        }
    }
    Ok(schemas)
}

fn served(crd: &Value) -> Vec<Schema> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let schema = |version: &Value| Schema {
        group: text(&crd["spec"]["group"]),
        version: text(&version["name"]),
        kind: text(&crd["spec"]["names"]["kind"]),
        schema: version["schema"]["openAPIV3Schema"].clone(),
    };
    versions.filter(|version| version["served"] == true).map(schema).collect()
}

/// Why a field could name an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// An object with a name, alone or next to a kind, a group, a namespace or a key.
    Reference,
    /// A field without a schema.
    Opaque,
    /// A string whose field name suggests it.
    Name,
    /// A string whose description or format suggests it.
    Description,
}

/// A field that could name an object.
pub(crate) struct Field {
    /// Why it could name an object.
    pub(crate) shape: Shape,
    /// The versions of the kind that have it.
    pub(crate) versions: BTreeSet<String>,
}

/// Group, kind, and path: `spec.servers[].tls.credentialName`; `{}` is any key of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) path: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} {}", self.group, self.kind, self.path)
    }
}

/// All fields that could name an object, each once for all versions and channels of its kind.
pub(crate) fn fields(schemas: &[Schema]) -> BTreeMap<Place, Field> {
    let mut found: BTreeMap<Place, Field> = BTreeMap::new();
    for Schema { group, version, kind, schema } in schemas {
        walk(schema, "", None, &mut |path, shape| {
            let place = Place { group: group.clone(), kind: kind.clone(), path: path.to_owned() };
            let field = found.entry(place).or_insert(Field { shape, versions: BTreeSet::new() });
            field.versions.insert(version.clone());
        });
    }
    found
}

/// Visits a schema node and those below it. `around` is the object or list that contains the node.
fn walk(node: &Value, path: &str, around: Option<&Value>, visit: &mut impl FnMut(&str, Shape)) {
    if !path.is_empty()
        && let Some(shape) = shape(node, path, around)
    {
        visit(path, shape);
    }
    for (name, property) in node["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        walk(property, &path, Some(node), visit);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if node[key].is_object() {
            walk(&node[key], &format!("{path}{suffix}"), Some(node), visit);
        }
    }
}

/// Why a node could name an object; `None` if its shape excludes that.
fn shape(node: &Value, path: &str, around: Option<&Value>) -> Option<Shape> {
    if is_reference(node) {
        return Some(Shape::Reference);
    }
    if node["x-kubernetes-preserve-unknown-fields"] == true {
        return Some(Shape::Opaque);
    }
    // A string with a fixed set of values names nothing.
    if node["type"] != "string" || !node["enum"].is_null() {
        return None;
    }
    let name = path.rsplit('.').next().unwrap_or(path).trim_end_matches(['[', ']', '{', '}']);
    // The fields of a reference are not listed: the reference is judged as a whole.
    let parts = ["name", "kind", "group", "namespace", "key", "apiVersion", "apiGroup", "sectionName"];
    if parts.contains(&name) && around.is_some_and(is_reference) {
        return None;
    }
    if speaks(name) {
        return Some(Shape::Name);
    }
    let is_element = path.ends_with([']', '}']);
    let description = |node: &Value| node["description"].as_str().unwrap_or_default().to_owned();
    let described = description(node) + " " + &around.filter(|_| is_element).map(description).unwrap_or_default();
    let is_url = matches!(node["format"].as_str(), Some("uri" | "url"));
    (is_url || describes(&described)).then_some(Shape::Description)
}

fn is_reference(node: &Value) -> bool {
    let names = |properties: &Map<String, Value>| {
        let has = |names: &[&str]| names.iter().any(|name| properties.contains_key(*name));
        let only = ["name", "key", "optional", "defaultMode", "items"];
        has(&["name"])
            && (has(&["kind", "group", "namespace", "apiVersion", "apiGroup"])
                || properties.keys().all(|name| only.contains(&name.as_str())))
    };
    node["properties"].as_object().is_some_and(names)
}

/// Last words of the names of fields that name an object.
const LAST: &[&str] = &[
    "name",
    "names",
    "ref",
    "refs",
    "path",
    "paths",
    "file",
    "files",
    "uri",
    "uris",
    "url",
    "urls",
    "location",
    "source",
    "address",
    "addresses",
    "endpoint",
    "endpoints",
    "server",
    "servers",
    "directory",
];
/// Words that occur anywhere in the names of such fields.
const ANYWHERE: &[&str] = &[
    "secret",
    "secrets",
    "credential",
    "credentials",
    "cert",
    "certs",
    "certificate",
    "certificates",
    "ca",
    "cas",
    "crl",
    "crls",
    "keystore",
    "keystores",
    "truststore",
    "trust",
    "pem",
    "token",
    "tokens",
    "password",
    "passwords",
    "bundle",
    "bundles",
    "jwks",
    "key",
    "keys",
    "keyring",
];
/// Words in the descriptions of such fields, in lower case.
const DESCRIBED: &[&str] = &[
    "secret",
    "secrets",
    "configmap",
    "configmaps",
    "certificate",
    "certificates",
    "cert",
    "certs",
    "credential",
    "credentials",
    "file",
    "files",
    "filename",
    "directory",
    "pem",
    "keystore",
    "truststore",
    "url",
    "urls",
    "uri",
    "uris",
];

fn speaks(name: &str) -> bool {
    let words = words(name);
    let lower = name.to_lowercase();
    words.last().is_some_and(|last| LAST.contains(&last.as_str()))
        || words.iter().any(|word| ANYWHERE.contains(&word.as_str()))
        || lower.contains("configmap")
        || lower.contains("secret")
}

fn describes(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_alphabetic());
    text.contains("://")
        || words.any(|word| ["CA", "CAs", "CRL"].contains(&word) || DESCRIBED.contains(&word.to_lowercase().as_str()))
}

/// The words of a camelCase or snake_case name, in lower case: `caCertificateRefs`, `diskURI`, `jwks_uri`.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let begins = c.is_ascii_uppercase()
            && before.is_some_and(|before| {
                !before.is_ascii_uppercase() || chars.get(at + 1).is_some_and(char::is_ascii_lowercase)
            });
        if begins || !c.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
