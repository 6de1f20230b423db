//! How often names stand in files, as whole words.

use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::duplicates::read;

/// How often each of `names` stands in the files as a whole word, in code, texts and comments alike; at most `u32::MAX`.
///
/// Files that cannot be read, or are longer than [`crate::duplicates::MAX_FILE_BYTES`], are passed over.
pub fn count_names(paths: &[PathBuf], names: &[String]) -> Vec<u32> {
    let mut counts: FxHashMap<&str, u32> = names.iter().map(|name| (name.as_str(), 0)).collect();
    for path in paths {
        count_words(&read(path), &mut counts);
    }
    names.iter().map(|name| counts[name.as_str()]).collect()
}

fn count_words(text: &str, counts: &mut FxHashMap<&str, u32>) {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
    for word in words {
        if let Some(count) = counts.get_mut(word) {
            *count = count.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_count() {
        let mut counts: FxHashMap<&str, u32> = [("run", 0), ("größe", 0), ("$x", 0)].into_iter().collect();
        count_words("run(); rerun run_it 'run' größe.$x", &mut counts);
        assert_eq!((counts["run"], counts["größe"], counts["$x"]), (2, 1, 1));
    }
}
