//! Settings: a flag beats `HOPBINE_*`, which beats the file, which beats the default.
//!
//! `Settings` is the one list of keys. The file spells a key as it is (`http`, `[node]` then
//! `memtable_bytes_max`), the environment as `HOPBINE_HTTP` or `HOPBINE_NODE_MEMTABLE_BYTES_MAX`,
//! the command line as `--http` or, for every key, `--set node.memtable_bytes_max=...`.

use crate::failure::Failure;
use crate::output::Format;
use crate::patience::Timeout;
use hopbine_node::NodeConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Everything that can be set. Plain values; every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Data folder. Given: verbs open the engine in their own process.
    pub data: PathBuf,
    /// Server that verbs talk to when no data folder is given.
    pub url: String,
    /// How results are written; default: a table on a terminal, JSON elsewhere.
    pub output: Option<Format>,
    /// How long one request may take, such as `2s`; default: the server's own, and a bound of the
    /// client for a server that says nothing.
    pub timeout: Option<Timeout>,
    /// Address that `serve` listens on.
    pub http: String,
    /// Address that `serve` listens on for gRPC; `off`: none.
    pub grpc: String,
    /// Lets `serve` listen beyond this machine although it checks no keys.
    pub insecure: bool,
    /// Which log lines are written: a level, or `target=level` pairs with commas.
    pub log: String,
    /// How data is kept by `serve` and by verbs with a data folder.
    pub node: NodeConfig,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data: PathBuf::from("./hopbine-data"),
            url: "http://127.0.0.1:7640".to_owned(),
            output: None,
            timeout: None,
            http: "127.0.0.1:7640".to_owned(),
            grpc: "127.0.0.1:7641".to_owned(),
            insecure: false,
            log: "info".to_owned(),
            node: NodeConfig::default(),
        }
    }
}

/// Where a value came from, weakest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Built in.
    Default,
    /// The settings file.
    File(PathBuf),
    /// A variable of the environment.
    Environment(String),
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// Settings with the origin of each.
#[derive(Debug)]
pub struct Resolved {
    /// The values.
    pub settings: Settings,
    /// By dotted key.
    origins: BTreeMap<String, Origin>,
    /// The same values by dotted key.
    values: BTreeMap<String, Value>,
}

/// Key by key, dotted.
type Flat = BTreeMap<String, Value>;

/// What the command line says: values by key, and `--set` pairs.
#[derive(Debug, Default)]
pub struct Flags {
    /// Keys with a flag of their own.
    pub values: Map<String, Value>,
    /// `key=value` texts.
    pub set: Vec<String>,
    /// The file to read; none by default.
    pub config: Option<PathBuf>,
}

impl Resolved {
    /// Joins the four sources. `environment` is name and value of every variable.
    pub fn new(
        flags: &Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Failure> {
        let mut values = defaults();
        let mut origins: BTreeMap<String, Origin> =
            values.keys().map(|key| (key.clone(), Origin::Default)).collect();
        let environment: BTreeMap<String, String> = environment.into_iter().collect();
        let file = match (&flags.config, environment.get("HOPBINE_CONFIG")) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(path)) => Some(PathBuf::from(path)),
            (None, None) => None,
        };
        let mut put = |key: String, value: Value, origin: Origin| {
            values.insert(key.clone(), value);
            origins.insert(key, origin);
        };
        if let Some(path) = file {
            for (key, value) in read_file(&path)?.0 {
                put(key, value, Origin::File(path.clone()));
            }
        }
        let known = defaults();
        for key in known.keys() {
            let name = format!("HOPBINE_{}", key.replace('.', "_").to_uppercase());
            if let Some(text) = environment.get(&name) {
                let value = typed(&known, key, text).map_err(|why| wrong(&name, &why))?;
                put(key.clone(), value, Origin::Environment(name));
            }
        }
        for pair in &flags.set {
            let Some((key, text)) = pair.split_once('=') else {
                return Err(Failure::Usage(format!("--set {pair}: expected KEY=VALUE")));
            };
            let value = typed(&known, key, text).map_err(|why| wrong("--set", &why))?;
            put(key.to_owned(), value, Origin::Flag);
        }
        for (key, value) in &flags.values {
            put(key.clone(), value.clone(), Origin::Flag);
        }
        let settings = build(&values, &origins)?;
        Ok(Self { settings, origins, values })
    }

    /// Where `key` came from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// `(key, value, origin)` of every setting, by key.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &Value, &Origin)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value, self.origin(key)))
    }
}

/// The values of a settings file by dotted key, and the settings that they make by themselves.
/// Fails naming every unknown key and the nearest known one, and the first value that no verb
/// takes. What only some verbs look at is theirs to check.
pub fn read_file(path: &Path) -> Result<(Flat, Settings), Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| {
        Failure::Usage(format!("{}: {}", path.display(), error.to_string().trim()))
    })?;
    let json = serde_json::to_value(table)
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    let mut flat = Flat::new();
    flatten("", &json, &mut flat);
    let known = defaults();
    let unknown: Vec<String> = flat
        .keys()
        .filter(|key| !known.contains_key(*key))
        .map(|key| unknown_key(&known, key))
        .collect();
    if !unknown.is_empty() {
        return Err(Failure::Usage(format!("{}: {}", path.display(), unknown.join("; "))));
    }
    let origins = flat.keys().map(|key| (key.clone(), Origin::File(path.to_owned()))).collect();
    let mut values = known;
    values.extend(flat.clone());
    let settings = build(&values, &origins)?;
    Ok((flat, settings))
}

fn wrong(place: &str, why: &str) -> Failure {
    Failure::Usage(format!("{place}: {why}"))
}

fn defaults() -> Flat {
    let json = serde_json::to_value(Settings::default()).expect("settings are plain values");
    let mut flat = Flat::new();
    flatten("", &json, &mut flat);
    flat
}

fn flatten(prefix: &str, value: &Value, flat: &mut Flat) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), inner, flat);
            }
        }
        leaf => {
            flat.insert(prefix.to_owned(), leaf.clone());
        }
    }
}

/// `text` as the type of `key`'s default.
fn typed(known: &Flat, key: &str, text: &str) -> Result<Value, String> {
    let fault = |what: &str| format!("{key} must be {what}, not {text:?}");
    match known.get(key) {
        None => Err(unknown_key(known, key)),
        Some(Value::Bool(_)) => text.parse().map(Value::Bool).map_err(|_| fault("true or false")),
        Some(Value::Number(_)) => {
            text.parse::<u64>().map(Value::from).map_err(|_| fault(number_of(key)))
        }
        Some(_) => Ok(Value::from(text)),
    }
}

/// What the number under `key` counts, for who wrote something else.
fn number_of(key: &str) -> &'static str {
    if key.contains("_bytes") || key.ends_with("memory_max") {
        "a number of bytes without a unit, such as 16777216"
    } else {
        "a whole number"
    }
}

fn unknown_key(known: &Flat, key: &str) -> String {
    let distance = |other: &&String| strsim::damerau_levenshtein(key, other);
    match known.keys().min_by_key(distance) {
        Some(near) => format!("unknown key {key:?}, the nearest is {near:?}"),
        None => format!("unknown key {key:?}"),
    }
}

/// The struct behind flat values. A value of a wrong type is named with its key and origin.
fn build(values: &Flat, origins: &BTreeMap<String, Origin>) -> Result<Settings, Failure> {
    let known = defaults();
    for (key, value) in values {
        let mut one = known.clone();
        one.insert(key.clone(), value.clone());
        if let Err(error) = serde_json::from_value::<Settings>(nested(&one)) {
            let origin = origins.get(key).unwrap_or(&Origin::Default);
            let why = match (known.get(key), value) {
                (Some(Value::Number(_)), Value::String(text)) => {
                    format!("must be {}, not {text:?}", number_of(key))
                }
                _ => error.to_string(),
            };
            return Err(Failure::Usage(format!("{key} from {origin}: {why}")));
        }
    }
    let settings: Settings = serde_json::from_value(nested(values))
        .map_err(|error| Failure::Usage(format!("settings: {error}")))?;
    let mut faults = settings.node.faults();
    if settings.data.as_os_str().is_empty() {
        let origin = origins.get("data").unwrap_or(&Origin::Default);
        faults.push(format!("data from {origin}: the name of the folder is empty"));
    }
    if faults.is_empty() { Ok(settings) } else { Err(Failure::Usage(faults.join("; "))) }
}

fn nested(flat: &Flat) -> Value {
    let mut root = Map::new();
    for (key, value) in flat {
        match key.split_once('.') {
            None => {
                root.insert(key.clone(), value.clone());
            }
            Some((outer, inner)) => {
                let table = root.entry(outer).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(fields) = table {
                    fields.insert(inner.to_owned(), value.clone());
                }
            }
        }
    }
    Value::Object(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("hopbine.toml");
        std::fs::write(&path, text).expect("written");
        (dir, path)
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
        let (_dir, path) = file("url = \"http://file\"\nhttp = \"file:1\"\nlog = \"warn\"\n");
        let mut flags = Flags { config: Some(path.clone()), ..Flags::default() };
        flags.values.insert("url".to_owned(), json!("http://flag"));
        let environment = env(&[("HOPBINE_URL", "http://env"), ("HOPBINE_HTTP", "env:1")]);
        let resolved = Resolved::new(&flags, environment).expect("all known");
        assert_eq!(resolved.settings.url, "http://flag");
        assert_eq!(resolved.settings.http, "env:1");
        assert_eq!(resolved.settings.log, "warn");
        assert_eq!(resolved.settings.data, Path::new("./hopbine-data"));
        assert_eq!(resolved.origin("url"), &Origin::Flag);
        assert_eq!(resolved.origin("http"), &Origin::Environment("HOPBINE_HTTP".to_owned()));
        assert_eq!(resolved.origin("log"), &Origin::File(path));
        assert_eq!(resolved.origin("data"), &Origin::Default);
    }

    #[test]
    fn nested_keys_have_all_three_forms() {
        let (_dir, path) = file("[node]\nscrub_pause_ms = 1\ninline_rows_max = 2\n");
        let flags = Flags {
            config: Some(path),
            set: vec!["node.memtable_bytes_max=1048576".to_owned()],
            ..Flags::default()
        };
        let environment = env(&[("HOPBINE_NODE_INLINE_ROWS_MAX", "3")]);
        let node = Resolved::new(&flags, environment).expect("all known").settings.node;
        assert_eq!(node.scrub_pause_ms, 1);
        assert_eq!(node.inline_rows_max, 3);
        assert_eq!(node.memtable_bytes_max, 1 << 20);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_match() {
        let (_dir, path) = file("[node]\nmemtable_byte_max = 1\n");
        let text = read_file(&path).expect_err("unknown").to_string();
        assert!(text.contains("\"node.memtable_byte_max\""), "{text}");
        assert!(text.contains("nearest is \"node.memtable_bytes_max\""), "{text}");
        let flags = Flags { set: vec!["htp=x".to_owned()], ..Flags::default() };
        let text = Resolved::new(&flags, env(&[])).expect_err("unknown").to_string();
        assert!(text.contains("nearest is \"http\""), "{text}");
    }

    #[test]
    fn a_size_with_a_unit_is_told_that_bytes_are_expected() {
        let (_dir, path) = file("[node]\nmemtable_bytes_max = \"16MiB\"\n");
        let set = |pair: &str| Flags { set: vec![pair.to_owned()], ..Flags::default() };
        let memory = set("node.merge_memory_max=1GiB");
        for refused in [
            read_file(&path).map(|_| ()),
            Resolved::new(&memory, env(&[])).map(|_| ()),
            Resolved::new(&Flags::default(), env(&[("HOPBINE_NODE_LOG_SEGMENT_BYTES", "1M")]))
                .map(|_| ()),
        ] {
            let text = refused.expect_err("no number").to_string();
            assert!(text.contains("a number of bytes"), "{text}");
        }
        let text = Resolved::new(&set("node.worker_reads_max=many"), env(&[]));
        let text = text.expect_err("no number").to_string();
        assert!(text.contains("a whole number"), "{text}");
    }

    #[test]
    fn a_value_of_a_wrong_type_or_out_of_bounds_names_its_key() {
        let (_dir, path) = file("insecure = 3\n");
        let text = read_file(&path).expect_err("wrong type").to_string();
        assert!(text.contains("insecure"), "{text}");
        let environment = env(&[("HOPBINE_NODE_SCRUB_PAUSE_MS", "soon")]);
        let text = Resolved::new(&Flags::default(), environment).expect_err("wrong").to_string();
        assert!(text.contains("HOPBINE_NODE_SCRUB_PAUSE_MS"), "{text}");
        let (_dir, path) = file("[node]\nmemtable_bytes_max = 1\n");
        let text = read_file(&path).expect_err("out of bounds").to_string();
        assert!(text.contains("memtable_bytes_max"), "{text}");
        let (_dir, path) = file("timeout = \"soon\"\n");
        let text = read_file(&path).expect_err("no duration").to_string();
        assert!(text.contains("timeout from file") && text.contains("soon"), "{text}");
        let environment = env(&[("HOPBINE_DATA", "")]);
        let text = Resolved::new(&Flags::default(), environment).expect_err("empty").to_string();
        assert!(text.contains("data from environment HOPBINE_DATA"), "{text}");
        let (_dir, path) = file("output = \"xml\"\n");
        let text = read_file(&path).expect_err("no such format").to_string();
        assert!(text.contains("output") && text.contains("xml"), "{text}");
    }
}
