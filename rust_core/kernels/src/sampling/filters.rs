//! The filters of a ranking: each keeps a range of it, and the sample walks what is left.

use super::SamplingParams;
use super::weigh::Row;

/// What cuts a row's ranking. Weights are those of the ranking: the best token's is 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filters {
    pub(super) top_k: usize,
    top_h: f64,
    typical_p: f64,
    top_p: f64,
    min_p: f64,
    /// XTC's threshold, when its turn has come.
    xtc: Option<f64>,
    /// The weight below which nothing is kept, by the filters that are thresholds.
    least: f64,
}

/// A ranked token: the logarithm of its weight, and the weight.
pub(super) type Ranked = (f64, f64);

/// A range of the ranking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) first: usize,
    pub(super) end: usize,
    /// Weight of all that is kept.
    pub(super) mass: f64,
    /// Whether the range is all that is kept, and not only the part that is ranked.
    pub(super) is_all: bool,
}

impl Filters {
    /// The request's, for a row in which XTC has its turn or not.
    pub(super) fn of(params: &SamplingParams, has_xtc: bool) -> Self {
        Self {
            top_k: if params.top_k == 0 { usize::MAX } else { params.top_k },
            top_h: f64::from(params.top_h),
            typical_p: f64::from(params.typical_p),
            top_p: f64::from(params.top_p),
            min_p: f64::from(params.min_p),
            xtc: has_xtc.then(|| f64::from(params.xtc_threshold)),
            least: 0.0,
        }
    }

    /// Only the `top_k` best, or those of a weight.
    pub(super) fn only(top_k: usize, least: f64) -> Self {
        let params = SamplingParams {
            top_k,
            ..SamplingParams::default()
        };
        Self {
            least,
            ..Self::of(&params, false)
        }
    }

    /// The same, and nothing below this weight; the best token is always kept.
    pub(super) fn with_least(self, least: f64) -> Self {
        Self {
            least: self.least.max(least.min(1.0)),
            ..self
        }
    }

    /// The same, with the numbers that follow the entropy of the row (in nats): `e^entropy` is the number of tokens it
    /// hesitates between.
    pub(super) fn following(self, params: &SamplingParams, entropy: f64) -> Self {
        let entropy = entropy.max(0.0); // but for rounding
        let top_k = match params.top_k_entropy {
            0.0 => usize::MAX,
            factor => ((f64::from(factor) * entropy.exp()).round() as usize).max(1),
        };
        Self {
            top_k: self.top_k.min(top_k),
            min_p: self.min_p * (-f64::from(params.min_p_entropy) * entropy).exp(),
            ..self
        }
    }

    pub(super) fn least(&self) -> f64 {
        self.least
    }

    /// Whether a filter may cut by more than count.
    pub(super) fn cut_by_mass(&self) -> bool {
        self.top_p < 1.0 || self.min_p > 0.0 || self.least > 0.0
    }

    /// Whether the row's entropy is read.
    pub(super) fn reads_entropy(&self) -> bool {
        self.top_h < 1.0 || self.typical_p < 1.0
    }

    /// Whether the mass of all is read: min-p alone ends by a weight.
    fn reads_mass(&self) -> bool {
        self.reads_entropy() || self.top_p < 1.0 || self.min_p == 0.0
    }

    /// Whether XTC is the only filter that needs the ranking itself, and has nothing to exclude: all but one of the tokens,
    /// of which `ranked` are the first, are less likely than its threshold.
    pub(super) fn is_xtc_idle(&self, ranked: &[Ranked], row: &Row<'_>) -> bool {
        let is_alone = !self.reads_entropy() && self.min_p == 0.0 && self.least == 0.0;
        let second = ranked.get(1).map_or(0.0, |(_, weight)| *weight);
        // A hair less than what is kept of the mass.
        let mass = || 0.999_999 * self.top_p * row.mass();
        is_alone && self.xtc.is_some_and(|threshold| second < threshold * mass())
    }

    /// Whether a filter needs the ranking itself, and not only masses on the way down.
    pub(super) fn read_ranking(&self) -> bool {
        self.reads_entropy() || self.xtc.is_some()
    }

    /// What is kept of a ranking, of which the first tokens are `ranked`: all of them if `is_whole`. `None` when a filter
    /// would have to see more.
    pub(super) fn keep(&self, ranked: &[Ranked], row: &Row<'_>, is_whole: bool) -> Option<Range> {
        let end = ranked.len().min(self.top_k);
        let above = ranked[..end].partition_point(|(_, weight)| *weight >= self.least);
        let is_counted = self.top_k <= ranked.len() || above < end;
        let mut range = Range {
            first: 0,
            end: above,
            mass: f64::NAN,
            is_all: is_whole || is_counted,
        };
        if is_counted {
            range.mass = mass_of(&ranked[..above]);
        } else if self.reads_mass() {
            range.mass = row.mass();
        }
        if self.reads_entropy() {
            let entropy = if is_counted {
                entropy_of(&ranked[..above], range.mass)
            } else {
                row.entropy()
            };
            range = self.by_entropy(ranked, range, entropy)?;
        }
        if self.top_p < 1.0 || self.min_p > 0.0 {
            range = self.walk(ranked, range)?;
        }
        match self.xtc {
            Some(threshold) => exclude_top(ranked, range, threshold),
            None => Some(range),
        }
    }

    /// Top-h, then typical.
    fn by_entropy(&self, ranked: &[Ranked], mut range: Range, mut entropy: f64) -> Option<Range> {
        if self.top_h < 1.0 {
            range = self.top_h(ranked, range, entropy)?;
            entropy = entropy_of(&ranked[range.first..range.end], range.mass);
        }
        if self.typical_p < 1.0 {
            range = self.typical(ranked, range, entropy)?;
        }
        Some(range)
    }

    /// The most likely tokens whose own entropy is at most `top_h` of the whole, at least one.
    fn top_h(&self, ranked: &[Ranked], range: Range, entropy: f64) -> Option<Range> {
        let most = self.top_h * entropy;
        let (mut mass, mut moment) = (0.0, 0.0);
        for (index, (log, weight)) in ranked[..range.end].iter().enumerate() {
            let (next_mass, next_moment) = (mass + weight, moment + weight * log);
            if index > 0 && next_mass.ln() - next_moment / next_mass > most {
                return Some(Range {
                    end: index,
                    mass,
                    is_all: true,
                    ..range
                });
            }
            (mass, moment) = (next_mass, next_moment);
        }
        range.is_all.then_some(range)
    }

    /// The tokens whose surprise is nearest to the entropy, fewest that reach `typical_p`; of two as near, the likelier.
    fn typical(&self, ranked: &[Ranked], range: Range, entropy: f64) -> Option<Range> {
        let expected = range.mass.ln() - entropy; // the logarithm of the weight whose surprise is the entropy
        let kept = &ranked[..range.end];
        let mut down = kept.partition_point(|(log, _)| *log > expected).max(range.first);
        let mut up = down;
        let target = self.typical_p * range.mass;
        let mut mass = 0.0;
        while mass < target {
            let above = (up > range.first).then(|| kept[up - 1].0 - expected);
            let below = match kept.get(down) {
                Some((log, _)) => Some(expected - log),
                None if !range.is_all => return None,
                None => None,
            };
            match (above, below) {
                (None, None) => break, // rounding is short of the mass
                (Some(above), below) if below.is_none_or(|below| above <= below) => {
                    up -= 1;
                    mass += kept[up].1;
                }
                _ => {
                    mass += kept[down].1;
                    down += 1;
                }
            }
        }
        Some(Range {
            first: up,
            end: down,
            mass,
            is_all: true,
        })
    }

    /// Top-p, the crossing token included, and min-p.
    fn walk(&self, ranked: &[Ranked], range: Range) -> Option<Range> {
        let mut walk = Walk::new(self, range.mass, ranked[range.first].1);
        let tokens = &ranked[range.first..range.end];
        let is_ended = tokens.iter().any(|(_, weight)| walk.ends_after(*weight));
        (is_ended || range.is_all).then_some(Range {
            end: range.first + walk.count,
            mass: walk.mass,
            is_all: true,
            ..range
        })
    }
}

/// Top-p and min-p, going down the ranking.
pub(super) struct Walk {
    /// The weight at which top-p has enough.
    target: f64,
    least: f64,
    pub(super) count: usize,
    pub(super) mass: f64,
}

impl Walk {
    /// At the top of a ranking of `mass`, whose best token weighs `greatest`.
    pub(super) fn new(filters: &Filters, mass: f64, greatest: f64) -> Self {
        let target = if filters.top_p < 1.0 {
            filters.top_p * mass
        } else {
            f64::INFINITY
        };
        Self {
            target,
            least: filters.least.max(filters.min_p * greatest),
            count: 0,
            mass: 0.0,
        }
    }

    /// Whether the filters may end among tokens of `mass` together.
    pub(super) fn may_end_within(&self, mass: f64) -> bool {
        self.mass + mass >= self.target
    }

    /// Whether a weight is too little.
    pub(super) fn cuts(&self, weight: f64) -> bool {
        weight < self.least
    }

    /// Takes in the next token unless it weighs too little; whether it is the last, or cut.
    pub(super) fn ends_after(&mut self, weight: f64) -> bool {
        if self.cuts(weight) {
            return true;
        }
        self.count += 1;
        self.mass += weight;
        self.mass >= self.target
    }
}

/// XTC: of several tokens of at least the threshold's probability only the last, and all that come after.
fn exclude_top(ranked: &[Ranked], range: Range, threshold: f64) -> Option<Range> {
    let kept = &ranked[range.first..range.end];
    let num_top = kept.partition_point(|(_, weight)| *weight >= threshold * range.mass);
    if num_top == kept.len() && !range.is_all {
        return None;
    }
    let num_out = num_top.saturating_sub(1);
    let mass = range.mass - mass_of(&kept[..num_out]);
    // What is left of a sum may be nothing but rounding: add it up where that is possible.
    let mass = if range.is_all { mass_of(&kept[num_out..]) } else { mass };
    Some(Range {
        first: range.first + num_out,
        mass,
        ..range
    })
}

pub(super) fn mass_of(tokens: &[Ranked]) -> f64 {
    tokens.iter().map(|(_, weight)| weight).sum()
}

/// In nats, of tokens of this weight together.
fn entropy_of(tokens: &[Ranked], mass: f64) -> f64 {
    let moment: f64 = tokens
        .iter()
        .filter(|(_, weight)| *weight > 0.0)
        .map(|(log, weight)| weight * log)
        .sum();
    mass.ln() - moment / mass
}
