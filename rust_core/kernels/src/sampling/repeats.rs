//! What the end of a text has in common with earlier places in it, kept as the text grows: a token costs what there is of
//! its like before, and not the whole text again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::history::{TokenHasher, TokenMap};

/// The sequences of `size` tokens in a text, by all their tokens but the last.
#[derive(Clone, Debug)]
pub(super) struct Ngrams {
    size: usize,
    /// Where the last tokens of the sequences are whose others have this hash.
    ends: HashMap<u64, Vec<u32>, BuildHasherDefault<TokenHasher>>,
    /// Where a last token is that follows tokens of a hash: the same sequence is kept once.
    known: HashMap<(u64, u32), u32, BuildHasherDefault<TokenHasher>>,
}

impl Ngrams {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            ends: HashMap::default(),
            known: HashMap::default(),
        }
    }

    /// Takes in the last token of a text whose others it knows.
    pub(super) fn push(&mut self, tokens: &[u32]) {
        let Some(start) = tokens.len().checked_sub(self.size) else {
            return;
        };
        let end = tokens.len() - 1;
        let hash = hash_of(&tokens[start..end]);
        let known = *self.known.entry((hash, tokens[end])).or_insert(end as u32) as usize;
        if known == end || self.before(tokens, known) != self.before(tokens, end) {
            self.ends.entry(hash).or_default().push(end as u32);
        }
    }

    /// The tokens that would complete a sequence of the text a second time.
    pub(super) fn completing(&self, tokens: &[u32]) -> impl Iterator<Item = u32> {
        let tail = tokens.len().checked_sub(self.size - 1).map(|start| &tokens[start..]);
        let ends = tail
            .and_then(|tail| self.ends.get(&hash_of(tail)))
            .into_iter()
            .flatten();
        ends.filter(move |end| Some(self.before(tokens, **end as usize)) == tail)
            .map(|end| tokens[*end as usize])
    }

    /// The tokens of the sequence that ends there, without the last.
    fn before<'a>(&self, tokens: &'a [u32], end: usize) -> &'a [u32] {
        &tokens[end + 1 - self.size..end]
    }
}

fn hash_of(tokens: &[u32]) -> u64 {
    let mut hasher = TokenHasher::default();
    tokens.iter().for_each(|token| hasher.write_u32(*token));
    hasher.finish()
}

/// How far the end of a text repeats what is before each earlier place.
#[derive(Clone, Debug, Default)]
pub(super) struct Repetitions {
    /// Where each token is, in ascending order.
    places: TokenMap<Vec<u32>>,
    /// Places before which the text is as at its end, ascending, with how many tokens of it; to a breaker at most.
    lengths: Vec<(u32, u32)>,
}

impl Repetitions {
    /// Takes in a whole text: linear, by the Z function of the reversed text.
    pub(super) fn begin(&mut self, tokens: &[u32], breakers: &[u32]) {
        self.places.clear();
        for (place, token) in tokens.iter().enumerate() {
            self.places.entry(*token).or_default().push(place as u32);
        }
        let is_breaker = |token: &u32| breakers.binary_search(token).is_ok();
        let most = tokens.iter().rev().take_while(|token| !is_breaker(token)).count();
        let lengths = z_function(tokens.iter().rev().copied().collect());
        // At distance 0 the text is itself.
        let found = lengths.into_iter().enumerate().skip(1);
        let at_places = found.map(|(distance, length)| ((tokens.len() - distance) as u32, length.min(most) as u32));
        self.lengths = at_places.filter(|(_, length)| *length > 0).collect();
        self.lengths.reverse();
    }

    /// Takes in a token that stands at `place`, after all others.
    pub(super) fn push(&mut self, token: u32, place: usize, breakers: &[u32]) {
        let places = self.places.entry(token).or_default();
        let mut before = std::mem::take(&mut self.lengths).into_iter().peekable();
        if breakers.binary_search(&token).is_err() {
            for earlier in places.iter() {
                while before.peek().is_some_and(|(place, _)| place < earlier) {
                    before.next();
                }
                let length = before
                    .peek()
                    .filter(|(place, _)| place == earlier)
                    .map_or(0, |(_, length)| *length);
                self.lengths.push((earlier + 1, length + 1));
            }
        }
        places.push(place as u32);
    }

    /// The tokens that would go on with a repetition among the last `window` tokens (0 is all), each with the greatest number
    /// of tokens repeated before it.
    ///
    /// A repetition reaches back to the last breaker, and no breaker goes on with one.
    pub(super) fn found(&self, tokens: &[u32], window: usize, breakers: &[u32]) -> TokenMap<usize> {
        let start = if window == 0 {
            0
        } else {
            tokens.len().saturating_sub(window)
        };
        let mut token_to_length = TokenMap::default();
        for (place, length) in self.lengths.iter().rev() {
            let place = *place as usize;
            let Some(within) = place.checked_sub(start).filter(|within| *within > 0) else {
                break;
            };
            if breakers.binary_search(&tokens[place]).is_err() {
                let longest: &mut usize = token_to_length.entry(tokens[place]).or_default();
                *longest = within.min(*length as usize).max(*longest);
            }
        }
        token_to_length
    }
}

/// For each place, how many tokens from there on are the text's first.
fn z_function(text: Vec<u32>) -> Vec<usize> {
    let mut lengths = vec![0; text.len()];
    let (mut start, mut end) = (0, 0);
    for i in 1..text.len() {
        let known = if i < end { lengths[i - start].min(end - i) } else { 0 };
        let further = text[i + known..].iter().zip(&text[known..]).take_while(|(a, b)| a == b);
        lengths[i] = known + further.count();
        if i + lengths[i] > end {
            (start, end) = (i, i + lengths[i]);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By definition: each earlier place, and how far back it agrees with the end.
    fn brute_force(tokens: &[u32], breakers: &[u32]) -> TokenMap<usize> {
        let mut found = TokenMap::default();
        for next in 1..tokens.len() {
            let before = tokens[..next].iter().rev().zip(tokens.iter().rev());
            let length = before.take_while(|(a, b)| a == b && !breakers.contains(a)).count();
            if length > 0 && !breakers.contains(&tokens[next]) {
                let longest = found.entry(tokens[next]).or_insert(0);
                *longest = length.max(*longest);
            }
        }
        found
    }

    proptest! {
        /// The repetitions known as a text grows are those of the definition, in a window of any length.
        #[test]
        fn repetitions_are_those_of_the_definition(
            tokens in prop::collection::vec(0_u32..4, 0..60),
            breakers in prop::collection::btree_set(0_u32..4, 0..3),
            num_prompt in 0_usize..60,
            window in 0_usize..70,
        ) {
            let breakers: Vec<u32> = breakers.into_iter().collect();
            let num_prompt = num_prompt.min(tokens.len());
            let mut repetitions = Repetitions::default();
            repetitions.begin(&tokens[..num_prompt], &breakers);
            for (place, token) in tokens.iter().enumerate().skip(num_prompt) {
                repetitions.push(*token, place, &breakers);
            }
            let last = &tokens[if window == 0 { 0 } else { tokens.len().saturating_sub(window) }..];
            prop_assert_eq!(repetitions.found(&tokens, window, &breakers), brute_force(last, &breakers));
        }

        /// No sequence of `size` tokens comes twice when the tokens named are left out.
        #[test]
        fn ngrams_do_not_repeat(tokens in prop::collection::vec(0_u32..5, 0..60), size in 1_usize..5) {
            let mut ngrams = Ngrams::new(size);
            (1..=tokens.len()).for_each(|end| ngrams.push(&tokens[..end]));
            let banned: Vec<u32> = ngrams.completing(&tokens).collect();
            prop_assert_eq!(banned.len(), banned.iter().collect::<std::collections::BTreeSet<_>>().len());
            for next in 0..5 {
                let longer = [&tokens[..], &[next]].concat();
                let is_new = longer.len() < size || {
                    let last = &longer[longer.len() - size..];
                    !longer[..longer.len() - 1].windows(size).any(|ngram| ngram == last)
                };
                prop_assert_eq!(is_new, !banned.contains(&next));
            }
        }
    }
}
