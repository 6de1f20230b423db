//! What sliding windows keep, case by case: enough to go on from every border that matters, and little more.

use pyagent_cache::{AddOptions, BlockPool, Group, GroupKind, NO_PAGE, PoolOptions, Reason, Salt};

const BLOCK: usize = 4;

/// One full group and a window of 8 tokens, a page each.
fn pool(num_pages: u32) -> BlockPool {
    let window = Group {
        kind: GroupKind::Window(8),
        pages_per_block: 1,
    };
    BlockPool::new(PoolOptions {
        block_tokens: BLOCK,
        groups: vec![Group::FULL, window],
        ..PoolOptions::new(num_pages)
    })
    .expect("a small pool")
}

fn text(start: u32, num_tokens: usize) -> Vec<u32> {
    (start..).take(num_tokens).collect()
}

/// Runs a sequence in chunks of a block; returns how many tokens were cached, and the most pages used on the way.
fn run(pool: &mut BlockPool, seq: u64, prompt: &[u32], sampled: &[u32]) -> (usize, usize) {
    let cached = pool
        .add(seq, prompt, &Salt::default(), AddOptions::default())
        .expect("new");
    let (all, mut most) = ([prompt, sampled].concat(), 0);
    for chunk in all[cached..].chunks(BLOCK) {
        let num_tokens = pool.num_tokens(seq).expect("there") + chunk.len();
        pool.reserve(seq, num_tokens).expect("room");
        most = most.max(pool.stats().active);
        pool.commit(seq, chunk).expect("reserved");
        pool.check().expect("consistent");
    }
    pool.release(seq).expect("there");
    (cached, most)
}

/// Cached prefix of a prompt that goes on after `tokens`.
fn cached(pool: &BlockPool, tokens: &[u32]) -> usize {
    pool.lookup(&[tokens, &[u32::MAX]].concat(), &Salt::default())
        .num_tokens
}

/// A long sequence holds a window's worth of pages in the window group, however long it is.
#[test]
fn window_holds_what_is_in_sight() {
    let mut pool = pool(300);
    let tokens = text(0, 400);
    let (_, most) = run(&mut pool, 1, &tokens, &[]);
    assert!(most <= 100 + 4, "{most} pages for 100 blocks and a window of 2");
    assert!(most <= pool.most_pages(400, BLOCK));
    pool.add(2, &tokens, &Salt::default(), AddOptions::default())
        .expect("new");
    let window = &pool.tables(2).expect("there")[1];
    let in_sight = window.iter().filter(|&&page| page != NO_PAGE).count();
    assert_eq!((window.len(), in_sight), (99, 2));
}

/// When memory is short, what slid out of sight goes first; the next turn and a repeat of the prompt still start warm.
#[test]
fn ends_of_prompt_and_turn_are_checkpoints() {
    let mut pool = pool(64);
    let (prompt, sampled) = (text(0, 80), text(1000, 40));
    run(&mut pool, 1, &prompt, &sampled);
    run(&mut pool, 2, &text(5000, 60), &[]);
    assert!(pool.stats().evicted_demoted > 0 && pool.stats().evicted_policy == 0);
    let turn = [&prompt[..], &sampled].concat();
    assert_eq!(cached(&pool, &turn), 120, "the next turn");
    assert_eq!(cached(&pool, &prompt), 80, "another answer");
    assert_eq!(
        pool.lookup(&prompt, &Salt::default()).num_tokens,
        79,
        "the same prompt again"
    );
    assert!(
        cached(&pool, &prompt[..40]) < 40,
        "nobody was expected to go on from the middle"
    );
    assert_eq!(pool.explain(&prompt[..41], &Salt::default()).reason, Reason::Evicted);
}

/// Where a second conversation leaves the first, the window is computed again once and then kept.
#[test]
fn branch_becomes_checkpoint() {
    let mut pool = pool(64);
    let system = text(0, 80);
    let conversation = |number: u32| [&system[..], &text(1000 * number, 40)].concat();
    run(&mut pool, 1, &conversation(1), &[]);
    run(&mut pool, 2, &text(9000, 60), &[]);
    let (first, _) = run(&mut pool, 3, &conversation(2), &[]);
    assert!(first < 80, "the window at the end of the system prompt was given up");
    run(&mut pool, 4, &text(9100, 60), &[]);
    assert_eq!(cached(&pool, &system), 80);
    let (third, _) = run(&mut pool, 5, &conversation(3), &[]);
    assert_eq!(third, 80);
}

/// Chunks are seen up to their start only: nothing of the chunk before is needed at a border.
#[test]
fn chunk_needs_nothing_at_its_border() {
    let chunk = Group {
        kind: GroupKind::Chunk(8),
        pages_per_block: 1,
    };
    let mut pool = BlockPool::new(PoolOptions {
        block_tokens: BLOCK,
        groups: vec![Group::FULL, chunk],
        ..PoolOptions::new(40)
    })
    .expect("a small pool");
    let tokens = text(0, 44);
    run(&mut pool, 1, &tokens, &[]);
    pool.set_limit(11 + 1).expect("less than there are");
    assert_eq!(cached(&pool, &tokens), 44);
    assert_eq!(
        cached(&pool, &tokens[..20]),
        16,
        "a border needs no chunk, the middle of one does"
    );
}

/// A swapped-out sequence comes back with the window it needs and nothing of what slid out of sight.
#[test]
fn restore_takes_what_is_in_sight() {
    let mut pool = pool(64);
    let tokens = text(0, 42);
    pool.add(1, &tokens, &Salt::default(), AddOptions::default())
        .expect("new");
    pool.reserve(1, 42).expect("room");
    pool.commit(1, &tokens).expect("reserved");
    let saved = pool.pages_in_use(1).expect("there");
    assert_eq!(saved.len(), 11 + 3);
    pool.release(1).expect("there");
    pool.set_limit(0).expect("less than there are");
    pool.set_limit(13).expect("less than there are");
    assert!(
        pool.restore(1, &tokens, &Salt::default(), AddOptions::default())
            .is_err()
    );
    pool.set_limit(14).expect("less than there are");
    let (cached, slots) = pool
        .restore(1, &tokens, &Salt::default(), AddOptions::default())
        .expect("room");
    assert_eq!((cached, slots.len(), slots.contains(&NO_PAGE)), (0, 14, false));
    pool.commit(1, &tokens).expect("restored");
    pool.check().expect("consistent");
    assert_eq!(pool.pages_in_use(1).expect("there"), slots);
}
