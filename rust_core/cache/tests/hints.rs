//! What the fleet says about prefixes, case by case; and what the pool says back.

#[path = "support/faulty.rs"]
mod faulty;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use faulty::{Fault, Faulty};
use pyagent_cache::{AddOptions, BlockPool, CacheError, Explanation, PoolOptions, Reason, Salt, Supervised};

const BLOCK: usize = 4;

struct Clocked {
    pool: BlockPool,
    seconds: Arc<AtomicU64>,
}

impl Clocked {
    fn new(num_pages: u32) -> Self {
        let seconds = Arc::new(AtomicU64::new(0));
        let now = Arc::clone(&seconds);
        let pool = BlockPool::new(PoolOptions {
            block_tokens: BLOCK,
            clock: Box::new(move || now.load(Ordering::Relaxed) * 1_000_000),
            ..PoolOptions::new(num_pages)
        });
        let pool = pool.expect("a small pool");
        Self { pool, seconds }
    }

    fn wait(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Runs a sequence.
    fn run(&mut self, tokens: &[u32]) {
        let cached = self.pool.add(
            9,
            &[tokens, &[u32::MAX]].concat(),
            &Salt::default(),
            AddOptions::default(),
        );
        self.pool.reserve(9, tokens.len()).expect("room");
        self.pool.commit(9, &tokens[cached.expect("new")..]).expect("reserved");
        self.pool.release(9).expect("there");
        self.pool.check().expect("consistent");
    }

    fn cached(&self, tokens: &[u32]) -> usize {
        self.pool
            .lookup(&[tokens, &[u32::MAX]].concat(), &Salt::default())
            .num_tokens
    }

    fn explain(&self, tokens: &[u32]) -> Explanation {
        self.pool.explain(tokens, &Salt::default())
    }
}

/// So many blocks of text that start with `first`.
fn text(first: u32, num_blocks: usize) -> Vec<u32> {
    (first * 1000..).take(num_blocks * BLOCK).collect()
}

/// A pinned prefix outlives any pressure, and goes like others once it is unpinned.
#[test]
fn pin_outlives_pressure() {
    let mut clocked = Clocked::new(8);
    let (system, others) = (text(1, 3), [text(2, 5), text(3, 5)]);
    clocked.run(&system);
    assert_eq!(
        clocked
            .pool
            .pin("system", &[&system[..], &[5, 6]].concat(), &Salt::default()),
        Ok(12)
    );
    others.iter().for_each(|other| clocked.run(other));
    assert_eq!(
        (
            clocked.cached(&system),
            clocked.pool.stats().pinned,
            clocked.pool.stats().free
        ),
        (12, 3, 5)
    );
    clocked
        .pool
        .add(1, &[7], &Salt::default(), AddOptions::default())
        .expect("new");
    assert_eq!(
        clocked.pool.reserve(1, 24),
        Err(CacheError::OutOfPages { needed: 6, free: 5 })
    );
    assert!(clocked.pool.unpin("system") && !clocked.pool.unpin("system"));
    clocked.run(&text(4, 8));
    assert_eq!(clocked.cached(&system), 0);
}

/// More than half of the memory cannot be pinned; the refusal names the pin and changes nothing.
#[test]
fn pins_have_a_bound() {
    let mut clocked = Clocked::new(8);
    let (first, second) = (text(1, 3), text(2, 2));
    clocked.run(&first);
    clocked.run(&second);
    clocked.pool.pin("first", &first, &Salt::default()).expect("3 of 8");
    let refused = clocked.pool.pin("second", &second, &Salt::default());
    let (name, pinned, limit) = ("second".to_owned(), 5, 4);
    assert_eq!(refused, Err(CacheError::PinLimit { name, pinned, limit }));
    assert_eq!(clocked.pool.stats().pinned, 3);
    assert_eq!(
        clocked.pool.pin("first", &second, &Salt::default()),
        Ok(8),
        "it takes the other's place"
    );
    assert_eq!(clocked.pool.stats().pinned, 2);
    clocked.pool.set_limit(3).expect("less");
    assert_eq!(
        clocked.pool.pin("first", &second, &Salt::default()),
        Ok(8),
        "what is pinned may stay so, though it is more than half by now"
    );
    clocked.pool.check().expect("consistent");
}

/// Demoted prefixes go first, then others, then retained ones: the one expected latest before the one expected soon.
#[test]
fn hints_order_eviction() {
    let mut clocked = Clocked::new(10);
    let texts: Vec<Vec<u32>> = (1..6).map(|first| text(first, 2)).collect();
    texts.iter().for_each(|text| clocked.run(text));
    let salt = Salt::default();
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(clocked.pool.retain("soon", &texts[0], &salt, seconds(10)), 8);
    assert_eq!(clocked.pool.retain("later", &texts[1], &salt, seconds(60)), 8);
    assert_eq!(clocked.pool.retain("some day", &texts[2], &salt, None), 8);
    assert_eq!(clocked.pool.demote(&texts[4], 0, &salt), 8);
    let stats = clocked.pool.stats();
    assert_eq!((stats.retained, stats.demoted), (6, 2));
    for (limit, gone) in [(8, 4), (6, 3), (4, 2), (2, 1), (0, 0)] {
        clocked.pool.set_limit(limit).expect("less than there are");
        let is_cached: Vec<bool> = texts.iter().map(|text| clocked.cached(text) > 0).collect();
        assert!(
            !is_cached[gone] && is_cached.iter().filter(|&&is| is).count() == limit / 2,
            "{limit}: {is_cached:?}"
        );
        clocked.pool.check().expect("consistent");
    }
    let stats = clocked.pool.stats();
    assert_eq!(
        (stats.evicted_demoted, stats.evicted_policy, stats.evicted_retained),
        (2, 2, 6)
    );
}

/// What is overdue, or forgotten, is ordinary again; what is retained anew is expected anew.
#[test]
fn retaining_ends() {
    let mut clocked = Clocked::new(6);
    let texts: Vec<Vec<u32>> = (1..4).map(|first| text(first, 2)).collect();
    let salt = Salt::default();
    texts.iter().for_each(|text| clocked.run(text));
    for (name, text) in ["0", "1"].into_iter().zip(&texts) {
        clocked.pool.retain(name, text, &salt, Some(Duration::from_secs(5)));
    }
    clocked.wait(4);
    clocked.pool.retain("1", &texts[1], &salt, Some(Duration::from_secs(5)));
    clocked.wait(4);
    clocked.run(&text(7, 2));
    assert_eq!(
        (clocked.cached(&texts[2]), clocked.cached(&texts[0])),
        (0, 8),
        "overdue is as if used just now"
    );
    clocked.run(&text(8, 2));
    assert_eq!((clocked.cached(&texts[0]), clocked.cached(&texts[1])), (0, 8));
    assert!(clocked.pool.forget("1") && !clocked.pool.forget("1"));
    assert_eq!(clocked.pool.stats().retained, 0);
}

/// What was demoted while something else retained it goes once that is overdue: memory is never short for its sake.
#[test]
fn overdue_demoted_prefix_can_go() {
    let mut clocked = Clocked::new(4);
    let (tokens, salt) = (text(1, 2), Salt::default());
    clocked.run(&tokens);
    clocked.pool.retain("soon", &tokens, &salt, Some(Duration::ZERO));
    clocked.pool.retain("some day", &tokens, &salt, None);
    clocked.wait(1);
    assert_eq!(clocked.pool.demote_retained("some day"), 8);
    clocked.run(&text(2, 4));
    assert_eq!((clocked.cached(&tokens), clocked.pool.stats().evicted_demoted), (0, 2));
}

/// Demoting a conversation spares what others go on from, and using it again ends it.
#[test]
fn demote_spares_shared_blocks() {
    let mut clocked = Clocked::new(20);
    let system = text(1, 2);
    let (ended, other) = ([&system[..], &text(2, 2)].concat(), [&system[..], &text(3, 2)].concat());
    clocked.run(&ended);
    clocked.run(&other);
    assert_eq!(clocked.pool.demote(&ended, 0, &Salt::default()), 8);
    assert_eq!(clocked.pool.stats().demoted, 2);
    clocked.run(&ended);
    assert_eq!(clocked.pool.stats().demoted, 0);
    clocked.pool.retain("ended", &ended, &Salt::default(), None);
    assert_eq!(
        (
            clocked.pool.demote_retained("ended"),
            clocked.pool.demote_retained("ended")
        ),
        (8, 0)
    );
    assert_eq!((clocked.pool.stats().demoted, clocked.pool.stats().retained), (2, 0));
    clocked.pool.check().expect("consistent");
}

/// What several running sequences use stays as it is: only one of them was demoted.
#[test]
fn demote_spares_what_others_run_on() {
    let mut clocked = Clocked::new(20);
    let tokens = text(1, 2);
    clocked.run(&tokens);
    let prompt = [&tokens[..], &[u32::MAX]].concat();
    for seq in [1, 2] {
        let added = clocked.pool.add(seq, &prompt, &Salt::default(), AddOptions::default());
        assert_eq!(added, Ok(8));
    }
    assert_eq!(clocked.pool.demote(&tokens, 0, &Salt::default()), 0);
    clocked.pool.release(1).expect("there");
    assert_eq!(clocked.pool.stats().demoted, 0);
    clocked.pool.release(2).expect("there");
    assert_eq!(clocked.pool.stats().demoted, 0);
}

/// A finished conversation's beginning stays as it is when that is asked for, up to the block it ends in.
#[test]
fn demote_keeps_a_beginning() {
    let mut clocked = Clocked::new(20);
    let tokens = text(1, 4);
    clocked.run(&tokens);
    assert_eq!(clocked.pool.demote(&tokens, 5, &Salt::default()), 8);
    assert_eq!(clocked.pool.stats().demoted, 2);
    assert_eq!(clocked.pool.demote(&tokens, 1000, &Salt::default()), 0);
}

/// A conversation demoted while it runs goes first once it ends.
#[test]
fn demote_waits_for_the_end() {
    let mut clocked = Clocked::new(20);
    let tokens = text(1, 2);
    clocked
        .pool
        .add(1, &tokens, &Salt::default(), AddOptions::default())
        .expect("new");
    clocked.pool.reserve(1, 8).expect("room");
    clocked.pool.commit(1, &tokens).expect("reserved");
    assert_eq!(clocked.pool.demote(&tokens, 0, &Salt::default()), 8);
    assert_eq!(clocked.pool.stats().demoted, 0);
    clocked.pool.release(1).expect("there");
    assert_eq!(clocked.pool.stats().demoted, 2);
}

/// A prompt's explanation names how far it is cached and known, and why not further.
#[test]
fn explain_names_the_reason() {
    let mut clocked = Clocked::new(6);
    let tokens = text(1, 3);
    let explained = |cached_tokens, known_tokens, reason| Explanation {
        cached_tokens,
        known_tokens,
        reason,
    };
    assert_eq!(clocked.explain(&tokens), explained(0, 0, Reason::Cold));
    clocked.run(&tokens);
    assert_eq!(
        clocked.explain(&[&tokens[..], &[1]].concat()),
        explained(12, 12, Reason::Complete)
    );
    assert_eq!(clocked.explain(&tokens), explained(11, 12, Reason::Complete));
    assert_eq!(
        clocked.explain(&[&tokens[..], &text(5, 2)].concat()),
        explained(12, 12, Reason::Cold)
    );
    let mut changed = [&tokens[..], &tokens].concat();
    changed[6] = 0;
    assert_eq!(clocked.explain(&changed), explained(6, 6, Reason::Changed));
    changed[2] = 0;
    assert_eq!(clocked.explain(&changed), explained(2, 2, Reason::Changed));
    clocked.run(&text(2, 5));
    assert_eq!(
        clocked.explain(&[&tokens[..], &[1]].concat()),
        explained(4, 12, Reason::Evicted)
    );
    assert_eq!(clocked.explain(&[]), explained(0, 0, Reason::Complete));
}

/// A prompt that goes on from the end of a sequence is new from there; one that leaves its last block was changed.
#[test]
fn explain_sees_ends_of_sequences() {
    let mut clocked = Clocked::new(9);
    let tokens = [&text(1, 2)[..], &[5, 6, 7]].concat();
    clocked.run(&tokens);
    let explained = |more: &[u32], num_tokens: usize| {
        let explained = clocked.explain(&[&tokens[..num_tokens], more, &text(2, 1)].concat());
        (explained.cached_tokens, explained.known_tokens, explained.reason)
    };
    assert_eq!(explained(&[8], 11), (11, 11, Reason::Cold));
    assert_eq!(explained(&[8], 10), (10, 10, Reason::Changed));
}

/// Pins, retaining and demoting reach to the end of a sequence, also where that is no whole block.
#[test]
fn hints_cover_ends_of_sequences() {
    let mut clocked = Clocked::new(9);
    let (salt, kept, other) = (
        Salt::default(),
        [&text(1, 1)[..], &[5, 6]].concat(),
        [&text(2, 1)[..], &[5, 6]].concat(),
    );
    clocked.run(&kept);
    clocked.run(&other);
    assert_eq!(clocked.pool.retain("kept", &kept, &salt, None), 6);
    assert_eq!((clocked.pool.stats().retained, clocked.pool.forget("kept")), (2, true));
    assert_eq!(clocked.pool.pin("kept", &[&kept[..], &[9]].concat(), &salt), Ok(6));
    assert_eq!(clocked.pool.demote(&other, 0, &salt), 6);
    assert_eq!((clocked.pool.stats().pinned, clocked.pool.stats().demoted), (2, 2));
    clocked.run(&text(3, 7));
    assert_eq!((clocked.cached(&kept), clocked.cached(&other)), (6, 0));
    clocked.run(&[&kept[..], &[7, 8]].concat());
    assert_eq!(
        clocked.pool.stats().pinned,
        2,
        "a pinned end stays beside what goes on from it"
    );
    assert!(clocked.pool.unpin("kept"));
    assert_eq!((clocked.pool.stats().demoted, clocked.cached(&kept)), (1, 6));
    clocked.pool.check().expect("consistent");
}

/// The list of prefixes has one for each end, last used first, with who keeps it and how often it was found.
#[test]
fn prefixes_are_listed() {
    let mut clocked = Clocked::new(20);
    let system = text(1, 1);
    let (first, second) = ([&system[..], &text(2, 1)].concat(), [&system[..], &text(3, 2)].concat());
    clocked.run(&first);
    clocked.wait(3);
    clocked.run(&second);
    clocked.wait(2);
    clocked.run(&second);
    clocked.pool.pin("first", &first, &Salt::default()).expect("2 of 20");
    let prefixes = clocked.pool.prefixes(9, &[b""]);
    let told: Vec<_> = prefixes
        .iter()
        .map(|one| (one.tokens.len(), one.num_pages, one.is_pinned, one.hits))
        .collect();
    assert_eq!(told, [(12, 3, false, 1), (8, 2, true, 0)]);
    assert_eq!((&prefixes[0].tokens, prefixes[1].idle_micros), (&second, 5_000_000));
    assert_eq!(clocked.pool.prefixes(1, &[b""]).len(), 1);
}

/// A prompt counts once: when it is computed, not when it only asks, nor again when it comes back.
#[test]
fn prompts_count_once() {
    let mut clocked = Clocked::new(20);
    let tokens = text(1, 2);
    clocked.run(&tokens);
    let counts = |pool: &BlockPool| (pool.stats().hits_tokens, pool.stats().queried_tokens);
    assert_eq!(counts(&clocked.pool), (0, 9));
    for (is_resumed, is_computed, expected) in [(false, false, (0, 9)), (false, true, (4, 17)), (true, true, (4, 17))] {
        let options = AddOptions {
            is_resumed,
            ..AddOptions::default()
        };
        assert_eq!(clocked.pool.add(1, &tokens, &Salt::default(), options), Ok(4));
        clocked.pool.reserve(1, 8).expect("room");
        if is_computed {
            clocked.pool.commit(1, &tokens[4..6]).expect("reserved");
            clocked.pool.fork(1, 2).expect("room");
            clocked.pool.commit(2, &tokens[6..]).expect("room");
            clocked.pool.release(2).expect("there");
        }
        clocked.pool.release(1).expect("there");
        assert_eq!(counts(&clocked.pool), expected);
    }
}

/// A part that a sequence takes when it comes back counts as little as its whole blocks do.
#[test]
fn a_part_counts_once() {
    let mut clocked = Clocked::new(20);
    let tokens = text(1, 2);
    clocked.run(&tokens[..7]);
    let options = AddOptions {
        is_resumed: true,
        ..AddOptions::default()
    };
    let before = clocked.pool.stats();
    assert_eq!(clocked.pool.add(1, &tokens, &Salt::default(), options), Ok(4));
    assert_eq!(
        clocked
            .pool
            .take_part(1, &tokens[4..7])
            .map(|(num_tokens, _)| num_tokens),
        Ok(3)
    );
    clocked.pool.commit(1, &tokens[7..]).expect("the copy has room");
    let stats = clocked.pool.stats();
    assert_eq!(
        (stats.hits_tokens, stats.queried_tokens),
        (before.hits_tokens, before.queried_tokens)
    );
}

/// What a fork has of its parent was looked up once, also where it begins before anything is computed.
#[test]
fn a_fork_counts_no_prompt() {
    let mut clocked = Clocked::new(20);
    let tokens = text(1, 2);
    clocked.run(&tokens);
    clocked
        .pool
        .add(1, &tokens, &Salt::default(), AddOptions::default())
        .expect("new");
    clocked.pool.fork(1, 2).expect("room");
    for seq in [1, 2] {
        clocked.pool.reserve(seq, 8).expect("room");
        clocked.pool.commit(seq, &tokens[4..]).expect("reserved");
    }
    let stats = clocked.pool.stats();
    assert_eq!((stats.hits_tokens, stats.queried_tokens), (4, 9 + 8));
}

/// A policy that fails is put out of use with its reason; nothing is lost, and the oldest goes first from then on.
#[test]
fn failing_policy_is_replaced() {
    let faults = [
        (Fault::Raises, "out of calls"),
        (Fault::ChoosesHeld, "not among those released"),
        (Fault::ChoosesNothing, "chose nothing although"),
    ];
    for (fault, text_of_error) in faults {
        let calls_left = if matches!(fault, Fault::Raises) { 12 } else { 0 };
        let faulty = Faulty {
            calls_left,
            fault,
            released: vec![],
        };
        let pool = BlockPool::new(PoolOptions {
            block_tokens: BLOCK,
            policy: Some(Box::new(Supervised::new(Box::new(faulty), 6))),
            ..PoolOptions::new(6)
        });
        let mut clocked = Clocked {
            pool: pool.expect("a small pool"),
            seconds: Arc::default(),
        };
        let texts: Vec<Vec<u32>> = (1..5).map(|first| text(first, 2)).collect();
        texts[..3].iter().for_each(|text| clocked.run(text));
        assert_eq!(clocked.pool.stats().policy_error, None);
        clocked.run(&texts[3]);
        let error = clocked.pool.stats().policy_error.expect("it failed");
        assert!(error.contains(text_of_error), "{error}");
        assert_eq!(
            texts.iter().map(|text| clocked.cached(text)).collect::<Vec<_>>(),
            [0, 8, 8, 8]
        );
    }
}
