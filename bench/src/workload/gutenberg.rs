//! `gutenberg`: paragraphs of public-domain books. A book leads to each of its paragraphs, a
//! paragraph to the one after it; an edge is found by the text that it leads to.

use super::{Embed, Point, Query, SeedOn, Workload, WorkloadError};
use hopbine_proto::call::Relations;
use hopbine_proto::{Fact, FactKey, RelationId};
use std::io::Read;
use std::sync::Arc;

/// Books of the corpus.
pub const BOOKS_MAX: u32 = 128;
/// Paragraphs that each book has left after those that are skipped.
pub const PARAGRAPHS_MAX: u32 = 256;

/// Relation from a book to a paragraph.
const CONTAINS: u32 = 1;
/// Relation from a paragraph to the next one.
const NEXT: u32 = 2;
/// Paragraphs at the beginning of a book that are left out.
const SKIPPED: usize = 8;

/// Lines `book <TAB> paragraph <TAB> text`, both counted from 1. It is part of the program, so that
/// the workload needs no file beside it.
static CORPUS: &[u8] = include_bytes!("../../data/gutenberg/paragraphs.tsv.gz");

/// How much of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The first books: 1 to [`BOOKS_MAX`].
    pub books: u32,
    /// Paragraphs of each book: 1 to [`PARAGRAPHS_MAX`].
    pub paragraphs: u32,
    /// Components of an embedding.
    pub dim: u32,
}

/// Generates the facts book by book, first the edges to its paragraphs, then those between them,
/// and as questions the first `queries` edges between paragraphs in key order. `embed` must be the
/// `plain` lexical embedding.
///
/// Fails when the corpus is damaged or smaller than `size`.
pub fn generate(size: Size, queries: u32, embed: Embed) -> Result<Workload, WorkloadError> {
    let corpus = corpus()?;
    let mut facts = Vec::new();
    let mut first = u64::from(size.books) + 1;
    for (book, texts) in (1..).zip(kept(&corpus, size)?) {
        let paragraphs: Vec<Paragraph> =
            (first..).zip(texts).map(|(id, text)| Paragraph::new(id, text, embed)).collect();
        first += paragraphs.len() as u64;
        facts.extend(paragraphs.iter().map(|to| to.reached(book, CONTAINS)));
        facts.extend(paragraphs.windows(2).map(|pair| pair[1].reached(pair[0].id, NEXT)));
    }
    // Ids of paragraphs ascend, so that these come in key order.
    let next = facts.iter().filter(|fact| fact.key.relation == RelationId(NEXT));
    let queries = next.take(queries as usize).map(question).collect();
    Ok(Workload {
        name: "gutenberg",
        dim: size.dim as usize,
        facts,
        queries,
        seed_on: SeedOn::Target,
        point: Point { ann_k: 32, top_k: 10, m: 16, ef_construction: 64, ef_search: 32 },
    })
}

/// One paragraph as every edge to it tells it.
struct Paragraph {
    id: u64,
    embedding: Arc<[f32]>,
    payload: Arc<str>,
}

impl Paragraph {
    fn new(id: u64, text: &str, embed: Embed) -> Self {
        Self { id, embedding: embed(text).into(), payload: super::text_payload(text) }
    }

    /// The fact that leads here from `entity`.
    fn reached(&self, entity: u64, relation: u32) -> Fact {
        Fact {
            key: FactKey::new(entity, relation, self.id),
            names: None,
            embedding: Some(self.embedding.clone()),
            payload: Some(self.payload.clone()),
        }
    }
}

fn question(fact: &Fact) -> Query {
    let next = Relations::Of(vec![RelationId(NEXT)]);
    Query {
        text: format!("what follows paragraph {}", fact.key.target),
        vector: fact.embedding.clone().unwrap_or_default(),
        entity: fact.key.entity,
        hops: vec![next.clone(), next],
        answer: None,
    }
}

fn damaged(detail: impl ToString) -> WorkloadError {
    WorkloadError::Fixture { detail: detail.to_string() }
}

fn corpus() -> Result<String, WorkloadError> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(CORPUS).read_to_string(&mut text).map_err(damaged)?;
    Ok(text)
}

/// The paragraphs of each book that `size` asks for.
fn kept(corpus: &str, size: Size) -> Result<Vec<Vec<&str>>, WorkloadError> {
    let (books, paragraphs) = (size.books as usize, size.paragraphs as usize);
    let mut kept: Vec<Vec<&str>> = vec![Vec::with_capacity(paragraphs); books];
    for (at, line) in corpus.lines().enumerate() {
        let mut fields = line.splitn(3, '\t');
        let (book, place, text) = (number(fields.next()), number(fields.next()), fields.next());
        let (Some(book), Some(place), Some(text)) = (book, place, text) else {
            return Err(damaged(format!("line {} of the corpus has no paragraph", at + 1)));
        };
        let wanted =
            (1..=books).contains(&book) && place > SKIPPED && place <= SKIPPED + paragraphs;
        if wanted {
            kept[book - 1].push(text);
        }
    }
    match kept.iter().position(|texts| texts.len() != paragraphs) {
        Some(at) => Err(damaged(format!("book {} has fewer than {paragraphs}", at + 1))),
        None => Ok(kept),
    }
}

fn number(field: Option<&str>) -> Option<usize> {
    field?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::payload_text;

    /// The smallest embedding that tells texts apart by their length.
    fn generated(books: u32, paragraphs: u32) -> Workload {
        let size = Size { books, paragraphs, dim: 1 };
        generate(size, 3, &|text: &str| vec![text.len() as f32]).expect("the corpus is whole")
    }

    #[test]
    fn a_slice_has_two_edges_a_paragraph_but_for_the_first_of_each_book() {
        assert_eq!(generated(64, 128).facts.len(), 16_320);
        assert_eq!(generated(BOOKS_MAX, PARAGRAPHS_MAX).facts.len(), 65_408);
    }

    #[test]
    fn edges_are_numbered_book_by_book_and_tell_what_they_lead_to() {
        let workload = generated(2, 3);
        let keys: Vec<FactKey> = workload.facts.iter().map(|fact| fact.key).collect();
        let of_book = |book, first| {
            [
                FactKey::new(book, 1, first),
                FactKey::new(book, 1, first + 1),
                FactKey::new(book, 1, first + 2),
                FactKey::new(first, 2, first + 1),
                FactKey::new(first + 1, 2, first + 2),
            ]
        };
        assert_eq!(keys, [of_book(1, 3), of_book(2, 6)].concat());
        assert_eq!(workload.facts[3].payload, workload.facts[1].payload);
        let text = payload_text(workload.facts[0].payload.as_deref().expect("text"));
        assert!(text.expect("text").starts_with("Presently she began again."));
        let asked: Vec<u64> = workload.queries.iter().map(|query| query.entity.0).collect();
        assert_eq!(asked, [3, 4, 6]);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let size = Size { books: BOOKS_MAX, paragraphs: PARAGRAPHS_MAX + 1, dim: 1 };
        assert!(generate(size, 1, &|_: &str| vec![1.0]).is_err());
    }
}
