//! The cases of each workload, by the names of their definitions.
//!
//! A plain row stands wherever the definition evaluates by join or by set; the `_fn` forms and
//! the one-call forms are the engine's own.

use super::{Case, Cut, Edges, Form, From, Store};
use hopbine_proto::score::ScoreMode;

const ONE: &[Edges] = &[Edges::All];
const ONE_ASKED: &[Edges] = &[Edges::Asked];
const TWO: &[Edges] = &[Edges::All, Edges::All];
const TWO_ASKED: &[Edges] = &[Edges::Asked, Edges::Asked];
const FIVE_ASKED: &[Edges] = &[Edges::Asked; 5];
const ENDPOINT: Option<ScoreMode> = Some(ScoreMode::Endpoint);
const PATH: Option<ScoreMode> = Some(ScoreMode::Path);

type Spec = (&'static str, Form, From, &'static [Edges], Option<ScoreMode>);

fn case(store: Store, (name, form, from, hops, score): Spec) -> Case {
    let cut = if name == "seed_expand_rerank_fn" { Cut::All } else { Cut::TopK };
    Case { name, store, form, from, hops: hops.to_vec(), score, cut }
}

/// The rows of `both` on both stores, then the rows of `engine`.
fn rows(both: &[Spec], engine: &[Spec]) -> Vec<Case> {
    let both = both.iter().flat_map(|spec| [Store::Plain, Store::Hopbine].map(|s| case(s, *spec)));
    both.chain(engine.iter().map(|spec| case(Store::Hopbine, *spec))).collect()
}

/// `synthetic`: one hop from an entity, two hops, and one hop from seeds, unranked and ranked.
/// The rows with given seeds time the hop alone.
pub fn synthetic() -> Vec<Case> {
    use Form::{Fused, Join, OneCall, Set};
    use From::{Entity, GivenSeeds, Seeds};
    rows(
        &[
            ("hop1_entity", Set, Entity, ONE, None),
            ("hop1_entity_relation", Set, Entity, ONE_ASKED, None),
            ("hop2_join", Join, Entity, TWO, None),
            ("hop2_in", Set, Entity, TWO, None),
            ("seed_expand_join", Join, Seeds, ONE, None),
            ("seed_expand_in", Set, Seeds, ONE, None),
            ("seed_expand_in", Set, GivenSeeds, ONE, None),
            ("seed_expand_rerank_join", Join, Seeds, ONE, ENDPOINT),
            ("seed_expand_rerank_in", Set, Seeds, ONE, ENDPOINT),
            ("seed_expand_rel_in", Set, Seeds, ONE_ASKED, None),
            ("seed_expand_rerank_rel_in", Set, Seeds, ONE_ASKED, ENDPOINT),
        ],
        &[
            ("seed_expand_fn", Fused, Seeds, ONE, None),
            ("seed_expand_fn", Fused, GivenSeeds, ONE, None),
            ("seed_expand_rerank_fn", Fused, Seeds, ONE, ENDPOINT),
            ("seed_expand_rerank_topk_fn", Fused, Seeds, ONE, ENDPOINT),
            ("seed_graph_rag_scan_fn", OneCall, Seeds, ONE, ENDPOINT),
            ("seed_expand_rel_fn", Fused, Seeds, ONE_ASKED, None),
            ("seed_expand_rerank_rel_topk_fn", Fused, Seeds, ONE_ASKED, ENDPOINT),
            ("seed_graph_rag_rel_scan_fn", OneCall, Seeds, ONE_ASKED, ENDPOINT),
        ],
    )
}

/// `multihop`: two hops from seeds, by the last fact's distance and by the path's.
pub fn multihop() -> Vec<Case> {
    use Form::{Fused, OneCall, Pieces, Set};
    use From::{ExactSeeds, Seeds};
    rows(
        &[
            ("seed_expand2_rerank_rel_in", Set, Seeds, TWO_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_pathsum_in", Set, Seeds, TWO_ASKED, PATH),
        ],
        &[
            ("seed_expand2_rerank_rel_topk_fn", Pieces, Seeds, TWO_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_twohop_fn", Fused, Seeds, TWO_ASKED, ENDPOINT),
            ("seed_graph_rag_twohop_scan_fn", OneCall, Seeds, TWO_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_twohop_path_fn", Fused, Seeds, TWO_ASKED, PATH),
            ("seed_graph_rag_twohop_path_scan_fn", OneCall, Seeds, TWO_ASKED, PATH),
            ("seed_expand2_rerank_rel_exact_seed", Set, ExactSeeds, TWO_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_twohop_exact_seed", Fused, ExactSeeds, TWO_ASKED, ENDPOINT),
        ],
    )
}

/// `gutenberg`: one and two hops to the paragraphs that follow, by the last fact's distance.
pub fn gutenberg() -> Vec<Case> {
    use Form::{Fused, OneCall, Pieces, Set};
    use From::Seeds;
    rows(
        &[
            ("seed_expand_rel_in", Set, Seeds, ONE_ASKED, None),
            ("seed_expand_rerank_rel_in", Set, Seeds, ONE_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_in", Set, Seeds, TWO_ASKED, ENDPOINT),
        ],
        &[
            ("seed_expand_rel_fn", Fused, Seeds, ONE_ASKED, None),
            ("seed_expand_rerank_rel_topk_fn", Fused, Seeds, ONE_ASKED, ENDPOINT),
            ("seed_graph_rag_rel_scan_fn", OneCall, Seeds, ONE_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_topk_fn", Pieces, Seeds, TWO_ASKED, ENDPOINT),
            ("seed_expand2_rerank_rel_twohop_fn", Fused, Seeds, TWO_ASKED, ENDPOINT),
        ],
    )
}

/// `multidepth`: `depth` hops, 1 to 5, from seeds by the path's distance.
pub fn multidepth(depth: usize) -> Vec<Case> {
    let (plain, one_call) = match depth {
        1 => ("sql_path_depth_1", "graph_rag_path_depth_1"),
        2 => ("sql_path_depth_2", "graph_rag_path_depth_2"),
        3 => ("sql_path_depth_3", "graph_rag_path_depth_3"),
        4 => ("sql_path_depth_4", "graph_rag_path_depth_4"),
        5 => ("sql_path_depth_5", "graph_rag_path_depth_5"),
        _ => panic!("a path of {depth} hops has no case"),
    };
    let hops = &FIVE_ASKED[..depth];
    rows(
        &[(plain, Form::Set, From::Seeds, hops, PATH)],
        &[(one_call, Form::OneCall, From::Seeds, hops, PATH)],
    )
}

/// `butler_gate`: two hops from seeds by the path's distance.
pub fn butler_gate() -> Vec<Case> {
    use Form::{Fused, OneCall, Set};
    use From::Seeds;
    rows(
        &[("seed_expand2_pathsum_gate_in", Set, Seeds, TWO_ASKED, PATH)],
        &[
            ("seed_expand2_pathsum_gate_fn", Fused, Seeds, TWO_ASKED, PATH),
            ("seed_expand2_pathsum_gate_path_scan", OneCall, Seeds, TWO_ASKED, PATH),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all() -> Vec<Vec<Case>> {
        let paths = (1..=5).map(multidepth);
        paths.chain([synthetic(), gutenberg(), multihop(), butler_gate()]).collect()
    }

    #[test]
    fn a_row_is_named_by_case_store_and_seeds() {
        for cases in all() {
            let names: BTreeSet<_> =
                cases.iter().map(|c| (c.name, c.store == Store::Plain, c.from.name())).collect();
            assert_eq!(names.len(), cases.len());
        }
    }

    #[test]
    fn every_ranked_row_of_the_engine_has_a_plain_row_of_the_same_work() {
        for cases in all() {
            let (plain, ours): (Vec<_>, Vec<_>) =
                cases.iter().partition(|case| case.store == Store::Plain);
            for case in ours {
                assert!(plain.iter().any(|other| other.comparable(case)), "{case:?}");
            }
        }
    }
}
