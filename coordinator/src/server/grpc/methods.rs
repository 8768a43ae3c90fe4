//! The calls: one table for metrics and for what differs between them.

/// The services of this API.
pub const SERVICES: &[&str] =
    &["hopbine.v1.GraphService", "hopbine.v1.FactService", "hopbine.v1.RetrievalService"];

/// Every call, as `service/method` without the package; the last one stands for all others.
pub const METHODS: &[&str] = &[
    "GraphService/List",
    "GraphService/Create",
    "GraphService/Get",
    "GraphService/Patch",
    "GraphService/Drop",
    "GraphService/Stats",
    "GraphService/Relations",
    "GraphService/Entity",
    "FactService/Upsert",
    "FactService/UpsertStream",
    "FactService/Write",
    "FactService/Get",
    "FactService/Delete",
    "FactService/Scan",
    "FactService/Count",
    "RetrievalService/Search",
    "RetrievalService/Expand",
    "RetrievalService/Rerank",
    "RetrievalService/GraphRag",
    "RetrievalService/GraphRagBatch",
    "other",
];

/// The place of the call at `path` in the table.
pub fn place(path: &str) -> usize {
    let name = path.strip_prefix("/hopbine.v1.");
    let known = METHODS.iter().position(|method| Some(*method) == name);
    known.unwrap_or(METHODS.len() - 1)
}

/// Whether the call at this place is one of this API, which the gate, the request counts and the
/// shutdown concern; health and reflection are not.
pub fn is_api(place: usize) -> bool {
    place + 1 < METHODS.len()
}

/// Whether its requests come one after another for as long as the client likes.
pub fn takes_stream(place: usize) -> bool {
    METHODS[place] == "FactService/UpsertStream"
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::convert::v1;

    #[test]
    fn the_table_holds_the_calls_of_the_schemas() {
        // Names of services and methods stand in the descriptors as they are.
        let schemas = String::from_utf8_lossy(v1::FILE_DESCRIPTOR_SET);
        for method in &METHODS[..METHODS.len() - 1] {
            let path = format!("/hopbine.v1.{method}");
            assert!(is_api(place(&path)), "{method}");
            let (service, name) = method.split_once('/').expect("a service and a method");
            assert!(schemas.contains(service) && schemas.contains(name), "{method}");
        }
        assert!(!is_api(place("/grpc.health.v1.Health/Check")));
        assert!(takes_stream(place("/hopbine.v1.FactService/UpsertStream")));
        assert_eq!(SERVICES.len(), 3);
    }
}
