//! Which layer lies where, what tables are let through, and pages that move.

use proptest::prelude::*;
use pyagent_kernels::attention::KvType;

use super::moves::system_page_bytes;
use super::*;

const LAYOUT: KvLayout = KvLayout {
    num_kv_heads: 1,
    head_dim: 16,
    values_in_keys: None,
    index_dim: 0,
    dtype: KvType::F16,
};

/// Layers with these windows and heads of one shape.
fn of_one_shape(windows: &[Option<usize>]) -> Vec<Kind> {
    windows.iter().map(|window| (*window, LAYOUT)).collect()
}

/// Layers of Gemma 4: of each six the last sees everything, with heads of another shape.
fn of_two_shapes(num_layers: usize, [local_heads, global_heads]: [usize; 2]) -> Vec<Kind> {
    let shape = |num_kv_heads, head_dim| KvLayout {
        num_kv_heads,
        head_dim,
        ..LAYOUT
    };
    let kind = |layer: usize| match layer % 6 {
        5 => (None, shape(global_heads, 512)),
        _ => (Some(512), shape(local_heads, 256)),
    };
    (0..num_layers).map(kind).collect()
}

/// Gemma 4 31B, E4B and 26B-A4B: pages of whole layers of both shapes, as large as they can be with the least memory.
#[test]
fn pages_hold_layers_of_two_shapes() {
    for (num_layers, heads, pages_per_block, layers_per_page) in [
        (60, [16, 4], [10, 1], 5),
        (24, [2, 2], [5, 2], 2),
        (30, [8, 2], [25, 3], 1),
    ] {
        let kinds = of_two_shapes(num_layers, heads);
        let pages = KvPages::new(&kinds);
        let of_groups: Vec<usize> = pages.groups.iter().map(|group| group.pages_per_block).collect();
        assert_eq!(
            (of_groups.as_slice(), pages.layers_per_page),
            (pages_per_block.as_slice(), layers_per_page)
        );
        let needed: usize = kinds.iter().map(|(_, layout)| layout.block_bytes()).sum();
        assert!((needed..needed * 102 / 100 + 1).contains(&pages.block_bytes()));
        assert_eq!(pages.layer_bytes * pages.layers_per_page, pages.page_bytes());
    }
}

/// Gemma 3 270M: five sliding layers, then one that sees everything, three times.
#[test]
fn gemma_has_pages_of_three_layers_and_six_pages_a_block() {
    let windows: Vec<_> = (0..18).map(|layer| (layer % 6 != 5).then_some(512)).collect();
    let pages = KvPages::new(&of_one_shape(&windows));
    let sliding = KvGroup {
        window: Some(512),
        pages_per_block: 5,
        state_every: None,
    };
    let full = KvGroup {
        window: None,
        pages_per_block: 1,
        state_every: None,
    };
    assert_eq!((pages.groups, pages.layers_per_page), (vec![sliding, full], 3));
}

proptest! {
    /// No two layers of a block share bytes, of whatever shapes, and each lies in one page; those that see everything are one
    /// group then.
    #[test]
    fn layers_of_all_shapes_lie_apart(
        shapes in prop::collection::vec((prop_oneof![Just(None), Just(Some(20)), Just(Some(50))], 1_usize..4), 1..24),
    ) {
        let kind = |(window, num_kv_heads): &(Option<usize>, usize)| (*window, KvLayout { num_kv_heads: *num_kv_heads, ..LAYOUT });
        let kinds: Vec<Kind> = shapes.iter().map(kind).collect();
        let mut pages = KvPages::new(&kinds);
        pages.join_groups();
        prop_assert!(pages.groups.iter().filter(|group| group.window.is_none()).count() <= 1);
        let memory = KvMemory::new(pages.clone(), 200).expect("memory");
        let mut next = 0..;
        let table = |group: &KvGroup| Arc::new(next.by_ref().take(group.pages_per_block).collect::<Vec<u32>>());
        let tables: Vec<_> = pages.groups.iter().map(table).collect();
        let start = memory.memory.as_ptr() as usize;
        let mut ranges: Vec<(usize, usize)> = (0..kinds.len())
            .map(|layer| {
                prop_assert_eq!(pages.layout(layer), &kinds[layer].1);
                prop_assert_eq!(pages.groups[pages.place(layer).group].window, kinds[layer].0);
                // SAFETY: every table has one block.
                let first = unsafe { memory.layer(layer, &tables).block(0) as usize - start };
                Ok((first, first + kinds[layer].1.block_bytes()))
            })
            .collect::<Result<_, TestCaseError>>()?;
        ranges.sort_unstable();
        for (first, end) in &ranges {
            prop_assert_eq!(first / pages.page_bytes(), (end - 1) / pages.page_bytes());
        }
        prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    }

    /// No two layers of a block share bytes, and together they fill its pages.
    #[test]
    fn layers_fill_their_pages(kinds in prop::collection::vec(prop_oneof![Just(None), (1_usize..4).prop_map(Some)], 1..40)) {
        let pages = KvPages::new(&of_one_shape(&kinds));
        let memory = KvMemory::new(pages.clone(), 200).expect("memory");
        let mut next = 0..;
        let tables: Vec<Arc<Vec<u32>>> = pages
            .groups
            .iter()
            .map(|group| Arc::new(next.by_ref().take(group.pages_per_block).collect()))
            .collect();
        let start = memory.memory.as_ptr() as usize;
        let mut offsets: Vec<usize> = (0..kinds.len())
            .map(|layer| {
                let kv = memory.layer(layer, &tables);
                assert_eq!(kinds[layer], pages.groups[pages.places[layer].expect("attention").group].window);
                // SAFETY: every table has one block.
                unsafe { kv.block(0) as usize - start }
            })
            .collect();
        offsets.sort_unstable();
        let expected: Vec<usize> = (0..kinds.len()).map(|layer| layer * LAYOUT.block_bytes()).collect();
        prop_assert_eq!(offsets, expected);
        prop_assert_eq!(pages.block_bytes(), kinds.len() * LAYOUT.block_bytes());
    }
}

/// Pages that a token sees must exist; those that slid out may be missing; no other number is let through.
#[test]
fn check_lets_through_only_what_no_token_reads() {
    let memory = KvMemory::new(KvPages::new(&of_one_shape(&[Some(20), None])), 4).expect("memory");
    let check = |sliding: &[u32], full: &[u32], first, end| {
        memory.check(
            &[sliding.to_vec().into(), full.to_vec().into()],
            first,
            end,
            &mut CheckedTables::default(),
        )
    };
    assert_eq!(check(&[0, 1, 2], &[0, 1, 2], 40, 48), Ok(()));
    // The token at 40 sees 21..=40: the first block is out of sight, the second is not.
    assert_eq!(check(&[NO_PAGE, 1, 2], &[0, 1, 2], 40, 48), Ok(()));
    for (sliding, full, first, end) in [
        (&[NO_PAGE, NO_PAGE, 2][..], &[0, 1, 2][..], 40, 48),
        (&[NO_PAGE, 1, 2], &[NO_PAGE, 1, 2], 40, 48),
        (&[NO_PAGE, 1, 2], &[0, 1, 2], 34, 48),
        (&[4, 1, 2], &[0, 1, 2], 40, 48),
        (&[NO_PAGE - 1, 1, 2], &[0, 1, 2], 40, 48),
        (&[0, 1, 2], &[0, 1, 4], 40, 48),
        (&[0, 1], &[0, 1, 2], 40, 48),
        (&[0, 1, 2], &[0, 1], 40, 48),
    ] {
        assert!(
            check(sliding, full, first, end).is_err(),
            "{sliding:?} {full:?} {first} {end}"
        );
    }
    assert!(
        memory
            .check(&[vec![0; 3].into()], 40, 48, &mut CheckedTables::default())
            .is_err()
    );
}

/// A table that was found right is known until its owner changes it, for as many missing pages as were seen, or more.
#[test]
fn tables_are_read_again_when_they_change() {
    let memory = KvMemory::new(KvPages::new(&of_one_shape(&[Some(20)])), 4).expect("memory");
    let mut checked = CheckedTables::default();
    let mut tables = [Arc::new(vec![NO_PAGE, 1, 2])];
    let mut check = |tables: &[Arc<Vec<u32>>], first| {
        checked.begin();
        memory.check(tables, first, 48, &mut checked).is_ok()
    };
    assert!(check(&tables, 40));
    assert!(check(&tables, 41));
    assert!(!check(&tables, 30));
    assert!(check(&tables, 40));
    Arc::make_mut(&mut tables[0])[2] = 9;
    assert!(!check(&tables, 40));
    assert!(!check(&tables, 40));
    Arc::make_mut(&mut tables[0])[2] = 3;
    assert!(check(&tables, 40));
}

fn memory(num_pages: usize) -> KvMemory {
    KvMemory::new(KvPages::new(&of_one_shape(&[None])), num_pages).expect("memory")
}

/// Fills a page with a byte.
fn fill(kv: &mut KvMemory, page: usize, byte: u8) {
    let size = kv.pages.page_bytes();
    kv.memory[page * size..(page + 1) * size].fill(byte);
}

/// The byte each page is full of.
fn content(kv: &KvMemory) -> Vec<u8> {
    let pages = kv.memory.chunks_exact(kv.pages.page_bytes());
    pages
        .map(|page| {
            assert!(page.iter().all(|byte| *byte == page[0]));
            page[0]
        })
        .collect()
}

proptest! {
    /// Copies, swaps and pages given back do to the memory what they do to a plain vector.
    #[test]
    fn pages_move_like_numbers_in_a_vector(steps in prop::collection::vec((0..4_u8, prop::collection::vec(0..40_u32, 0..12)), 1..30)) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut kv = memory(40);
        let mut model = vec![0_u8; 40];
        let mut swapped: Vec<(SwappedPages, Vec<u8>)> = Vec::new();
        for (round, (step, pages)) in steps.into_iter().enumerate() {
            match step {
                0 => for &page in &pages {
                    model[page as usize] = round as u8 + 1;
                    fill(&mut kv, page as usize, round as u8 + 1);
                },
                1 => {
                    let pairs: Vec<(u32, u32)> = pages.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                    kv.copy(&pairs).expect("pages exist");
                    pairs.iter().for_each(|&(from, to)| model[to as usize] = model[from as usize]);
                }
                2 => {
                    kv.give_back(&pages).expect("pages exist");
                    pages.iter().for_each(|&page| model[page as usize] = 0);
                }
                _ => {
                    let out = kv.swap_out(&pages, folder.path()).expect("the folder is writable");
                    prop_assert_eq!(out.bytes(), pages.len() * kv.pages.page_bytes());
                    swapped.push((out, pages.iter().map(|&page| model[page as usize]).collect()));
                    let (back, bytes) = &swapped[round % swapped.len()];
                    let places: Vec<u32> = (0..bytes.len() as u32).map(|i| if i % 3 == 2 { NO_PAGE } else { i * 3 }).collect();
                    kv.swap_in(back, &places, folder.path()).expect("the file is there");
                    for (&place, &byte) in places.iter().zip(bytes).filter(|(place, _)| **place != NO_PAGE) {
                        model[place as usize] = byte;
                    }
                }
            }
            prop_assert_eq!(&content(&kv), &model);
        }
        prop_assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}

proptest! {
    /// Layers read from some pages and written to others of another memory make these equal, and touch nothing else.
    #[test]
    fn layers_cross_to_another_memory(
        from in prop::sample::subsequence((0..12_u32).collect::<Vec<_>>(), 5).prop_shuffle(),
        to in prop::sample::subsequence((0..12_u32).collect::<Vec<_>>(), 5).prop_shuffle(),
        cut in 1..3_usize,
    ) {
        let pages = KvPages::new(&of_one_shape(&[None; 3]));
        let mut source = KvMemory::new(pages.clone(), 12).expect("memory");
        let mut target = KvMemory::new(pages, 12).expect("memory");
        source.memory.iter_mut().zip(0_usize..).for_each(|(byte, place)| *byte = (place * 31 % 251) as u8 | 1);
        for layers in [0..cut, cut..3] {
            let mut bytes = vec![0; source.layers_bytes(from.len(), &layers)];
            source.read_layers(&from, &layers, &mut bytes).expect("pages exist");
            target.write_layers(&to, &layers, &bytes).expect("pages exist");
        }
        for page in 0..12 {
            match to.iter().position(|other| *other == page) {
                Some(place) => prop_assert_eq!(target.page(page), source.page(from[place])),
                None => prop_assert!(target.page(page).iter().all(|byte| *byte == 0)),
            }
        }
    }
}

/// What is given back is no longer resident, though neighbours that share the system's pages keep their content.
#[test]
#[cfg(target_os = "linux")]
fn pages_given_back_are_not_resident() {
    let mut kv = memory(20_000); // of 2 KiB: two share a page of the system
    let size = kv.pages.page_bytes();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("readable");
        statm
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<usize>().ok())
            .expect("a number")
            * system_page_bytes()
    };
    (0..20_000).for_each(|page| fill(&mut kv, page, 7));
    let before = resident();
    let pages: Vec<u32> = (1..19_999).collect();
    kv.give_back(&pages).expect("pages exist");
    assert!(before - resident() > 15_000 * size);
    let full: Vec<usize> = (0..20_000).filter(|&page| kv.memory[page * size] == 7).collect();
    assert_eq!(full, [0, 19_999]);
}

/// Pages that do not exist, and swaps that cannot be, are refused with the reason, and change nothing.
#[test]
fn bad_pages_and_folders_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut kv = memory(4);
    (0..4).for_each(|page| fill(&mut kv, page, page as u8));
    let size = kv.pages.page_bytes();
    let swapped = kv.swap_out(&[1, 2], folder.path()).expect("the folder is writable");
    let errors = [
        kv.copy(&[(0, 1), (4, 0)]),
        kv.copy(&[(0, NO_PAGE)]),
        kv.give_back(&[1, 4]),
        kv.swap_out(&[0, 9], folder.path()).map(|_| ()),
        kv.swap_in(&swapped, &[0], folder.path()),
        kv.swap_in(&swapped, &[3, 4], folder.path()),
        kv.read_layers(&[4], &(0..1), &mut vec![0; size]),
        kv.read_layers(&[0], &(0..2), &mut vec![0; 2 * size]),
        kv.write_layers(&[NO_PAGE], &(0..1), &vec![0; size]),
        kv.write_layers(&[0, 1], &(0..1), &vec![0; size]),
        kv.write_layers(&[0], &(0..1), &vec![0; size - 1]),
        kv.write_layers(&[0], &(1..1), &[]),
        kv.write_layers(&[0], &(1..2), &vec![0; size]),
    ];
    for error in errors {
        assert!(matches!(error, Err(EngineError::Pages(_))), "{error:?}");
    }
    let missing = folder.path().join("gone");
    let error = kv.swap_out(&[0], &missing).expect_err("no such folder").to_string();
    assert!(error.contains("gone") && error.contains("written"), "{error}");
    assert_eq!(content(&kv), [0, 1, 2, 3]);
}
