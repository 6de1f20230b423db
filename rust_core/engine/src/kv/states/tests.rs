//! Cells lie apart and in their pages; runs end where a state is kept; tables without one are refused.

use std::collections::HashSet;
use std::sync::Arc;

use pyagent_kernels::attention::KvType;

use super::*;
use crate::config::{DeltaNet, ModelConfig, Recurrent};
use crate::kv::KvPages;

/// A model of six layers, of which every third has attention.
fn config(recurrent: Recurrent) -> ModelConfig {
    let text = r#"{"model_type": "lfm2", "vocab_size": 8, "hidden_size": 96, "intermediate_size": 96,
        "num_hidden_layers": 6, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 512,
        "full_attn_idxs": [2, 5]}"#;
    let fields = serde_json::from_str(text).expect("a JSON object");
    let config = ModelConfig::from_hugging_face(&fields, None).expect("a small LFM2");
    ModelConfig {
        recurrent: Some(recurrent),
        ..config
    }
}

fn delta_net() -> Recurrent {
    Recurrent::DeltaNet(DeltaNet {
        taps: 4,
        num_key_heads: 3,
        num_value_heads: 6,
        key_size: 48,
        value_size: 32,
        is_tiled: false,
    })
}

fn pages(recurrent: Recurrent) -> KvPages {
    let config = config(recurrent);
    KvPages::of(&config, KvType::Bf16)
}

/// Every cell lies in one page of the state and shares no byte with another; the state has no page too many.
#[test]
fn cells_lie_apart() {
    for (recurrent, [num_histories, num_matrices]) in [
        (Recurrent::ShortConvolution { taps: 3 }, [6, 0]),
        (delta_net(), [(3 * 48 * 2 + 6 * 32) / 16, 12]),
    ] {
        let pages = pages(recurrent);
        let states = pages.states.as_ref().expect("recurrent layers");
        let mut taken = HashSet::new();
        let mut most = 0;
        for layer in 0..6 {
            let LayerCells { histories, matrices } = states.layer(layer);
            let has_attention = layer % 3 == 2;
            let expected = if has_attention {
                [0, 0]
            } else {
                [num_histories, num_matrices]
            };
            assert_eq!([histories.len(), matrices.len()], expected);
            for (cells, len) in [(histories, states.cell_lens[0]), (matrices, states.cell_lens[1])] {
                for cell in cells {
                    let bytes = cell.offset as usize..cell.offset as usize + len * size_of::<f32>();
                    assert!(bytes.end <= pages.page_bytes() && (cell.page as usize) < states.num_pages);
                    assert!(
                        bytes.step_by(4).all(|byte| taken.insert((cell.page, byte))),
                        "two cells share bytes"
                    );
                    most = most.max(cell.page as usize + 1);
                }
            }
        }
        assert_eq!(most, states.num_pages);
        let group = pages.groups.last().expect("a group");
        assert_eq!(
            (group.pages_per_block, group.state_every),
            (states.num_pages, Some(states.every))
        );
        assert_eq!(
            pages.least_pages(),
            pages.groups[0].pages_per_block + 2 * states.num_pages
        );
    }
}

/// A table of so many blocks of states, of which these have pages.
fn table(states: &StatePages, num_blocks: usize, kept: &[usize]) -> Vec<u32> {
    let page = |block: usize| if kept.contains(&block) { block as u32 } else { NO_PAGE };
    (0..num_blocks)
        .flat_map(|block| std::iter::repeat_n(page(block), states.num_pages))
        .collect()
}

/// Tokens are cut at the ends of blocks that keep their state, and each run goes on from the one before.
#[test]
fn runs_end_where_states_are_kept() {
    let pages = pages(delta_net());
    let states = pages.states.as_ref().expect("recurrent layers");
    let runs = |kept: &[usize], first, count| {
        let runs = states.runs(&table(states, 5, kept), first, count);
        runs.into_iter()
            .map(|run| (run.tokens, run.from, run.to))
            .collect::<Vec<_>>()
    };
    assert_eq!(runs(&[4], 0, 70), [(0..70, None, 4)]);
    assert_eq!(runs(&[1, 4], 0, 70), [(0..32, None, 1), (32..70, Some(1), 4)]);
    assert_eq!(
        runs(&[0, 1, 2], 5, 43),
        [(0..11, Some(0), 0), (11..27, Some(0), 1), (27..43, Some(1), 2)]
    );
    assert_eq!(runs(&[1, 2], 32, 1), [(0..1, Some(1), 2)]);
    assert_eq!(runs(&[2], 33, 2), [(0..2, Some(2), 2)]);
}

/// Drafts are a run of their own behind those of the tokens before them, from and to the state after the last of these.
#[test]
fn drafts_start_from_a_state_that_is_kept() {
    let pages = pages(Recurrent::ShortConvolution { taps: 3 });
    let states = pages.states.expect("recurrent layers");
    let runs = |kept: &[usize], first, count, num_drafts| {
        let runs = states.runs_before_drafts(&table(&states, 5, kept), first, count, num_drafts);
        runs.into_iter()
            .map(|run| (run.tokens, run.from, run.to, run.is_draft))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        runs(&[1, 2], 31, 8, 7),
        [(0..1, Some(1), 1, false), (1..8, Some(1), 1, true)]
    );
    assert_eq!(
        runs(&[1, 2], 31, 9, 7),
        [
            (0..1, Some(1), 1, false),
            (1..2, Some(1), 2, false),
            (2..9, Some(2), 2, true)
        ]
    );
    assert_eq!(runs(&[0], 0, 5, 0), [(0..5, None, 0, false)]);
}

/// A segment is refused whose state before it, or at its end, is nowhere, or in a page that does not exist.
#[test]
fn tables_without_a_state_are_refused() {
    let pages = pages(Recurrent::ShortConvolution { taps: 3 });
    let states = pages.states.clone().expect("recurrent layers");
    let memory = KvMemory::new(pages, 5).expect("memory");
    let keys = Arc::new(vec![0, 1, 2, 3, 4]);
    let check = |kept: &[usize], first, end| {
        let tables = [Arc::clone(&keys), Arc::new(table(&states, 5, kept))];
        memory.check(&tables, first, end, &mut Default::default())
    };
    assert_eq!(check(&[4], 0, 70), Ok(()));
    assert_eq!(check(&[2, 4], 48, 80), Ok(()));
    let lacks = |position| Err(format!("the state after position {position} is not there"));
    assert_eq!(check(&[2], 0, 70), lacks(69));
    assert_eq!(check(&[4], 48, 80), lacks(47));
    let gone = [Arc::clone(&keys), Arc::new(vec![9; 5 * states.num_pages])];
    assert!(
        memory
            .check(&gone, 0, 10, &mut Default::default())
            .is_err_and(|text| text.contains("do not exist"))
    );
}
