//! What a prefix hit may and may not return, case by case.

use proptest::prelude::*;
use pyagent_cache::{AddOptions, BlockHasher, BlockPool, CacheError, Group, GroupKind, PoolOptions, Salt};

const BLOCK: usize = 4;

/// The worst hash there is: everything collides with everything.
struct Colliding;

impl BlockHasher for Colliding {
    fn root(&self, _salt: &Salt) -> u64 {
        7
    }

    fn block(&self, _parent: u64, _tokens: &[u32]) -> u64 {
        7
    }
}

fn options(num_pages: u32) -> PoolOptions {
    PoolOptions {
        block_tokens: BLOCK,
        ..PoolOptions::new(num_pages)
    }
}

fn pool(num_pages: u32) -> BlockPool {
    BlockPool::new(options(num_pages)).expect("a small pool")
}

fn tenant(name: &str) -> Salt {
    Salt {
        tenant: name.as_bytes().into(),
        ..Salt::default()
    }
}

/// Runs a whole sequence: adds it, computes all its tokens, returns how many were cached.
fn compute(pool: &mut BlockPool, seq: u64, tokens: &[u32], salt: &Salt) -> usize {
    let num_cached = pool
        .add(seq, tokens, salt, AddOptions::default())
        .expect("a new sequence");
    pool.reserve(seq, tokens.len()).expect("room");
    pool.commit(seq, &tokens[num_cached..]).expect("reserved");
    pool.check().expect("consistent");
    num_cached
}

fn run(pool: &mut BlockPool, seq: u64, tokens: &[u32], salt: &Salt) -> usize {
    let num_cached = compute(pool, seq, tokens, salt);
    pool.release(seq).expect("there");
    num_cached
}

/// A prompt that was computed before is cached but for its last token's block.
#[test]
fn add_leaves_a_token_to_compute() {
    let (mut pool, salt) = (pool(8), Salt::default());
    let prompt: Vec<u32> = (0..8).collect();
    assert_eq!(run(&mut pool, 1, &prompt, &salt), 0);
    assert_eq!(
        pool.lookup(&prompt, &salt).num_tokens,
        7,
        "with what can be taken of the last block"
    );
    assert_eq!(pool.add(2, &prompt, &salt, AddOptions::default()), Ok(4));
    assert_eq!(
        pool.add(3, &[&prompt[..], &[9]].concat(), &salt, AddOptions::default()),
        Ok(8)
    );
    assert_eq!(pool.add(4, &prompt[..1], &salt, AddOptions::default()), Ok(0));
}

/// With a hasher under which everything collides, hits are still exactly the right blocks.
#[test]
fn collision_never_returns_other_text() {
    let mut pool = BlockPool::new(PoolOptions {
        hasher: Box::new(Colliding),
        ..options(32)
    })
    .expect("a small pool");
    let (red, blue) = (tenant("red"), tenant("blue"));
    assert_eq!(run(&mut pool, 1, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &red), 0);
    assert_eq!(run(&mut pool, 2, &[9, 2, 3, 4, 5, 6, 7, 8, 9], &red), 0, "other tokens");
    assert_eq!(
        run(&mut pool, 3, &[5, 6, 7, 8, 1], &red),
        0,
        "the same tokens after another parent"
    );
    assert_eq!(
        run(&mut pool, 4, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &blue),
        0,
        "another tenant"
    );
    assert_eq!(run(&mut pool, 5, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &red), 8);
    assert_eq!(run(&mut pool, 6, &[9, 2, 3, 4, 5, 6, 7, 8, 9], &red), 8);
    assert_eq!(run(&mut pool, 7, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &blue), 8);
}

/// Every part of the salt separates sequences with the same tokens.
#[test]
fn salt_parts_each_separate() {
    let mut pool = pool(32);
    let salts = [
        Salt::default(),
        Salt {
            adapter_id: 1,
            ..Salt::default()
        },
        Salt {
            media_hash: [1].into(),
            ..Salt::default()
        },
        Salt {
            tenant: [1].into(),
            ..Salt::default()
        },
    ];
    for round in 0..2 {
        for (number, salt) in salts.iter().enumerate() {
            let cached = run(&mut pool, number as u64, &[1, 2, 3, 4, 5], salt);
            assert_eq!(cached, round * 4, "salt {number}, round {round}");
        }
    }
}

/// Tenants find what they computed and what is common, whole blocks and parts; never each other's.
#[test]
fn tenants_see_their_own_and_what_is_common() {
    for hasher in [None, Some(Box::new(Colliding) as Box<dyn BlockHasher>)] {
        let mut options = options(64);
        if let Some(hasher) = hasher {
            options.hasher = hasher;
        }
        let mut pool = BlockPool::new(options).expect("a small pool");
        let (common, red, blue) = (tenant("*"), tenant("red"), tenant("blue"));
        let system = [1, 2, 3, 4, 5, 6, 7, 8];
        let asked = |question: u32| [&system[..], &[question; 8]].concat();
        let found = |pool: &BlockPool, tokens: &[u32], salt: &Salt| pool.lookup(tokens, salt).num_tokens;
        run(&mut pool, 1, &system, &common);
        assert_eq!(run(&mut pool, 2, &asked(20), &red), 8);
        let told: Vec<_> = [&common, &red, &blue].map(|salt| found(&pool, &asked(20), salt)).into();
        assert_eq!(told, [8, 15, 8]);
        assert_eq!(pool.explain(&asked(20), &blue).cached_tokens, 8);
        assert_eq!(pool.explain(&asked(20), &blue).known_tokens, 8);
        assert_eq!(run(&mut pool, 3, &asked(20), &blue), 8);
        assert_eq!(found(&pool, &asked(20), &blue), 15);
        assert_eq!(pool.prefixes(9, &[b"red"]).len(), 1);
        assert_eq!(pool.prefixes(9, &[b"green"]).len(), 0);
        assert_eq!(
            pool.prefixes(9, &[b"*"])[0].tokens,
            system,
            "that others go on from it does not show"
        );
    }
}

/// That another tenant's blocks after a common prefix were evicted is not remembered for anybody else.
#[test]
fn evictions_are_remembered_for_their_tenant() {
    let mut pool = pool(5);
    let system = [1, 2, 3, 4];
    run(&mut pool, 1, &system, &tenant("*"));
    pool.pin("system", &system, &tenant("*")).expect("one page");
    let asked = [&system[..], &[20; 9]].concat();
    run(&mut pool, 2, &asked, &tenant("red"));
    pool.set_limit(1).expect("less");
    pool.set_limit(5).expect("as before");
    assert_eq!(pool.explain(&asked, &tenant("red")).known_tokens, 12);
    assert_eq!(pool.explain(&asked, &tenant("blue")).known_tokens, 4);
}

/// Sequences that compute the same block at the same time end up sharing one.
#[test]
fn commit_shares_identical_blocks() {
    let (mut pool, salt) = (pool(8), Salt::default());
    for seq in [1, 2] {
        assert_eq!(pool.add(seq, &[1, 2, 3, 4, 5], &salt, AddOptions::default()), Ok(0));
        pool.reserve(seq, 5).expect("room");
    }
    for seq in [1, 2] {
        pool.commit(seq, &[1, 2, 3, 4, 5]).expect("reserved");
    }
    assert_eq!(pool.table(1).expect("there")[0], pool.table(2).expect("there")[0]);
    assert_eq!(pool.stats().active, 3);
    pool.check().expect("consistent");
}

/// Eviction takes the least recently released prefix, its tail first, and only when no empty block is left.
#[test]
fn eviction_takes_oldest_tail_first() {
    let (mut pool, salt) = (pool(7), Salt::default());
    let old: Vec<u32> = (0..9).collect();
    let new: Vec<u32> = (100..109).collect();
    run(&mut pool, 1, &old, &salt);
    run(&mut pool, 2, &new, &salt);
    assert_eq!((pool.stats().cached, pool.stats().evictions()), (6, 0));
    compute(&mut pool, 3, &(200..212).collect::<Vec<u32>>(), &salt);
    assert_eq!(pool.stats().evictions(), 2);
    assert_eq!(pool.lookup(&old, &salt).num_tokens, 4, "the head outlives the tail");
    assert_eq!(pool.lookup(&new, &salt).num_tokens, 8);
}

/// Adds a prompt and takes what is cached of its next block; returns how many tokens need no computing, and the copies.
fn start(pool: &mut BlockPool, seq: u64, prompt: &[u32], salt: &Salt) -> (usize, Vec<(u32, u32)>) {
    let found = pool.lookup(prompt, salt).num_tokens;
    let whole = pool.add(seq, prompt, salt, AddOptions::default()).expect("new");
    let next = &prompt[whole..prompt.len() - 1];
    let (num_tokens, copies) = pool.take_part(seq, next).expect("room");
    assert_eq!(found, whole + num_tokens);
    assert_eq!(pool.tokens(seq), Ok(&prompt[..found]));
    pool.check().expect("consistent");
    (found, copies)
}

/// What a sequence leaves that is no whole block is taken by copy, and so is the beginning of a whole one; the copy
/// belongs to whoever took it.
#[test]
fn part_of_a_block_is_copied() {
    let (mut pool, salt) = (pool(16), Salt::default());
    compute(&mut pool, 1, &[1, 2, 3, 4, 5, 6, 7], &salt);
    let tail = pool.table(1).expect("there")[1];
    assert_eq!(pool.lookup(&[1, 2, 3, 4, 5, 6, 7, 8], &salt).num_tokens, 4, "it runs");
    pool.release(1).expect("there");
    let (found, copies) = start(&mut pool, 2, &[1, 2, 3, 4, 5, 6, 7, 8], &salt);
    assert_eq!(
        (found, &copies[..]),
        (7, &[(tail, pool.table(2).expect("there")[1])][..])
    );
    pool.commit(2, &[8]).expect("the copy has room");
    let whole = pool.table(2).expect("there")[1];
    let (found, copies) = start(&mut pool, 3, &[1, 2, 3, 4, 5, 60, 7], &salt);
    assert_eq!((found, copies[0].0), (5, whole));
    assert_eq!(start(&mut pool, 4, &[1, 2, 30, 4], &salt).0, 2);
    assert_eq!(start(&mut pool, 5, &[9, 2, 3, 4], &salt), (0, vec![]));
    assert_eq!(start(&mut pool, 6, &[1, 2, 3, 4, 5, 6], &tenant("red")), (0, vec![]));
    let stats = pool.stats();
    assert_eq!(
        (stats.hits_tokens, stats.queried_tokens),
        (7, 7 + 8),
        "of those computed"
    );
    assert_eq!(
        pool.take_part(3, &[60]),
        Ok((0, vec![])),
        "it is in the middle of a block"
    );
}

/// A sequence that has room for more already takes no part: what it took would lie behind that room.
#[test]
fn part_comes_before_room() {
    let (mut pool, salt) = (pool(16), Salt::default());
    run(&mut pool, 1, &[1, 2, 3, 4, 5, 6, 7], &salt);
    pool.add(2, &[1, 2, 3, 4, 5, 6, 9], &salt, AddOptions::default())
        .expect("new");
    pool.reserve(2, 7).expect("room");
    assert_eq!(pool.take_part(2, &[5, 6]), Ok((0, vec![])));
    assert_eq!((pool.num_tokens(2), pool.table(2).map(<[u32]>::len)), (Ok(4), Ok(2)));
    pool.commit(2, &[5, 6, 9]).expect("reserved");
    pool.check().expect("consistent");
}

/// A part of a block that has no room leaves the sequence as it is.
#[test]
fn part_needs_room() {
    let (mut pool, salt) = (pool(2), Salt::default());
    run(&mut pool, 1, &[1, 2, 3], &salt);
    compute(&mut pool, 2, &[7, 8, 9, 7, 8, 9, 7], &salt);
    pool.add(3, &[7, 8, 9, 1], &salt, AddOptions::default()).expect("new");
    assert_eq!(
        pool.take_part(3, &[7, 8, 9]),
        Err(CacheError::OutOfPages { needed: 1, free: 0 })
    );
    assert_eq!(pool.num_tokens(3), Ok(0));
    pool.check().expect("consistent");
}

/// The turns of a conversation leave its blocks in the cache once each, not the ends of earlier turns beside them.
#[test]
fn later_turn_supersedes_the_end_of_the_one_before() {
    let (mut pool, salt) = (pool(16), Salt::default());
    let text: Vec<u32> = (0..30).collect();
    for (turn, end) in [3, 6, 7, 11, 19, 30].into_iter().enumerate() {
        let (found, _) = start(&mut pool, turn as u64, &text[..end], &salt);
        assert_eq!(found, [0, 3, 6, 7, 11, 19][turn]);
        pool.reserve(turn as u64, end).expect("room");
        pool.commit(turn as u64, &text[found..end]).expect("reserved");
        pool.release(turn as u64).expect("there");
        pool.check().expect("consistent");
        assert_eq!(
            (pool.stats().cached, pool.stats().evictions()),
            (end.div_ceil(BLOCK), 0)
        );
    }
}

/// A tenant that goes on from what all know supersedes its own ends alone: others find the common one as before.
#[test]
fn a_tenant_supersedes_no_other_tenants_end() {
    let mut pool = pool(16);
    let (common, red, blue) = (tenant("*"), tenant("red"), tenant("blue"));
    let text: Vec<u32> = (1..9).collect();
    run(&mut pool, 1, &text[..6], &common);
    run(&mut pool, 2, &text[..7], &red);
    run(&mut pool, 3, &text, &red);
    assert_eq!(pool.lookup(&text, &red).num_tokens, 7);
    assert_eq!(pool.lookup(&text, &blue).num_tokens, 6);
    pool.check().expect("consistent");
}

/// However many blocks go on from a prefix, few are compared: the newest are found.
#[test]
fn newest_of_many_blocks_are_found() {
    let (mut pool, salt) = (pool(400), Salt::default());
    for first in 0..300 {
        run(&mut pool, 1, &[1, 2, 3, 4, first, 6], &salt);
    }
    assert_eq!(pool.lookup(&[1, 2, 3, 4, 299, 6, 7], &salt).num_tokens, 6);
    assert_eq!(pool.lookup(&[1, 2, 3, 4, 0, 6, 7], &salt).num_tokens, 4);
}

/// A fork shares whole blocks, copies the partial one, and then goes its own way.
#[test]
fn fork_copies_only_the_partial_block() {
    let (mut pool, salt) = (pool(8), Salt::default());
    compute(&mut pool, 1, &[1, 2, 3, 4, 5, 6], &salt);
    let copies = pool.fork(1, 2).expect("room");
    let (parent, child) = (
        pool.table(1).expect("there").to_vec(),
        pool.table(2).expect("there").to_vec(),
    );
    assert_eq!(copies, [(parent[1], child[1])]);
    assert_eq!(parent[0], child[0]);
    assert_ne!(parent[1], child[1]);
    pool.commit(2, &[70, 80]).expect("the copy has room");
    pool.commit(1, &[7, 8]).expect("its own has room");
    assert_eq!(pool.fork(1, 3), Ok(vec![]), "nothing is partial");
    assert_eq!(pool.lookup(&[1, 2, 3, 4, 5, 6, 70, 80, 9], &salt).num_tokens, 8);
    assert_eq!(pool.lookup(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &salt).num_tokens, 8);
    pool.check().expect("consistent");
}

/// After the index is cleared nothing computed before is found, not even what running sequences go on with.
#[test]
fn clear_index_hides_running_sequences() {
    let (mut pool, salt) = (pool(8), Salt::default());
    compute(&mut pool, 1, &[1, 2, 3, 4, 5], &salt);
    pool.clear_index();
    pool.commit(1, &[6, 7, 8]).expect("room in the block");
    pool.check().expect("consistent");
    assert_eq!(pool.lookup(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &salt).num_tokens, 0);
    assert_eq!(run(&mut pool, 2, &[1, 2, 3, 4, 5], &salt), 0);
    assert_eq!(run(&mut pool, 3, &[1, 2, 3, 4, 5], &salt), 4);
}

/// A reservation that does not fit changes nothing and says what is missing.
#[test]
fn reserve_is_all_or_nothing() {
    let (mut pool, salt) = (pool(3), Salt::default());
    pool.add(1, &[1], &salt, AddOptions::default()).expect("new");
    pool.reserve(1, 4).expect("room");
    assert_eq!(pool.reserve(1, 17), Err(CacheError::OutOfPages { needed: 4, free: 2 }));
    assert_eq!(pool.table(1).expect("there").len(), 1);
    pool.reserve(1, 12).expect("exactly all");
    pool.reserve(1, 0).expect("less than held is no change");
    assert_eq!((pool.table(1).expect("there").len(), pool.stats().free), (3, 0));
}

/// Misuse is refused by name and leaves the pool as it was.
#[test]
fn misuse_is_refused() {
    let (mut pool, salt) = (pool(2), Salt::default());
    pool.add(1, &[1, 2], &salt, AddOptions::default()).expect("new");
    let before = pool.stats();
    assert_eq!(
        pool.add(1, &[1], &salt, AddOptions::default()),
        Err(CacheError::DuplicateSequence(1))
    );
    assert_eq!(
        pool.add(2, &[], &salt, AddOptions::default()),
        Err(CacheError::EmptyPrompt(2))
    );
    assert_eq!(
        pool.commit(1, &[1]),
        Err(CacheError::NotReserved {
            seq: 1,
            reserved: 0,
            num_tokens: 1
        })
    );
    assert_eq!(pool.fork(1, 1), Err(CacheError::DuplicateSequence(1)));
    assert_eq!(pool.release(9), Err(CacheError::UnknownSequence(9)));
    assert_eq!((pool.stats(), pool.check()), (before, Ok(())));
    for (num_pages, block_tokens) in [(0, 16), (1, 0), (u32::MAX, 16), (4, usize::MAX)] {
        let options = PoolOptions {
            num_pages,
            block_tokens,
            ..PoolOptions::new(1)
        };
        assert!(matches!(BlockPool::new(options), Err(CacheError::BadSize { .. })));
    }
    let group = |kind, pages_per_block| Group { kind, pages_per_block };
    let bad_groups = [
        vec![],
        vec![Group::FULL, Group::FULL],
        vec![group(GroupKind::Window(0), 1)],
        vec![group(GroupKind::Chunk(0), 1)],
        vec![group(GroupKind::Full, 0)],
        vec![group(GroupKind::Full, usize::MAX)],
        vec![group(GroupKind::Chunk(8), 1); 17],
    ];
    for groups in bad_groups {
        let options = PoolOptions { groups, ..options(8) };
        assert!(matches!(BlockPool::new(options), Err(CacheError::BadGroups { .. })));
    }
}

/// What a tenant of the tests is called; the first is all tenants'.
const TENANTS: [&str; 4] = ["*", "", "red", "blue"];

/// How many tokens both begin with.
fn common(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

proptest! {
    /// Whatever the tenants computed, and in which order, none finds or is told more than it and the common tenant know.
    #[test]
    fn tenants_never_find_more_than_they_may(
        runs in prop::collection::vec((0..4usize, prop::collection::vec(0..3u32, 1..24), any::<bool>()), 1..40),
        num_pages in 8..40u32,
    ) {
        let mut pool = pool(num_pages);
        let mut computed: Vec<(&str, Vec<u32>)> = Vec::new();
        for (seq, (who, tokens, shrinks)) in runs.into_iter().enumerate() {
            let (name, salt) = (TENANTS[who], tenant(TENANTS[who]));
            let known = |other: &str| other == name || other == "*";
            let most = computed.iter().filter(|(other, _)| known(other));
            let most = most.map(|(_, other)| common(&tokens, other)).max().unwrap_or(0);
            let (found, told) = (pool.lookup(&tokens, &salt), pool.explain(&tokens, &salt));
            prop_assert!(found.num_tokens <= most);
            prop_assert!(told.known_tokens <= most);
            for prefix in pool.prefixes(99, &[name.as_bytes()]) {
                let is_own = |(other, tokens): &(&str, Vec<u32>)| known(other) && tokens.starts_with(&prefix.tokens);
                prop_assert!(computed.iter().any(is_own));
            }
            run(&mut pool, seq as u64, &tokens, &salt);
            computed.push((name, tokens));
            if shrinks {
                pool.set_limit(4).expect("less");
                pool.set_limit(num_pages as usize).expect("as before");
            }
        }
    }
}

/// A sequence that asks for less finds no more of its prompt cached than it asked for.
#[test]
fn no_more_is_taken_than_asked_for() {
    let mut pool = pool(16);
    let (prompt, salt) = ([1, 2, 3, 4, 5, 6, 7, 8, 9], Salt::default());
    run(&mut pool, 1, &prompt, &salt);
    for (seq, most_cached, expected) in [(2, Some(0), 0), (3, Some(7), 4), (4, Some(8), 8), (5, None, 8)] {
        let options = AddOptions {
            most_cached,
            ..AddOptions::default()
        };
        assert_eq!(pool.add(seq, &prompt, &salt, options), Ok(expected));
        pool.release(seq).expect("it runs");
    }
}
