//! Attention against a plain double-precision reference, and against itself split in every way.

use super::*;
use crate::lanes::{Bf16, F16};
use proptest::prelude::*;

/// Outputs average values of magnitude 1 by weights whose relative error is the absolute error of the scores: some
/// rounding errors of 2^-24 for scores of up to 20. Measured: 8e-7 at 256 dimensions.
const TOLERANCE: f64 = 3e-6;

/// Each weight is rounded by up to 2^-9 of itself, and values are up to 2 from the average.
const TOLERANCE_BF16: f64 = 1.0 / 256.0;

/// Where a layer lies: layers of a page, pages of a block, and which of each is the layer's.
#[derive(Clone, Copy, Debug)]
struct Place {
    layers_per_page: usize,
    layer_in_page: usize,
    pages_per_block: usize,
    page_in_block: usize,
}

/// A sequence in paged memory and queries on its last tokens.
#[derive(Clone, Debug)]
struct Case {
    layout: KvLayout,
    place: Place,
    heads: usize,
    first_position: usize,
    num_tokens: usize,
    window: Option<usize>,
    is_window_chunk: bool,
    softcap: Option<f32>,
    has_sinks: bool,
    bias: Bias,
}

/// What is added to scores.
#[derive(Clone, Copy, Debug)]
enum Bias {
    None,
    /// So many distances, of which it masks some.
    Table(usize),
    Slopes,
}

/// Numbers in -1..1 that look random and are the same on every machine.
fn number(seed: usize) -> f32 {
    let mut x = seed as u64 ^ 0x5851_f42d_4c95_7f2d;
    for _ in 0..3 {
        x = x.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (x >> 29);
    }
    (x >> 40) as f32 / 8_388_608.0 - 1.0
}

impl Case {
    fn new(head_dim: usize, kv_heads: usize, heads: usize, first_position: usize, num_tokens: usize) -> Self {
        let layout = KvLayout {
            num_kv_heads: kv_heads,
            head_dim,
            values_in_keys: None,
            index_dim: 0,
            dtype: KvType::F16,
        };
        let place = Place {
            layers_per_page: 1,
            layer_in_page: 0,
            pages_per_block: 1,
            page_in_block: 0,
        };
        Self {
            layout,
            place,
            heads,
            first_position,
            num_tokens,
            window: None,
            is_window_chunk: false,
            softcap: None,
            has_sinks: false,
            bias: Bias::None,
        }
    }

    /// What is added to a head's score of a key at a distance.
    fn added(&self, head: usize, distance: usize) -> f32 {
        match self.bias {
            Bias::None => 0.0,
            Bias::Slopes => self.slope(head) * distance as f32,
            Bias::Table(count) => match distance.min(count - 1) {
                0 => 0.5,
                // Of some heads a chunk and more in a row.
                distance if distance % (head + 2) == 1 || (head == 1 && distance > 20) => f32::NEG_INFINITY,
                distance => 3.0 * number(distance * 31 + head),
            },
        }
    }

    fn slope(&self, head: usize) -> f32 {
        -0.5_f32.powi(head as i32 % 9)
    }

    fn score_bias(&self) -> Option<ScoreBias> {
        let heads = 0..self.heads * self.layout.num_kv_heads;
        match self.bias {
            Bias::None => None,
            Bias::Slopes => ScoreBias::from_slopes(heads.map(|head| self.slope(head)).collect()).ok(),
            Bias::Table(count) => {
                let num_heads = heads.len();
                let rows = heads.flat_map(|head| (0..count).map(move |distance| self.added(head, distance)));
                let bias = ScoreBias::from_table(&rows.collect::<Vec<_>>(), num_heads);
                Some(bias.expect("a table for each head"))
            }
        }
    }

    /// Of each query head the score that has no value, some above all others.
    fn sinks(&self) -> Option<Vec<f32>> {
        let heads = 0..self.heads * self.layout.num_kv_heads;
        self.has_sinks
            .then(|| heads.map(|head| 4.0 * number(head + 77)).collect())
    }

    fn num_positions(&self) -> usize {
        self.first_position + self.num_tokens
    }

    fn kv_width(&self) -> usize {
        self.layout.num_kv_heads * self.layout.head_dim
    }

    fn keys(&self, position: usize) -> Vec<f32> {
        (0..self.kv_width())
            .map(|i| 2.0 * number(position * 7919 + i))
            .collect()
    }

    fn values(&self, position: usize) -> Vec<f32> {
        (0..self.kv_width())
            .map(|i| number(position * 104_729 + i + 1_000_003))
            .collect()
    }

    fn queries(&self) -> Vec<f32> {
        (0..self.num_tokens * self.heads * self.kv_width())
            .map(|i| 2.0 * number(i + 77_777_777))
            .collect()
    }

    /// Page ids in an order that depends on `shuffle`, with gaps; no page where no query sees the block.
    fn table(&self, shuffle: usize) -> Vec<u32> {
        let num_pages = self.num_positions().div_ceil(BLOCK_TOKENS) * self.place.pages_per_block;
        let mut ids: Vec<u32> = (0..2 * num_pages as u32).collect();
        ids.sort_by_key(|id| {
            if shuffle == 0 {
                0
            } else {
                (*id as usize * 2_654_435_761 + shuffle) % 1009
            }
        });
        ids.truncate(num_pages);
        let num_hidden = self.first_visible() / BLOCK_TOKENS * self.place.pages_per_block;
        ids[..num_hidden].fill(u32::MAX);
        ids
    }

    /// The first position that any query sees.
    fn first_visible(&self) -> usize {
        self.first_seen(self.first_position)
    }

    /// The first position that a query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        match self.window {
            None => 0,
            Some(window) if self.is_window_chunk => position - position % window,
            Some(window) => (position + 1).saturating_sub(window),
        }
    }

    fn page_bytes(&self) -> usize {
        self.place.layers_per_page * self.layout.block_bytes()
    }

    fn kv<'a>(&self, memory: *const u8, pages: &'a [u32]) -> LayerBlocks<'a> {
        LayerBlocks {
            base: memory
                .wrapping_add(self.place.layer_in_page * self.layout.block_bytes())
                .cast_mut(),
            page_bytes: self.page_bytes(),
            pages,
            pages_per_block: self.place.pages_per_block,
            page_in_block: self.place.page_in_block,
        }
    }

    /// Memory in which all that is not stored is NaN, so that touching it shows.
    fn memory(&self, isa: Isa, table: &[u32]) -> Vec<u32> {
        let num_pages = 2 * table.len();
        let mut memory = vec![u32::MAX; num_pages * self.page_bytes() / 4];
        let kv = self.kv(memory.as_mut_ptr().cast(), table);
        for position in self.first_visible() / BLOCK_TOKENS * BLOCK_TOKENS..self.num_positions() {
            let (k, v) = (self.keys(position), self.values(position));
            // SAFETY: the table has the position's block.
            let block = unsafe { kv.block(position / BLOCK_TOKENS) };
            let heads = k
                .chunks_exact(self.layout.head_dim)
                .zip(v.chunks_exact(self.layout.head_dim));
            for (head, (k, v)) in heads.enumerate() {
                let v = if self.layout.values_in_keys.is_some() { &[] } else { v };
                // SAFETY: the memory has every page of the table.
                unsafe { store_kv(isa, &self.layout, block, position % BLOCK_TOKENS, head, k, v) };
            }
        }
        memory
    }

    /// All heads of all tokens, in calls of `chunk` tokens.
    fn run(&self, isa: Isa, shuffle: usize, chunk: usize) -> Vec<f32> {
        // SAFETY: the arguments are those that `run_with` promises.
        self.run_with(isa, shuffle, chunk, |args, scratch| unsafe {
            attend(isa, &self.layout, args, scratch);
        })
    }

    /// As [`Self::run`], chunk by chunk from the last to the first, and put together by another thread's scratch.
    fn run_split(&self, isa: Isa, shuffle: usize, chunk: usize) -> Vec<f32> {
        self.run_with(isa, shuffle, chunk, |args, scratch| {
            let (chunks, len) = (
                args.chunks(),
                chunk_len(self.layout.value_dim(), args.num_tokens * self.heads),
            );
            let mut results = vec![f32::NAN; chunks.len() * len];
            for (index, chunk) in chunks.enumerate().rev() {
                let results = results[index * len..].as_mut_ptr();
                // SAFETY: the arguments are those that `run_with` promises; each chunk has room for its results.
                unsafe { attend_chunk(isa, &self.layout, args, chunk, results, scratch) };
            }
            // SAFETY: as above, and every chunk was computed.
            unsafe {
                merge_chunks(
                    isa,
                    &self.layout,
                    args,
                    results.as_ptr(),
                    &mut AttentionScratch::default(),
                )
            };
        })
    }

    /// Calls `attend` with all heads of all tokens, `chunk` tokens at a time.
    fn run_with(
        &self,
        isa: Isa,
        shuffle: usize,
        chunk: usize,
        attend: impl Fn(&AttentionArgs<'_>, &mut AttentionScratch),
    ) -> Vec<f32> {
        let table = self.table(shuffle);
        let memory = self.memory(isa, &table);
        let (queries, sinks, bias) = (self.queries(), self.sinks(), self.score_bias());
        let row = self.heads * self.kv_width();
        let (head_dim, value_dim) = (self.layout.head_dim, self.layout.value_dim());
        let out_row = row / head_dim * value_dim;
        let mut out = vec![f32::NAN; self.num_tokens * out_row];
        let mut scratch = AttentionScratch::default();
        for kv_head in 0..self.layout.num_kv_heads {
            let (column, out_column) = (kv_head * self.heads * head_dim, kv_head * self.heads * value_dim);
            for first in (0..self.num_tokens).step_by(chunk) {
                let args = AttentionArgs {
                    kv: self.kv(memory.as_ptr().cast(), &table),
                    kv_head,
                    num_query_heads_per_kv: self.heads,
                    first_position: self.first_position + first,
                    num_tokens: chunk.min(self.num_tokens - first),
                    window: self.window,
                    is_window_chunk: self.is_window_chunk,
                    first_seen: 0,
                    end_seen: usize::MAX,
                    scale: self.scale(),
                    softcap: self.softcap,
                    bias: bias.as_ref().map(|bias| bias.of_heads(kv_head * self.heads)),
                    sinks: sinks
                        .as_deref()
                        .map(|sinks| &sinks[kv_head * self.heads..(kv_head + 1) * self.heads]),
                    q: queries[first * row + column..].as_ptr(),
                    q_stride: row,
                    out: out[first * out_row + out_column..].as_mut_ptr(),
                    out_stride: out_row,
                    earlier: None,
                };
                attend(&args, &mut scratch);
            }
        }
        out
    }

    fn scale(&self) -> f32 {
        1.0 / (self.layout.head_dim as f32).sqrt()
    }

    /// The definition, in double precision, on the numbers as they are stored.
    fn reference(&self) -> Vec<f64> {
        let dim = self.layout.head_dim;
        let stored = |x: f32, scale: f32| match self.layout.dtype {
            KvType::F32 => f64::from(x),
            KvType::F16 => f64::from(F16::from_f32(x).to_f32()),
            KvType::Bf16 => bf16(x),
            KvType::Int8 => f64::from((x * (1.0 / scale)).round_ties_even() as i8) * f64::from(scale),
        };
        let scale = |head: &[f32]| head.iter().fold(0.0_f32, |greatest, x| greatest.max(x.abs())) / 127.0;
        let widen = |row: Vec<f32>| {
            let heads = row.chunks_exact(dim);
            heads
                .flat_map(|head| head.iter().map(|x| stored(*x, scale(head))))
                .collect::<Vec<_>>()
        };
        let keys: Vec<_> = (0..self.num_positions()).map(|p| widen(self.keys(p))).collect();
        let values: Vec<_> = match self.layout.values_in_keys {
            Some(_) => keys.clone(),
            None => (0..self.num_positions()).map(|p| widen(self.values(p))).collect(),
        };
        let mut out = Vec::new();
        for (i, query) in self.queries().chunks(dim).enumerate() {
            let num_heads = self.heads * self.layout.num_kv_heads;
            let (token, head) = (i / num_heads, i % num_heads);
            let at = head / self.heads * dim;
            let position = self.first_position + token;
            let first = self.first_seen(position);
            let score = |p: usize| {
                let dot: f64 = query
                    .iter()
                    .zip(&keys[p][at..at + dim])
                    .map(|(q, k)| if self.layout.dtype == KvType::Bf16 { bf16(*q) } else { f64::from(*q) } * k)
                    .sum();
                let score = dot * f64::from(self.scale());
                let score = self
                    .softcap
                    .map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                score + f64::from(self.added(head, position - p))
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
            let sink = self
                .sinks()
                .map_or(0.0, |sinks| (f64::from(sinks[head]) - greatest).exp());
            let sum = weights.iter().sum::<f64>() + sink;
            for d in 0..self.layout.value_dim() {
                let weighted = weights.iter().enumerate().map(|(j, w)| w * values[first + j][at + d]);
                out.push(weighted.sum::<f64>() / sum);
            }
        }
        out
    }

    fn check_against_reference(&self) {
        self.check_set_against_reference(Isa::best());
    }

    fn check_set_against_reference(&self, isa: Isa) {
        let mut worst = 0.0_f64;
        for (got, expected) in self.run(isa, 1, 64).iter().zip(self.reference()) {
            let error = (f64::from(*got) - expected).abs();
            let tolerance = if self.layout.dtype == KvType::Bf16 {
                TOLERANCE_BF16
            } else {
                TOLERANCE
            };
            // Keys are twice as large.
            let tolerance = tolerance * if self.layout.values_in_keys.is_some() { 2.0 } else { 1.0 };
            assert!(error < tolerance, "{self:?}: got {got}, expected {expected}");
            worst = worst.max(error);
        }
        println!("worst error {worst:.1e}: {self:?}");
    }
}

fn bf16(x: f32) -> f64 {
    f64::from(Bf16::from_f32(x).to_f32())
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

fn any_place() -> impl Strategy<Value = Place> {
    (1_usize..4, 0_usize..4, 1_usize..4, 0_usize..4).prop_map(|(layers, layer, pages, page)| Place {
        layers_per_page: layers,
        layer_in_page: layer % layers,
        pages_per_block: pages,
        page_in_block: page % pages,
    })
}

fn any_case() -> impl Strategy<Value = Case> {
    let head_dim = prop_oneof![Just(16_usize), Just(48), Just(64), Just(80), 1_usize..100];
    let window = prop_oneof![
        Just(None),
        (1_usize..70).prop_map(Some),
        (200_usize..400).prop_map(Some)
    ];
    let softcap = prop_oneof![Just(None), Just(Some(30.0_f32))];
    let bias = prop_oneof![
        Just(Bias::None),
        Just(Bias::Slopes),
        (1_usize..700).prop_map(Bias::Table)
    ];
    let dtype = prop::sample::select(&KvType::ALL[..]);
    (
        any_place(),
        (head_dim, proptest::option::of(0_usize..100)),
        1_usize..3,
        1_usize..10,
        prop_oneof![0_usize..150, 200_usize..600],
        1_usize..24,
        window,
        any::<bool>(),
        softcap,
        (any::<bool>(), bias),
        dtype,
    )
        .prop_map(
            |(
                place,
                (head_dim, value_dim),
                num_kv_heads,
                heads,
                first_position,
                num_tokens,
                window,
                is_window_chunk,
                softcap,
                (has_sinks, bias),
                dtype,
            )| {
                Case {
                    place,
                    layout: KvLayout {
                        num_kv_heads,
                        head_dim,
                        values_in_keys: value_dim.map(|value_dim| 1 + value_dim % head_dim),
                        index_dim: 0,
                        dtype,
                    },
                    heads,
                    first_position,
                    num_tokens,
                    window,
                    is_window_chunk,
                    softcap,
                    has_sinks,
                    bias,
                }
            },
        )
}

/// Attention equals its definition for every head ratio, with one token and with many.
#[test]
fn attention_equals_the_reference_for_every_head_ratio() {
    for heads in 1..=9 {
        Case::new(64, 2, heads, 0, 33).check_against_reference();
        Case::new(64, 1, heads, 300, 1).check_against_reference();
    }
}

/// Attention equals its definition for head sizes that fill registers and for those that do not.
#[test]
fn attention_equals_the_reference_for_every_head_size() {
    for head_dim in [1, 7, 16, 40, 64, 80, 96, 128, 131, 192, 256] {
        for dtype in KvType::ALL {
            let mut case = Case::new(head_dim, 2, 3, 29, 20);
            case.layout.dtype = dtype;
            case.check_against_reference();
        }
    }
}

/// Values that are the first numbers of the keys: of every type, in real sizes and odd ones, behind windows too.
#[test]
fn attention_equals_the_reference_where_keys_hold_the_values() {
    for (head_dim, value_dim, heads) in [(576, 512, 20), (80, 64, 8), (48, 48, 5), (33, 7, 3), (17, 1, 1)] {
        for dtype in KvType::ALL {
            for window in [None, Some(19)] {
                let mut case = Case::new(head_dim, 1, heads, 250, 10);
                (case.layout.values_in_keys, case.layout.dtype, case.window) = (Some(value_dim), dtype, window);
                case.check_against_reference();
            }
        }
    }
}

/// A window, or a chunk, hides what lies before it, and a soft cap bends the scores, as defined.
#[test]
fn attention_equals_the_reference_with_windows_and_soft_caps() {
    for window in [1, 2, 15, 16, 17, 40, 1000] {
        for (softcap, has_sinks) in [(None, false), (Some(2.0), false), (None, true)] {
            let mut case = Case::new(32, 1, 2, 50, 40);
            (case.window, case.softcap, case.has_sinks) = (Some(window), softcap, has_sinks);
            case.check_against_reference();
            case.is_window_chunk = true;
            case.check_against_reference();
        }
    }
}

/// What is added by distance is, and what it masks is not seen: on every set and of every type, with tables shorter than the
/// text and longer, whose chunks may be masked whole, behind windows and with a cap.
#[test]
fn attention_equals_the_reference_with_what_is_added_by_distance() {
    let biases = [1, 2, 19, 300, 1_000].map(Bias::Table);
    for isa in Isa::available() {
        for dtype in KvType::ALL {
            for bias in biases.into_iter().chain([Bias::Slopes]) {
                for (window, softcap) in [(None, None), (Some(40), Some(5.0))] {
                    let mut case = Case::new(24, 2, 3, 2 * CHUNK_TOKENS + 5, 9);
                    (case.layout.dtype, case.bias) = (dtype, bias);
                    (case.window, case.softcap) = (window, softcap);
                    case.check_set_against_reference(isa);
                }
            }
        }
    }
}

/// A long context gives the same bits whether its tokens are computed together or one by one.
#[test]
fn attention_over_a_long_context_is_independent_of_the_tokens_at_once() {
    let case = Case::new(16, 1, 8, 70_000, 2);
    let whole = case.run(Isa::best(), 0, 2);
    assert_eq!(bits(&whole), bits(&case.run(Isa::best(), 0, 1)));
}

/// Where chunks begin and end, windows and tokens that see one chunk more than others make no difference.
#[test]
fn attention_equals_the_reference_around_the_borders_of_chunks() {
    for first_position in [CHUNK_TOKENS - 20, 2 * CHUNK_TOKENS - 1, 3 * CHUNK_TOKENS] {
        for window in [None, Some(1), Some(30), Some(CHUNK_TOKENS), Some(CHUNK_TOKENS + 10)] {
            let mut case = Case::new(32, 1, 3, first_position, 40);
            case.window = window;
            case.check_against_reference();
            case.is_window_chunk = true;
            case.check_against_reference();
        }
    }
}

/// A key or value that is no number is one in the output, of every type: it is not rounded away.
#[test]
fn faults_in_keys_and_values_reach_the_output() {
    let case = Case::new(16, 1, 1, 0, 1);
    for dtype in KvType::ALL {
        let layout = KvLayout { dtype, ..case.layout };
        for (fault, which) in [(f32::NAN, 0), (f32::NAN, 1), (f32::INFINITY, 1), (f32::NEG_INFINITY, 1)] {
            let mut rows = [[0.5; 16]; 2];
            rows[which][3] = fault;
            let mut memory = vec![0_u32; layout.block_bytes() / 4];
            let (query, mut out) = ([1.0_f32; 16], [0.0_f32; 16]);
            let args = AttentionArgs {
                kv: LayerBlocks {
                    base: memory.as_mut_ptr().cast(),
                    page_bytes: layout.block_bytes(),
                    pages: &[0],
                    pages_per_block: 1,
                    page_in_block: 0,
                },
                kv_head: 0,
                num_query_heads_per_kv: 1,
                first_position: 0,
                num_tokens: 1,
                window: None,
                is_window_chunk: false,
                first_seen: 0,
                end_seen: usize::MAX,
                scale: 1.0,
                softcap: None,
                bias: None,
                sinks: None,
                q: query.as_ptr(),
                q_stride: 16,
                out: out.as_mut_ptr(),
                out_stride: 16,
                earlier: None,
            };
            for isa in Isa::available() {
                // SAFETY: there is one block, one query and room for one result.
                unsafe {
                    store_kv(isa, &layout, memory.as_mut_ptr().cast(), 0, 0, &rows[0], &rows[1]);
                    attend(isa, &layout, &args, &mut AttentionScratch::default());
                }
                assert!(
                    out.iter().any(|x| !x.is_finite()),
                    "{dtype:?} {fault} on {isa:?}: {out:?}"
                );
            }
        }
    }
}

/// One layer's latents and index keys of a text, and queries of its last token.
struct Indexed {
    layout: KvLayout,
    memory: Vec<u32>,
    table: Vec<u32>,
}

impl Indexed {
    /// A text whose tokens have the keys of these; what is not stored is NaN.
    fn new(dtype: KvType, tokens: &[u32]) -> Self {
        let layout = KvLayout {
            num_kv_heads: 1,
            head_dim: 80,
            values_in_keys: Some(64),
            index_dim: 32,
            dtype,
        };
        let num_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
        let mut indexed = Self {
            layout,
            memory: vec![u32::MAX; num_blocks * layout.block_bytes() / 4],
            table: (0..num_blocks as u32).rev().collect(),
        };
        let kv = indexed.kv();
        for (position, token) in tokens.iter().enumerate() {
            let (latent, key) = (Self::row(*token, 80, 1), Self::row(*token, 32, 2));
            // SAFETY: the table has the position's block, and the memory its page.
            unsafe {
                let (block, slot) = (kv.block(position / BLOCK_TOKENS), position % BLOCK_TOKENS);
                store_kv(Isa::best(), &layout, block, slot, 0, &latent, &[]);
                let index = layout.index().expect("index keys");
                store_kv(Isa::best(), &index, block.add(layout.index_at()), slot, 0, &key, &[]);
            }
        }
        indexed
    }

    fn row(token: u32, len: usize, kind: usize) -> Vec<f32> {
        (0..len)
            .map(|i| 2.0 * number(token as usize * 7919 + i + kind * 1_000_003))
            .collect()
    }

    fn kv(&mut self) -> LayerBlocks<'static> {
        LayerBlocks {
            base: self.memory.as_mut_ptr().cast(),
            page_bytes: self.layout.block_bytes(),
            pages: self.table.clone().leak(),
            pages_per_block: 1,
            page_in_block: 0,
        }
    }

    /// What the token at `position` asks with so many heads.
    fn args(&mut self, position: usize, heads: usize, q: &[f32], out: &mut [f32]) -> AttentionArgs<'static> {
        AttentionArgs {
            kv: self.kv(),
            kv_head: 0,
            num_query_heads_per_kv: heads,
            first_position: position,
            num_tokens: 1,
            window: None,
            is_window_chunk: false,
            first_seen: 0,
            end_seen: usize::MAX,
            scale: 0.2,
            softcap: None,
            bias: None,
            sinks: None,
            q: q.as_ptr(),
            q_stride: q.len(),
            out: out.as_mut_ptr(),
            out_stride: out.len(),
            earlier: None,
        }
    }
}

/// Attention to picked positions has the bits of attention to a text of these alone: of every type, on every set, whole and
/// split, with one chunk of them and with several.
#[test]
fn attention_to_picked_positions_is_that_to_a_text_of_these() {
    const HEADS: usize = 19;
    let q = Indexed::row(5, HEADS * 80, 3);
    for (dtype, num_tokens, every) in KvType::ALL
        .into_iter()
        .flat_map(|dtype| [(dtype, 90, 3), (dtype, 700, 2)])
    {
        let tokens: Vec<u32> = (0..num_tokens).collect();
        let picked: Vec<u32> = (0..num_tokens).filter(|token| token * token % 7 >= every).collect();
        let (mut whole, mut alone) = (Indexed::new(dtype, &tokens), Indexed::new(dtype, &picked));
        let (layout, last) = (whole.layout, picked.len() - 1);
        let mut scratch = AttentionScratch::default();
        let (mut expected, mut found) = (vec![0.0; HEADS * 64], vec![0.0; HEADS * 64]);
        for isa in Isa::available() {
            // SAFETY: memory, queries and results are as large as the arguments say.
            unsafe {
                attend(isa, &layout, &alone.args(last, HEADS, &q, &mut expected), &mut scratch);
                let args = whole.args(last, HEADS, &q, &mut found);
                attend_picked(isa, &layout, &args, &picked, &mut scratch);
                assert_eq!(bits(&found), bits(&expected), "{dtype:?} on {isa:?}");
                found.fill(f32::NAN);
                let len = chunk_len(64, HEADS);
                let mut results = vec![f32::NAN; args.chunks().len() * len];
                for chunk in args.chunks().rev() {
                    let results = results[chunk * len..].as_mut_ptr();
                    attend_picked_chunk(isa, &layout, &args, (&picked, chunk), results, &mut scratch);
                }
                merge_chunks(isa, &layout, &args, results.as_ptr(), &mut scratch);
            }
            assert_eq!(bits(&found), bits(&expected), "{dtype:?} on {isa:?}, split");
        }
    }
}

/// Behind a first position a token sees what a window up to there shows, before an end what the last token before that sees:
/// the same bits, of every type, on every set.
#[test]
fn bounds_of_what_is_seen_are_windows_and_earlier_tokens() {
    const HEADS: usize = 5;
    let q = Indexed::row(5, HEADS * 80, 3);
    let tokens: Vec<u32> = (0..700).collect();
    for dtype in KvType::ALL {
        let mut text = Indexed::new(dtype, &tokens);
        let (layout, mut scratch) = (text.layout, AttentionScratch::default());
        for (isa, bound) in Isa::available()
            .into_iter()
            .flat_map(|isa| [1, 16, 250, 256, 300, 699].map(|bound| (isa, bound)))
        {
            let mut given = [(); 4].map(|()| vec![f32::NAN; HEADS * 64]);
            let [window, behind, earlier, before] = &mut given;
            let last = text.args(699, HEADS, &q, window);
            let of_window = AttentionArgs {
                window: Some(700 - bound),
                ..last
            };
            let bounded = AttentionArgs {
                first_seen: bound,
                ..text.args(699, HEADS, &q, behind)
            };
            let ended = AttentionArgs {
                end_seen: bound,
                ..text.args(699, HEADS, &q, before)
            };
            for args in [of_window, bounded, text.args(bound - 1, HEADS, &q, earlier), ended] {
                // SAFETY: memory, queries and results are as large as the arguments say.
                unsafe { attend(isa, &layout, &args, &mut scratch) };
            }
            let [window, behind, earlier, before] = given.map(|numbers| bits(&numbers));
            assert_eq!(behind, window, "{dtype:?} on {isa:?}, from {bound} on");
            assert_eq!(before, earlier, "{dtype:?} on {isa:?}, up to {bound}");
        }
    }
}

/// A rating is the sum of weighed scores above 0, in `f64`; the same bits on every set, chunk by chunk and at once.
#[test]
fn ratings_equal_their_definition() {
    const HEADS: usize = 16;
    let (q, weights) = (Indexed::row(5, HEADS * 32, 3), Indexed::row(6, HEADS, 4));
    let tokens: Vec<u32> = (0..600).collect();
    for dtype in KvType::ALL {
        let mut text = Indexed::new(dtype, &tokens);
        let (layout, mut scratch) = (text.layout, AttentionScratch::default());
        let mut first: Option<Vec<u32>> = None;
        for (isa, runs) in Isa::available()
            .into_iter()
            .flat_map(|isa| [(isa, vec![0..3, 3..3]), (isa, vec![2..3, 0..2])])
        {
            let mut ratings = vec![f32::NAN; 3 * CHUNK_TOKENS];
            let args = text.args(599, HEADS, &q, &mut []);
            for run in runs {
                // SAFETY: memory and queries are as large as the arguments say; there is room for all chunks.
                unsafe { rate(isa, &layout, &args, &weights, run, ratings.as_mut_ptr(), &mut scratch) };
            }
            ratings.truncate(600);
            for (token, rating) in tokens.iter().zip(&ratings) {
                let key = Indexed::row(*token, 32, 2);
                let scores = q.chunks_exact(32).zip(&weights).map(|(q, weight)| {
                    let score: f64 = q.iter().zip(&key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    f64::from(*weight) * 0.2 * score.max(0.0)
                });
                let expected: f64 = scores.sum();
                let tolerance = if matches!(dtype, KvType::F32) { 1e-5 } else { 0.3 };
                assert!(
                    (f64::from(*rating) - expected).abs() < tolerance,
                    "{dtype:?} {isa:?}: {rating} {expected}"
                );
            }
            let ratings = bits(&ratings);
            assert_eq!(
                first.get_or_insert_with(|| ratings.clone()),
                &ratings,
                "{dtype:?} on {isa:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every instruction set, every chunking of the queries, every splitting of the positions and every placing of the
    /// pages gives the same bits.
    #[test]
    fn attention_is_the_same_bits_however_computed(case in any_case(), chunk in 1_usize..24, shuffle in 0_usize..1000) {
        let expected = bits(&case.run(Isa::Scalar, 0, case.num_tokens));
        for isa in Isa::available() {
            prop_assert_eq!(&bits(&case.run(isa, shuffle, chunk)), &expected, "{:?}", isa);
            prop_assert_eq!(&bits(&case.run_split(isa, shuffle, chunk)), &expected, "{:?}, split", isa);
        }
    }

    /// Stored keys and values are the same bytes on every instruction set.
    #[test]
    fn store_kv_writes_the_same_bytes_on_every_set(case in any_case()) {
        let table = case.table(3);
        let expected = case.memory(Isa::Scalar, &table);
        for isa in Isa::available() {
            prop_assert_eq!(&case.memory(isa, &table), &expected, "{:?}", isa);
        }
    }
}
