//! A folder in the words of a family that is read here, as a plugin describes it: the family's `config.json`, what the family
//! calls the folder's tensors, and what layers add to scores.
//!
//! What a description says is checked as a file is: it may be wrong in any way.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyagent_kernels::attention::ScoreBias;

use crate::config::{ModelConfig, invalid};
use crate::safetensors::{JsonObject, parse_object};
use crate::weights::{ModelFileError, clipped};

/// Names that a description maps, at most; a family has some tens.
const MOST_NAMES: usize = 4_096;
/// Bytes of a name, at most.
const MOST_NAME_BYTES: usize = 1_024;
/// Digits of a number in a name, at most.
const MOST_DIGITS: usize = 9;

/// What a plugin says of a folder.
#[derive(Debug, Default)]
pub struct FamilyDescription {
    config: JsonObject,
    names: TensorNames,
    scores: Option<ScoreTables>,
}

impl FamilyDescription {
    /// A folder as `config`, a text as `config.json` is one, says, whose tensors go by the names that a pattern of `names`
    /// gives them.
    pub fn new(config: &str, names: &[(String, String)], scores: Option<ScoreTables>) -> Result<Self, ModelFileError> {
        let config = parse_object(config.as_bytes())?;
        let names = TensorNames::new(names)?;
        Ok(Self { config, names, scores })
    }

    /// The family's `config.json`.
    pub(crate) fn config(&self) -> &JsonObject {
        &self.config
    }

    /// What layers add to scores, in place of what the family adds.
    pub(crate) fn scores(&self) -> Option<&ScoreTables> {
        self.scores.as_ref()
    }

    /// Whether a layer has a table that is not there: the description is for headers alone.
    pub fn lacks_tables(&self) -> bool {
        self.scores
            .as_ref()
            .is_some_and(|scores| scores.num_tables() > scores.tables.len())
    }

    /// Bytes that the tables' numbers take once they are loaded.
    pub fn table_bytes(&self, config: &ModelConfig) -> usize {
        let num_tables = self.scores.as_ref().map_or(0, ScoreTables::num_tables);
        let numbers = num_tables.saturating_mul(config.num_heads * config.context_length);
        numbers.saturating_mul(size_of::<f32>())
    }

    /// Tensors by the family's names. An error where two of them would have the same.
    pub(crate) fn renamed<T>(&self, tensors: BTreeMap<String, T>) -> Result<BTreeMap<String, T>, ModelFileError> {
        let mut renamed = BTreeMap::<String, (String, T)>::new();
        for (name, tensor) in tensors {
            let new = self.names.of(&name)?;
            if let Some((other, _)) = renamed.get(&new) {
                let [other, name, new] = [other, &name, &new].map(|text| clipped(text));
                return Err(invalid(format!(
                    "tensors '{other}' and '{name}' would both be '{new}' by tensor_names; expected a name for each"
                )));
            }
            renamed.insert(new, (name, tensor));
        }
        Ok(renamed.into_iter().map(|(new, (_, tensor))| (new, tensor)).collect())
    }
}

/// What layers add to scores by distance, in tables that several may share.
#[derive(Clone, Debug, Default)]
pub struct ScoreTables {
    /// Of each layer, which table it has.
    pub of_layers: Vec<Option<usize>>,
    /// The tables; none where headers alone are read.
    pub tables: Vec<Arc<ScoreBias>>,
}

impl ScoreTables {
    fn num_tables(&self) -> usize {
        self.of_layers
            .iter()
            .flatten()
            .max()
            .map_or(0, |last| last.saturating_add(1))
    }

    /// What a layer adds.
    pub(crate) fn of_layer(&self, layer: usize) -> Option<Arc<ScoreBias>> {
        let table = self.of_layers.get(layer).copied().flatten()?;
        self.tables.get(table).cloned()
    }

    /// Refuses what is not for such a model.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), ModelFileError> {
        let (count, layers) = (self.of_layers.len(), config.num_layers);
        if count != layers {
            return Err(invalid(format!(
                "there are {count} score functions; expected one, or None, for each of {layers} layers"
            )));
        }
        let peculiar = config.peculiar_attention();
        let peculiar = peculiar.or_else(|| {
            config
                .encoder_decoder
                .is_some()
                .then(|| "an encoder-decoder's".to_owned())
        });
        if let Some(attention) = peculiar {
            return Err(invalid(format!(
                "score functions are not implemented where attention is {attention}"
            )));
        }
        let scored = (0..layers).filter(|layer| self.of_layers[*layer].is_some());
        if let Some(layer) = scored.into_iter().find(|layer| !config.has_attention(*layer)) {
            return Err(invalid(format!("layer {layer} has a score function, and no attention")));
        }
        match self.tables.iter().find(|table| table.num_heads() != config.num_heads) {
            None => Ok(()),
            Some(table) => Err(invalid(format!(
                "a score table is of {} heads; expected {}",
                table.num_heads(),
                config.num_heads
            ))),
        }
    }
}

/// What tensors are called, by patterns of the beginnings of their names.
///
/// A pattern is of whole parts between dots, of which `{layer}`, or any other word in braces, stands for a number. The
/// pattern of the most parts that a name begins with is replaced, and what follows is kept; of several, the one with the
/// fewest braces. A name that begins with none is kept.
#[derive(Debug, Default)]
struct TensorNames(Vec<NameRule>);

#[derive(Debug)]
struct NameRule {
    from: Vec<Part>,
    to: Vec<Part>,
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    /// A number, by its word.
    Number(String),
}

impl TensorNames {
    fn new(names: &[(String, String)]) -> Result<Self, ModelFileError> {
        if names.len() > MOST_NAMES {
            let count = names.len();
            return Err(invalid(format!(
                "tensor_names has {count} patterns; expected at most {MOST_NAMES}"
            )));
        }
        names.iter().map(NameRule::read).collect::<Result<_, _>>().map(Self)
    }

    fn of(&self, name: &str) -> Result<String, ModelFileError> {
        let parts: Vec<&str> = name.split('.').collect();
        let fitting = self.0.iter().filter(|rule| rule.fits(&parts));
        let Some(best) = fitting.clone().max_by_key(|rule| rule.rank()) else {
            return Ok(name.to_owned());
        };
        if fitting.filter(|rule| rule.rank() == best.rank()).count() > 1 {
            let name = clipped(name);
            return Err(invalid(format!(
                "two patterns of tensor_names are for the tensor '{name}'; expected one that says more"
            )));
        }
        Ok(best.replaced(&parts))
    }
}

impl NameRule {
    fn read((from, to): &(String, String)) -> Result<Self, ModelFileError> {
        let rule = Self {
            from: parts(from)?,
            to: parts(to)?,
        };
        let [numbers, others] = [&rule.from, &rule.to].map(|parts| numbers_of(parts));
        if numbers != others || numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            let (from, to) = (clipped(from), clipped(to));
            return Err(invalid(format!(
                "tensor_names maps '{from}' to '{to}'; expected the same words in braces in both, each once"
            )));
        }
        Ok(rule)
    }

    fn fits(&self, parts: &[&str]) -> bool {
        self.from.len() <= parts.len() && self.from.iter().zip(parts).all(|(part, text)| part.fits(text))
    }

    /// More says more.
    fn rank(&self) -> (usize, usize) {
        let texts = self.from.iter().filter(|part| matches!(part, Part::Text(_)));
        (self.from.len(), texts.count())
    }

    fn replaced(&self, parts: &[&str]) -> String {
        let number = |word: &Part| {
            self.from
                .iter()
                .position(|part| part == word)
                .map_or("", |place| parts[place])
        };
        let to = self.to.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Number(_) => number(part),
        });
        let rest = parts.iter().skip(self.from.len()).copied();
        to.chain(rest).collect::<Vec<_>>().join(".")
    }
}

impl Part {
    fn fits(&self, text: &str) -> bool {
        match self {
            Self::Text(own) => own == text,
            Self::Number(_) => {
                (1..=MOST_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
            }
        }
    }
}

/// The words in braces, in order.
fn numbers_of(parts: &[Part]) -> Vec<&str> {
    let mut words: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Number(word) => Some(word.as_str()),
            Part::Text(_) => None,
        })
        .collect();
    words.sort_unstable();
    words
}

fn parts(pattern: &str) -> Result<Vec<Part>, ModelFileError> {
    let wrong = |expected: String| {
        let pattern = clipped(pattern);
        invalid(format!("tensor_names has the pattern '{pattern}'; expected {expected}"))
    };
    if pattern.len() > MOST_NAME_BYTES {
        return Err(wrong(format!("at most {MOST_NAME_BYTES} bytes")));
    }
    let part = |text: &str| {
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        match inner {
            _ if text.is_empty() => None,
            None if text.contains(['{', '}']) => None,
            None => Some(Part::Text(text.to_owned())),
            Some(word) if word.is_empty() || word.contains(['{', '}']) => None,
            Some(word) => Some(Part::Number(word.to_owned())),
        }
    };
    let read: Option<Vec<Part>> = pattern.split('.').map(part).collect();
    read.ok_or_else(|| wrong("parts between dots, of which a number is a word in braces, as '{layer}'".to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What a pattern makes of a name, the pattern the other way round makes that name of again: nothing is lost.
        #[test]
        fn patterns_lose_nothing(
            from in prop::collection::vec(prop::sample::select(vec!["a", "b", "7", "{n}", "{m}"]), 1..4),
            to in prop::collection::vec(prop::sample::select(vec!["a", "c", "7", "{n}", "{m}"]), 1..4),
            rest in prop::collection::vec(prop::sample::select(vec!["a", "7", "12", "weight"]), 0..3),
            numbers in [0..99_u32, 0..99],
        ) {
            let (there, back) = ((from.join("."), to.join(".")), (to.join("."), from.join(".")));
            let (there, back) = (NameRule::read(&there), NameRule::read(&back));
            prop_assert_eq!(there.is_ok(), back.is_ok());
            if let (Ok(there), Ok(back)) = (there, back) {
                let name = from.iter().chain(&rest).copied().collect::<Vec<_>>().join(".");
                let name = name.replace("{n}", &numbers[0].to_string()).replace("{m}", &numbers[1].to_string());
                let applied = |rule: &NameRule, name: &str| {
                    let parts: Vec<&str> = name.split('.').collect();
                    rule.fits(&parts).then(|| rule.replaced(&parts))
                };
                let renamed = applied(&there, &name).expect("it begins so");
                prop_assert_eq!(applied(&back, &renamed), Some(name));
            }
        }

        /// Whatever texts are given, they are refused, or give names.
        #[test]
        fn any_texts_are_read(
            pairs in prop::collection::vec(("[a.{}0-9]{0,12}", "\\PC{0,12}"), 0..4),
            name in "[a.0-9]{0,12}",
        ) {
            if let Ok(names) = TensorNames::new(&pairs) {
                let _ = names.of(&name);
            }
        }
    }

    fn names(pairs: &[(&str, &str)]) -> Result<TensorNames, String> {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
            .collect();
        TensorNames::new(&pairs).map_err(|error| error.to_string())
    }

    /// The longest pattern of whole parts is replaced, numbers go along, and what no pattern begins stays as it is.
    #[test]
    fn names_are_those_of_the_longest_pattern() {
        let known = names(&[
            ("t", "model"),
            ("t.h.{layer}", "model.layers.{layer}"),
            ("t.h.{layer}.attn.q", "model.layers.{layer}.self_attn.q_proj"),
            ("t.h.0", "model.layers.7"),
            ("{a}.{b}.x", "y.{b}.{a}"),
            ("all.of.it", "whole"),
        ])
        .expect("patterns");
        for (name, expected) in [
            ("t.wte.weight", "model.wte.weight"),
            ("t.h.11.ln.weight", "model.layers.11.ln.weight"),
            ("t.h.11.attn.q.bias", "model.layers.11.self_attn.q_proj.bias"),
            ("t.h.11.attn.q2.bias", "model.layers.11.attn.q2.bias"),
            ("t.h.0.ln.weight", "model.layers.7.ln.weight"),
            ("t.h.0.attn.q.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("t.h.x.ln", "model.h.x.ln"),
            ("t.h.1234567890.ln", "model.h.1234567890.ln"),
            ("3.4.x.z", "y.4.3.z"),
            ("all.of.it", "whole"),
            ("all.of", "all.of"),
            ("tt.wte", "tt.wte"),
        ] {
            assert_eq!(known.of(name).expect("one name"), expected);
        }
    }

    /// What is no pattern, numbers that come from nowhere, and two patterns for a name are refused by name.
    #[test]
    fn patterns_that_say_no_name_are_refused() {
        for (from, to) in [
            ("", "a"),
            ("a..b", "c"),
            ("a.{", "b"),
            ("{}.a", "b"),
            ("a{layer}", "b"),
            ("a", "b."),
        ] {
            let said = names(&[(from, to)]).expect_err("no pattern");
            assert!(said.contains("expected parts between dots"), "{said}");
        }
        for (from, to) in [
            ("a", "b.{n}"),
            ("a.{n}", "b"),
            ("a.{n}", "b.{m}"),
            ("a.{n}.{n}", "b.{n}.{n}"),
        ] {
            let said = names(&[(from, to)]).expect_err("other numbers");
            assert!(said.contains("the same words in braces"), "{said}");
        }
        let said = names(&[(&"a".repeat(2_000), "b")]).expect_err("too long");
        assert!(said.contains("at most 1024 bytes") && said.len() < 400, "{said}");
        assert!(
            names(&[("a", "b"); 5_000])
                .expect_err("too many")
                .contains("5000 patterns")
        );
        let both = names(&[("a.{n}.0", "b.{n}"), ("a.0.{n}", "c.{n}")]).expect("patterns");
        let said = both.of("a.0.0").expect_err("two").to_string();
        assert!(
            said.contains("two patterns of tensor_names are for the tensor 'a.0.0'"),
            "{said}"
        );
        assert_eq!(both.of("a.0.1").expect("one"), "c.1");
    }

    /// Two tensors with one name are refused, also where one of them keeps its own.
    #[test]
    fn tensors_keep_apart() {
        let described = |pairs: &[(&str, &str)]| FamilyDescription {
            names: names(pairs).expect("patterns"),
            ..FamilyDescription::default()
        };
        let tensors = |all: &[&str]| all.iter().map(|name| ((*name).to_owned(), *name == "a.w")).collect();
        let renamed = described(&[("a", "b")])
            .renamed(tensors(&["a.w", "c.w"]))
            .expect("two names");
        assert_eq!(
            renamed,
            BTreeMap::from([("b.w".to_owned(), true), ("c.w".to_owned(), false)])
        );
        for pairs in [&[("a", "b")][..], &[("a", "c"), ("b", "c")]] {
            let said = described(pairs)
                .renamed(tensors(&["a.w", "b.w"]))
                .expect_err("one name")
                .to_string();
            assert!(said.contains("tensors 'a.w' and 'b.w' would both be"), "{said}");
        }
        // Swapped names do not meet on the way.
        let swapped = described(&[("a", "b"), ("b", "a")])
            .renamed(tensors(&["a.w", "b.w"]))
            .expect("two names");
        assert_eq!(
            swapped,
            BTreeMap::from([("b.w".to_owned(), true), ("a.w".to_owned(), false)])
        );
    }
}
