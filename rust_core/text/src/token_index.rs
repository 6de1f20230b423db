//! Which tokens came after these before: proposals for what a model writes next, from texts that it has read or written.
//!
//! A text's last tokens are looked for among the tokens before, the longest match first (prompt lookup, Saxena 2023; the
//! longest suffix, as in SuffixDecoding, arXiv 2411.04975). All places of the longest match say what came after them there,
//! and each next token is the one that most of those left agree on. What a suffix tree keeps in its nodes is counted here
//! when it is asked for, over a bounded number of places: adding a token costs the same whatever was added before, and
//! memory is a fixed number of bytes a token.

/// Places of a match that are looked at, the newest first.
const MOST_PLACES: usize = 64;
/// Tokens of a match at most: longer ones tell no more.
const MOST_MATCHED: usize = 64;
/// Stands between texts; no token of a vocabulary.
const BORDER: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// What came after a text's last tokens before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The tokens, next first.
    pub tokens: Vec<u32>,
    /// For each, which part of the places looked at went on so as far as it.
    pub shares: Vec<f32>,
    /// How many of the text's last tokens were found.
    pub num_matched: usize,
}

/// Texts, and where each short run of tokens is in them.
#[derive(Clone, Debug)]
pub struct TokenIndex {
    tokens: Vec<u32>,
    /// For each token, the place before it at which a run with the same key ends.
    older: Vec<u32>,
    /// For each key, the last place at which a run with it ends.
    heads: Vec<u32>,
    least: usize,
    most_tokens: usize,
}

impl TokenIndex {
    /// An index of the last `most_tokens` tokens or, for a while, half of them; matches have `least` tokens at least.
    pub fn new(least: usize, most_tokens: usize) -> Self {
        let least = least.clamp(1, MOST_MATCHED);
        Self {
            tokens: Vec::new(),
            older: Vec::new(),
            heads: Vec::new(),
            least,
            most_tokens: most_tokens.clamp(2 * least, NONE as usize / 4),
        }
    }

    /// Bytes held.
    pub fn num_bytes(&self) -> usize {
        (self.tokens.capacity() + self.older.capacity() + self.heads.capacity()) * size_of::<u32>()
    }

    /// Tokens held, borders included.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Goes on with the present text.
    pub fn extend(&mut self, tokens: &[u32]) {
        for &token in &tokens[tokens.len().saturating_sub(self.most_tokens)..] {
            self.push(token);
        }
    }

    /// Ends the present text: no match and no proposal reaches across.
    pub fn end_text(&mut self) {
        self.push(BORDER);
    }

    fn push(&mut self, token: u32) {
        if self.tokens.len() >= self.most_tokens {
            self.forget_half();
        }
        self.grow();
        self.tokens.push(token);
        self.older.push(NONE);
        self.link(self.tokens.len() - 1);
    }

    /// Files the run that ends at a place.
    fn link(&mut self, place: usize) {
        if let Some(key) = self.key(&self.tokens[..=place]) {
            self.older[place] = std::mem::replace(&mut self.heads[key], place as u32);
        }
    }

    /// The key of a text's last tokens.
    fn key(&self, text: &[u32]) -> Option<usize> {
        let run = text.get(text.len().checked_sub(self.least)?..)?;
        let mix = |hash: u64, token: &u32| {
            (hash ^ u64::from(*token))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        };
        let hash = run.iter().fold(0, mix).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = self.heads.len().checked_ilog2().filter(|bits| *bits > 0)?;
        Some((hash >> (64 - bits)) as usize)
    }

    /// Makes room for a token: a key for each that there is room for.
    fn grow(&mut self) {
        if self.tokens.len() < self.tokens.capacity() && !self.heads.is_empty() {
            return;
        }
        let room = (2 * self.tokens.len()).clamp(64, self.most_tokens.max(64));
        self.tokens.reserve_exact(room - self.tokens.len());
        self.older.reserve_exact(room - self.older.len());
        self.file_anew(room.next_power_of_two());
    }

    fn forget_half(&mut self) {
        self.tokens.drain(..self.tokens.len() / 2);
        self.file_anew(self.heads.len());
    }

    fn file_anew(&mut self, num_keys: usize) {
        self.heads.clear();
        self.heads.resize(num_keys, NONE);
        self.older.clear();
        self.older.resize(self.tokens.len(), NONE);
        (0..self.tokens.len()).for_each(|place| self.link(place));
    }

    /// What came after `text`'s last tokens where they were before, `most` tokens at most.
    pub fn propose(&self, text: &[u32], most: usize) -> Proposal {
        let (mut places, num_matched) = self.longest(text);
        let mut proposal = Proposal {
            num_matched,
            ..Proposal::default()
        };
        let num_places = places.len() as f32;
        while proposal.tokens.len() < most
            && let Some((token, count)) = self.commonest(&places)
        {
            proposal.tokens.push(token);
            proposal.shares.push(count as f32 / num_places);
            places.retain(|place| self.tokens.get(*place) == Some(&token));
            places.iter_mut().for_each(|place| *place += 1);
        }
        proposal
    }

    /// The places after the longest match, newest first, and its length.
    fn longest(&self, text: &[u32]) -> (Vec<usize>, usize) {
        let (mut found, mut longest) = (Vec::new(), 0);
        let mut next = self.key(text).map_or(NONE, |key| self.heads[key]);
        for _ in 0..MOST_PLACES {
            let place = next as usize;
            let Some(older) = self.older.get(place) else {
                break;
            };
            next = *older;
            if self.tokens.get(place + 1).is_none_or(|token| *token == BORDER) {
                continue;
            }
            let length = common_end(&self.tokens[..=place], text);
            if length < self.least || length < longest {
                continue;
            }
            if length > longest {
                longest = length;
                found.clear();
            }
            found.push(place + 1);
        }
        (found, longest)
    }

    /// The token at most of these places, the newest of equals, and at how many it is.
    fn commonest(&self, places: &[usize]) -> Option<(u32, usize)> {
        let mut counts: Vec<(u32, usize)> = Vec::new();
        for token in places.iter().filter_map(|place| self.tokens.get(*place)) {
            match counts.iter_mut().find(|(other, _)| other == token) {
                Some((_, count)) => *count += 1,
                None if *token != BORDER => counts.push((*token, 1)),
                None => {}
            }
        }
        counts.into_iter().rev().max_by_key(|(_, count)| *count)
    }
}

/// How many tokens two texts end with alike, up to [`MOST_MATCHED`].
fn common_end(left: &[u32], right: &[u32]) -> usize {
    let pairs = left.iter().rev().zip(right.iter().rev());
    pairs
        .take(MOST_MATCHED)
        .take_while(|(left, right)| left == right)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(texts: &[&[u32]]) -> TokenIndex {
        let mut index = TokenIndex::new(2, 1 << 20);
        for text in texts {
            index.extend(text);
            index.end_text();
        }
        index
    }

    /// The longest match wins over a newer one, and what most of its places agree on over the newest.
    #[test]
    fn longest_match_and_most_places_win() {
        let found = index(&[&[1, 2, 3, 4, 5, 6], &[9, 2, 3, 7, 8]]);
        let found = found.propose(&[0, 1, 2, 3], 8);
        assert_eq!((found.tokens, found.num_matched), (vec![4, 5, 6], 3));
        let found = index(&[&[1, 2, 3, 4], &[1, 2, 3, 5], &[1, 2, 7, 5]]).propose(&[1, 2], 8);
        assert_eq!(found.tokens, [3, 5]);
        assert_eq!(found.shares, [2.0 / 3.0, 1.0 / 3.0]);
    }

    /// What is too short, or only at the end of the text itself, matches nothing.
    #[test]
    fn no_match_proposes_nothing() {
        let mut found = TokenIndex::new(2, 100);
        assert_eq!(found.propose(&[1, 2], 4), Proposal::default());
        found.extend(&[7, 1, 2]);
        assert_eq!(found.propose(&[7, 1, 2], 4), Proposal::default());
        assert_eq!(found.propose(&[1], 4), Proposal::default());
        assert_eq!(found.propose(&[], 4), Proposal::default());
    }

    /// Proposals are those of a search through all tokens, whatever was forgotten, within the memory of the last tokens.
    #[test]
    fn agrees_with_a_plain_search_within_its_memory() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 60) as u32 % 3
        };
        let mut found = TokenIndex::new(3, 48);
        let mut held: Vec<u32> = Vec::new();
        for round in 0..4_000 {
            let token = if round % 31 == 30 { BORDER } else { random() };
            if held.len() >= 48 {
                held.drain(..held.len() / 2);
            }
            held.push(token);
            if token == BORDER {
                found.end_text()
            } else {
                found.extend(&[token])
            };
            assert_eq!(found.num_tokens(), held.len());
            let text: Vec<u32> = (0..6).map(|_| random()).collect();
            let ends: Vec<usize> = (0..held.len() - 1).filter(|end| held[end + 1] != BORDER).collect();
            let length = |end: &usize| common_end(&held[..=*end], &text);
            let longest = ends.iter().map(length).max().unwrap_or(0);
            let proposal = found.propose(&text, 4);
            if longest < 3 {
                assert_eq!(proposal, Proposal::default());
                continue;
            }
            assert_eq!(proposal.num_matched, longest);
            let nexts = ends
                .iter()
                .filter(|end| length(end) == longest)
                .map(|end| held[end + 1]);
            let nexts: Vec<u32> = nexts.collect();
            let count = |token: u32| nexts.iter().filter(|next| **next == token).count();
            let most = nexts.iter().map(|token| count(*token)).max().unwrap_or(0);
            assert_eq!(count(proposal.tokens[0]), most);
            assert_eq!(proposal.shares[0], most as f32 / nexts.len() as f32);
        }
        assert!(found.num_bytes() <= (48 + 48 + 64) * 4 * 2);
    }
}
