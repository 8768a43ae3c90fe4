//! The built-in lexical embedder: a hash of weighted words, no model.
//!
//! Every token has a fixed direction of signs, taken from a chain of SHA-256 blocks; a text's
//! vector is the weighted sum over its tokens, of length 1, with components of 6 decimals. Texts
//! that share words are near. Deterministic to the bit, so golden values hold everywhere.

use hopbine_proto::graph::Embedder;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens whose signs are remembered: at 384 dimensions and 10 letters about 10 MiB.
const CACHED_TOKENS_MAX: usize = 65_536;
/// Longer tokens are not remembered: no text repeats them, and the bound above is one of memory.
const CACHED_TOKEN_BYTES_MAX: usize = 128;
/// Below this length a sum of signs has no direction.
const NORM_MIN: f64 = 1e-8;

/// How a text is cut into weighted tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tokenizer {
    /// Runs of ASCII letters, digits and `'`, lower-cased; all of weight 1.
    Plain,
    /// As plain without a trailing `'s`; stop words weigh 0, the words of the reference
    /// workload's relations 2.5.
    Generic,
    /// Whole identifiers and their pieces; all of weight 1.
    CodeAware,
}

impl Tokenizer {
    /// The tokeniser of a graph's embedder. `lexical` is [`Tokenizer::Generic`], the only one with
    /// stop words; `None` when the graph has no built-in embedder.
    pub fn of(embedder: &Embedder) -> Option<Self> {
        match embedder {
            Embedder::Lexical => Some(Self::Generic),
            Embedder::LexicalCode => Some(Self::CodeAware),
            Embedder::None | Embedder::Http(_) => None,
        }
    }

    /// Tokens that count; later ones are dropped. Those of weight 0 count too.
    pub fn cap(self) -> usize {
        match self {
            Self::Plain | Self::Generic => 256,
            Self::CodeAware => 512,
        }
    }

    /// The first `cap` tokens of `text` with their weights, repetitions included; never empty.
    pub fn tokens(self, text: &str) -> Vec<(String, f64)> {
        let mut words = match self {
            Self::Plain => plain_words(text),
            Self::Generic => generic_words(text),
            Self::CodeAware => code_words(text),
        };
        if words.is_empty() {
            words.push(if text.is_empty() { "_".to_owned() } else { text.to_lowercase() });
        }
        words.truncate(self.cap());
        words
            .into_iter()
            .map(|word| {
                let weight = self.weight(&word);
                (word, weight)
            })
            .collect()
    }

    fn weight(self, token: &str) -> f64 {
        match (self, token) {
            (Self::Generic, "where" | "does" | "the" | "a" | "an" | "of" | "in") => 0.0,
            (Self::Generic, "parent" | "lives" | "live" | "city") => 2.5,
            _ => 1.0,
        }
    }
}

/// Maximal runs of characters that `belongs`, as written.
fn runs(text: &str, belongs: fn(char) -> bool) -> impl Iterator<Item = &str> {
    text.split(move |c| !belongs(c)).filter(|run| !run.is_empty())
}

fn plain_words(text: &str) -> Vec<String> {
    runs(text, |c| c.is_ascii_alphanumeric() || c == '\'').map(str::to_ascii_lowercase).collect()
}

fn generic_words(text: &str) -> Vec<String> {
    let mut words = plain_words(text);
    for word in &mut words {
        if word.ends_with("'s") {
            word.truncate(word.len() - 2);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn code_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in runs(text, |c| c.is_ascii_alphanumeric() || c == '_' || c == '\'') {
        let whole = run.to_ascii_lowercase();
        let pieces = identifier_pieces(run);
        words.push(whole.clone());
        words.extend(pieces.into_iter().filter(|piece| *piece != whole));
    }
    words
}

/// The words inside an identifier, lower-cased: `HTTPServer_id2` gives http, server, id, 2.
fn identifier_pieces(run: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    for part in run.split('_').filter(|part| !part.is_empty()) {
        let before = pieces.len();
        let mut rest = part;
        while !rest.is_empty() {
            let (piece, used) = next_piece(rest);
            if !piece.is_empty() {
                pieces.push(piece.to_ascii_lowercase());
            }
            rest = &rest[used..];
        }
        if pieces.len() == before {
            pieces.push(part.to_ascii_lowercase());
        }
    }
    pieces
}

/// The piece that `rest` begins with (empty when its first character is skipped) and the bytes
/// that it takes. `rest` is ASCII and not empty.
fn next_piece(rest: &str) -> (&str, usize) {
    let bytes = rest.as_bytes();
    let count = |from: usize, kind: fn(&u8) -> bool| {
        bytes[from..].iter().take_while(|byte| kind(byte)).count()
    };
    let upper = count(0, u8::is_ascii_uppercase);
    if upper >= 1 && bytes.get(upper).is_none_or(|next| *next == b'\'') {
        return (&rest[..upper], upper);
    }
    if upper >= 2 && bytes[upper].is_ascii_lowercase() {
        return (&rest[..upper - 1], upper - 1);
    }
    let first = usize::from(upper >= 1);
    let lower = count(first, u8::is_ascii_lowercase);
    if lower >= 1 {
        return (&rest[..first + lower], first + lower);
    }
    let digits = count(0, u8::is_ascii_digit);
    if digits >= 1 {
        return (&rest[..digits], digits);
    }
    ("", 1)
}

/// Signs of one token: bit `i % 64` of word `i / 64` is set where component `i` is +1.
fn signs(token: &str, dim: usize) -> Arc<[u64]> {
    let mut words = Vec::with_capacity(dim.div_ceil(256) * 4);
    let mut block = Sha256::digest(token.as_bytes());
    loop {
        // Bits count from the least significant of each byte, so little-endian words keep order.
        words.extend(block.chunks_exact(8).map(|bytes| {
            u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes have 8 bytes"))
        }));
        if words.len() * 64 >= dim {
            return words.into();
        }
        block = Sha256::digest(block);
    }
}

/// The vector of weighted tokens, of length 1, or all zeros when they have no direction.
pub fn embed<T: AsRef<str>>(tokens: &[(T, f64)], dim: usize) -> Vec<f32> {
    let signed = tokens.iter().filter(|(_, weight)| *weight != 0.0);
    let mut sum = vec![0.0; dim];
    for (token, weight) in signed {
        add_signs(&mut sum, &signs(token.as_ref(), dim), *weight);
    }
    unit(&sum)
}

fn add_signs(sum: &mut [f64], signs: &[u64], weight: f64) {
    for (chunk, word) in sum.chunks_mut(64).zip(signs) {
        for (i, component) in chunk.iter_mut().enumerate() {
            let up = word >> i & 1 == 1;
            *component += if up { weight } else { -weight };
        }
    }
}

fn unit(sum: &[f64]) -> Vec<f32> {
    let norm = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    if norm < NORM_MIN {
        return vec![0.0; sum.len()];
    }
    sum.iter().map(|x| round_6(x / norm)).collect()
}

/// `x` rounded to 6 decimals, ties to even on its exact value, then to the nearest f32.
pub fn round_6(x: f64) -> f32 {
    let scaled = x * 1e6;
    let whole = scaled.round();
    // Away from a tie the product's own rounding cannot matter, and a quotient of at most 9 digits
    // by 10^6 is too far from any midpoint of two f32 for its f64 rounding to matter.
    if whole.abs() < 1e9 && ((scaled - whole).abs() - 0.5).abs() > 1e-6 {
        return (whole / 1e6) as f32;
    }
    format!("{x:.6}").parse().expect("a formatted number parses")
}

/// A tokeniser for one dimension that remembers the signs of the tokens it met. Cheap to share.
pub struct Lexical {
    tokenizer: Tokenizer,
    dim: usize,
    seen: Mutex<HashMap<String, Arc<[u64]>>>,
}

impl Lexical {
    /// An embedder into `dim` components.
    pub fn new(tokenizer: Tokenizer, dim: usize) -> Self {
        Self { tokenizer, dim, seen: Mutex::new(HashMap::new()) }
    }

    /// The same vector as [`embed`] of the tokens of `text`: all zeros when nothing in it counts.
    pub fn embed(&self, text: &str) -> Vec<f32> {
        let mut sum = vec![0.0; self.dim];
        for (token, weight) in self.tokenizer.tokens(text) {
            if weight != 0.0 {
                add_signs(&mut sum, &self.signs(token), weight);
            }
        }
        unit(&sum)
    }

    fn signs(&self, token: String) -> Arc<[u64]> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get(&token) {
            return known.clone();
        }
        let new = signs(&token, self.dim);
        if token.len() > CACHED_TOKEN_BYTES_MAX {
            return new;
        }
        if seen.len() >= CACHED_TOKENS_MAX {
            seen.clear();
        }
        seen.insert(token, new.clone());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sign_text(token: &str, range: std::ops::Range<usize>) -> String {
        let words = signs(token, range.end);
        range.map(|i| if words[i / 64] >> (i % 64) & 1 == 1 { '+' } else { '-' }).collect()
    }

    fn words(tokenizer: Tokenizer, text: &str) -> String {
        let tokens = tokenizer.tokens(text);
        tokens.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn signs_follow_the_golden_values() {
        assert_eq!(sign_text("person", 0..16), "---+++-----+-+-+");
        assert_eq!(sign_text("person", 256..264), "--+-++-+");
    }

    #[test]
    fn identifiers_are_cut_as_the_examples_say() {
        let code = |text| words(Tokenizer::CodeAware, text);
        assert_eq!(code("HTTPServer"), "httpserver http server");
        assert_eq!(code("parse_manifest2X"), "parse_manifest2x parse manifest 2 x");
        assert_eq!(code("want_"), "want_ want");
        assert_eq!(code("don't"), "don't don t");
        assert_eq!(code("UTF8"), "utf8 8");
        assert_eq!(code("___"), "___");
        assert_eq!(code("''"), "''");
    }

    #[test]
    fn generic_words_lose_their_possessive_and_keep_underscores_out() {
        assert_eq!(words(Tokenizer::Generic, "Person_17's cat, 's"), "person 17 cat");
        assert_eq!(words(Tokenizer::Plain, "It's Person_17"), "it's person 17");
        assert_eq!(words(Tokenizer::Generic, ""), "_");
        assert_eq!(words(Tokenizer::Generic, "ÄÖ"), "äö");
        assert_eq!(words(Tokenizer::Plain, &"x ".repeat(300)).len(), 256 * 2 - 1);
    }

    #[test]
    fn facts_and_questions_have_their_golden_vectors() {
        let embedder = Lexical::new(Tokenizer::Generic, 384);
        let first = |text: &str| embedder.embed(text)[..4].to_vec();
        let fact = "Person_1 has parent Parent_1.";
        assert_eq!(first(fact), [-0.027854, -0.046424, 0.009285, -0.027854]);
        let fact = "Parent_1 lives in City_670487.";
        assert_eq!(first(fact), [-0.028303, -0.005661, -0.028303, -0.062267]);
        let question = "Where does the parent of Person_3901 live?";
        assert_eq!(first(question), [-0.069458, -0.097241, 0.069458, -0.069458]);
    }

    #[test]
    fn only_stop_words_embed_to_zero() {
        assert!(
            Lexical::new(Tokenizer::Generic, 8).embed("Where in the").iter().all(|x| *x == 0.0)
        );
    }

    #[test]
    fn dimensions_need_not_fill_a_block() {
        for dim in [1, 63, 64, 65, 255, 256, 257, 4096] {
            assert_eq!(embed(&[("word", 1.0)], dim).len(), dim);
        }
    }

    proptest! {
        #[test]
        fn the_remembered_signs_change_nothing(
            texts in proptest::collection::vec(".{0,40}", 1..4),
        ) {
            let embedder = Lexical::new(Tokenizer::CodeAware, 100);
            for text in texts.iter().chain(&texts) {
                let afresh = embed(&Tokenizer::CodeAware.tokens(text), 100);
                prop_assert_eq!(embedder.embed(text), afresh);
            }
        }

        #[test]
        fn rounding_equals_the_decimal_text(
            x in prop_oneof![
                -1.5f64..1.5,
                (-2_000_001i32..2_000_001).prop_map(|n| f64::from(n) / 2e6),
            ],
        ) {
            let text: f32 = format!("{x:.6}").parse().expect("a number");
            prop_assert_eq!(round_6(x).to_bits(), text.to_bits());
        }
    }
}
