//! A model file's texts by number, such as its tokens, and what a tokenizer is built from.
//!
//! Knows nothing of files, nor of how text is cut into tokens.

use std::collections::HashMap;

/// Texts in one piece of memory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Texts {
    joined: String,
    /// Where each ends.
    ends: Vec<usize>,
}

/// A merge that is no line of a file of merges.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("merge {index}, {text:?}, is not two tokens with a space between")]
pub struct MergeError {
    /// Which one.
    pub index: usize,
    /// The merge.
    pub text: String,
}

impl<T: AsRef<str>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut all = Self::default();
        for text in texts {
            all.joined.push_str(text.as_ref());
            all.ends.push(all.joined.len());
        }
        all
    }
}

impl Texts {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.joined[start..end])
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// A JSON object with the number of each text.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(self.joined.len() + 12 * self.len() + 2);
        for (index, text) in self.iter().enumerate() {
            json.push(if index == 0 { b'{' } else { b',' });
            serde_json::to_writer(&mut json, text).expect("writing to memory");
            json.extend_from_slice(format!(":{index}").as_bytes());
        }
        if self.is_empty() {
            json.push(b'{');
        }
        json.push(b'}');
        json
    }

    /// These texts, each two tokens with a space between, as lines. One that would be taken for more or fewer tokens,
    /// for another line or for the header of such a file is refused.
    pub fn to_merge_lines(&self) -> Result<Vec<u8>, MergeError> {
        let mut lines = Vec::with_capacity(self.joined.len() + self.len());
        for (index, text) in self.iter().enumerate() {
            let is_pair = text.split(' ').count() == 2 && !text.starts_with(' ') && !text.ends_with(' ');
            if !is_pair || text.contains(['\n', '\r']) || text.starts_with("#version") {
                let text = text.to_owned();
                return Err(MergeError { index, text });
            }
            lines.extend_from_slice(text.as_bytes());
            lines.push(b'\n');
        }
        Ok(lines)
    }

    /// Every way to make one of the texts that `is_made` of two others, as numbers, the text with the best score first:
    /// what SentencePiece's BPE does by scores. The last of equal texts counts.
    pub fn merges_by_score(&self, is_made: impl Fn(usize) -> bool, scores: &[f32]) -> Vec<(u32, u32)> {
        let text_to_index: HashMap<&str, u32> = self.iter().zip(0..).collect();
        let mut made: Vec<usize> = (0..self.len().min(scores.len()))
            .filter(|&index| is_made(index))
            .collect();
        // Zero is added to make one of both zeros.
        made.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
        let mut merges = Vec::new();
        for text in made.into_iter().filter_map(|index| self.get(index)) {
            let first = merges.len();
            for (cut, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(cut);
                if let (Some(&left), Some(&right)) = (text_to_index.get(left), text_to_index.get(right)) {
                    merges.push((left, right));
                }
            }
            merges[first..].sort_unstable();
        }
        merges
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Texts are those they were made of, and their JSON says where each is.
        #[test]
        fn texts_are_kept(texts in prop::collection::vec(any::<String>(), 0..20)) {
            let kept: Texts = texts.iter().collect();
            prop_assert_eq!(kept.iter().collect::<Vec<_>>(), texts.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(kept.get(texts.len()), None);
            let read: HashMap<String, u32> = serde_json::from_slice(&kept.to_json()).unwrap();
            let expected: HashMap<String, u32> = texts.into_iter().zip(0..).collect();
            prop_assert_eq!(read, expected);
        }
    }

    /// Lines are the merges; what a reader of lines would take for something else is refused.
    #[test]
    fn merges_are_lines_or_refused() {
        let lines = |text: &str| [text].iter().collect::<Texts>().to_merge_lines();
        assert_eq!(lines("a bc"), Ok(b"a bc\n".to_vec()));
        for text in ["ab", "", " a", "a ", "a b c", "a\n b", "a\r b", "#version 3"] {
            let index = 0;
            let text = text.to_owned();
            assert_eq!(lines(&text), Err(MergeError { index, text }));
        }
    }

    /// The best token comes first, its ways in the order of their parts' numbers; what is not made has none.
    #[test]
    fn merges_go_by_score() {
        let texts: Texts = ["a", "b", "ab", "ba", "aba", "bab"].iter().collect();
        let scores = [0.0, 0.0, -2.0, -1.0, -0.5, f32::NAN];
        let merges = texts.merges_by_score(|index| index != 5, &scores);
        assert_eq!(merges, [(0, 3), (2, 0), (1, 0), (0, 1)]);
    }
}
