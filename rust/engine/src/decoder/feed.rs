//! [`Feed`]: the feed-forward network of a block, or a mixture of several among which each token chooses.

use octavo_core::pool;

use super::names::{ExpertNames, Names};
use super::plan::{ExpertsPlan, FeedPlan, Gate};
use crate::error::{Error, Result};
use crate::functions::{Loops, at_level, softmax};
use crate::layers::{Activation, Demand, Dense, Source, activate, gated_pairs};

/// The feed-forward network of a block, or several with what chooses among them.
pub(super) struct Feed {
    networks: Vec<Layers>,
    choice: Option<(Dense, ExpertsPlan)>,
}

/// The layers of one network.
pub(super) struct Layers {
    activation: Activation,
    gate: Option<Dense>,
    up: Dense,
    /// How `up` has rows of the activations, too.
    joined: Joined,
    down: Dense,
}

/// Rows of a layer that has the activations and the other projection.
#[derive(Clone, Copy)]
enum Joined {
    /// It has the other projection alone.
    No,
    Halves,
    Pairs {
        slope: f32,
        most: f32,
    },
}

impl Joined {
    const fn of(gate: Gate) -> Self {
        match gate {
            Gate::None | Gate::Apart => Self::No,
            Gate::Together => Self::Halves,
            Gate::Pairs { slope, most } => Self::Pairs { slope, most },
        }
    }
}

impl Feed {
    /// Loads the network of block `number`.
    pub(super) fn load(source: &Source, names: &Names, number: usize, plan: &FeedPlan, width: usize) -> Result<Self> {
        let at = |name: &str| names.of_block(number, name);
        if let Some(experts) = plan.experts {
            return Self::load_experts(source, &names.experts, &at, plan, experts, width);
        }
        let dense = |name: &str, inputs, outputs| {
            let demand = Demand { inputs, outputs, biased: plan.biased, transposed: names.transposed };
            source.dense(&at(name), demand)
        };
        let (gate, up, joined) = match plan.gate {
            Gate::None => (None, dense(names.up, width, plan.inner)?, Joined::No),
            Gate::Apart => {
                let demand =
                    Demand { inputs: width, outputs: plan.inner, biased: plan.biased, transposed: names.transposed };
                Self::gated(source, [&at(names.gate), &at(names.up)], demand)?
            }
            gate => (None, dense(names.up, width, 2 * plan.inner)?, Joined::of(gate)),
        };
        let down = dense(names.down, plan.inner, width)?;
        let layers = Layers { activation: plan.activation, gate, up, joined, down };
        Ok(Self { networks: vec![layers], choice: None })
    }

    /// Gate and up, as one layer where they are packed alike: the bits are the same, one product takes less than two.
    fn gated(source: &Source, paths: [&str; 2], demand: Demand) -> Result<(Option<Dense>, Dense, Joined)> {
        if let Some(both) = source.dense_together(&paths.map(|path| (path, demand)))? {
            return Ok((None, both, Joined::Halves));
        }
        let [gate, up] = paths;
        Ok((Some(source.dense(gate, demand)?), source.dense(up, demand)?, Joined::No))
    }

    /// Experts have both projections in one layer each, in one tensor of all, or layers of their own.
    fn load_experts(
        source: &Source,
        names: &ExpertNames,
        at: &dyn Fn(&str) -> String,
        plan: &FeedPlan,
        experts: ExpertsPlan,
        width: usize,
    ) -> Result<Self> {
        let has = |name: &str| source.has(&at(&format!("{name}.weight")));
        let [router, checkpoint] = names.routers;
        let router = if has(router) { router } else { checkpoint };
        let router = source.dense(&at(router), Demand::of(width, experts.count, plan.biased))?;
        let [module, checkpoint] = names.modules;
        let [both, behind] = names.together;
        let [gate, up, down] = names.apart;
        let inner = plan.inner;
        let whole = |name: &str, inputs, outputs| {
            // Those in pairs are the transpose of others.
            let transposed = matches!(plan.gate, Gate::Pairs { .. });
            let demand = Demand { inputs, outputs, biased: plan.biased, transposed };
            source.stacked(&at(&format!("{module}.{name}")), experts.count, demand)
        };
        let (all_both, all_behind) = (whole(both, width, 2 * inner)?, whole(behind, inner, width)?);
        let (mut all_both, mut all_behind) = (all_both.map(Vec::into_iter), all_behind.map(Vec::into_iter));
        let path = |number: usize, name: &str| {
            let paths = [module, checkpoint].map(|module| format!("{module}.{number}.{name}"));
            at(paths.iter().find(|path| has(path)).unwrap_or(&paths[0]))
        };
        let one = |number: usize, name: &str, inputs, outputs| {
            source.dense(&path(number, name), Demand::of(inputs, outputs, plan.biased))
        };
        let is_paired = matches!(plan.gate, Gate::Pairs { .. });
        let mut layers = Vec::new();
        for number in 0..experts.count {
            let stacked = all_both.as_mut().and_then(Iterator::next);
            let joined = if is_paired { Joined::of(plan.gate) } else { Joined::Halves };
            let (gate, up, joined) = match stacked {
                Some(both) => (None, both, joined),
                None if is_paired || has(&format!("{module}.{number}.{both}")) => {
                    (None, one(number, both, width, 2 * inner)?, joined)
                }
                None => {
                    let paths = [&*path(number, gate), &*path(number, up)];
                    Self::gated(source, paths, Demand::of(width, inner, plan.biased))?
                }
            };
            let down = match all_behind.as_mut().and_then(Iterator::next) {
                Some(behind) => behind,
                None if is_paired || has(&format!("{module}.{number}.{behind}")) => one(number, behind, inner, width)?,
                None => one(number, down, inner, width)?,
            };
            layers.push(Layers { activation: plan.activation, gate, up, joined, down });
        }
        Ok(Self { networks: layers, choice: Some((router, experts)) })
    }

    /// What the network gives for rows, `[rows, width]`.
    pub(super) fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        match (&self.choice, self.networks.as_slice()) {
            (None, [layers]) => layers.apply(x),
            (None, _) => Err(Error::Internal("several networks and no choice".to_owned())),
            (Some((router, plan)), experts) => mixed(x, router, experts, *plan),
        }
    }

    /// All layers.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.networks.iter().flat_map(Layers::all).chain(self.choice.iter().map(|(router, _)| router))
    }

    /// Bytes of the weights that a step reads: of experts, those that a token chooses.
    pub(super) fn nbytes(&self) -> usize {
        let all: usize = self.networks.iter().map(Layers::nbytes).sum();
        match &self.choice {
            None => all,
            Some((router, plan)) => router.nbytes() + all / plan.count * plan.chosen,
        }
    }
}

impl Layers {
    fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut inner = self.up.apply_rows_independently(x)?;
        match (&self.gate, self.joined) {
            (Some(gate), _) => {
                let mut gates = gate.apply_rows_independently(x)?;
                activate(&mut gates, self.activation)?;
                inner.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate);
            }
            (None, Joined::Halves) => {
                let half = self.down.inputs;
                let (mut gates, mut rest) = (Vec::with_capacity(inner.len() / 2), Vec::with_capacity(inner.len() / 2));
                for row in inner.chunks_exact(2 * half) {
                    let (gate, up) = row.split_at(half);
                    gates.extend_from_slice(gate);
                    rest.extend_from_slice(up);
                }
                activate(&mut gates, self.activation)?;
                rest.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate);
                inner = rest;
            }
            (None, Joined::Pairs { slope, most }) => inner = gated_pairs(&inner, slope, most)?,
            (None, Joined::No) => activate(&mut inner, self.activation)?,
        }
        self.down.apply_rows_independently(&inner)
    }

    fn all(&self) -> impl Iterator<Item = &Dense> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    fn nbytes(&self) -> usize {
        self.all().map(Dense::nbytes).sum()
    }
}

/// Each row through the experts of its largest probabilities, which weight what they give. Experts add to a row in the order
/// of their numbers, whatever rows there are beside it.
fn mixed(x: &[f32], router: &Dense, experts: &[Layers], plan: ExpertsPlan) -> Result<Vec<f32>> {
    let width = router.inputs;
    let mut probabilities = router.apply_rows_independently(x)?;
    at_level(Softmax { rows: &mut probabilities, count: plan.count });
    let mut rows_of = vec![Vec::new(); plan.count];
    for (row, probabilities) in probabilities.chunks_exact(plan.count).enumerate() {
        let mut order: Vec<usize> = (0..plan.count).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]).then(a.cmp(&b)));
        order.truncate(plan.chosen);
        let sum: f32 = if plan.normed { order.iter().map(|&expert| probabilities[expert]).sum() } else { 1.0 };
        for expert in order {
            rows_of[expert].push((row, probabilities[expert] / sum));
        }
    }
    let active: Vec<_> = experts.iter().zip(rows_of).filter(|(_, rows)| !rows.is_empty()).collect();
    let apply = |(layers, rows): &(&Layers, Vec<(usize, f32)>)| {
        let some: Vec<f32> = rows.iter().flat_map(|&(row, _)| &x[row * width..][..width]).copied().collect();
        layers.apply(&some)
    };
    let mut out = vec![0.0; x.len()];
    let mut add = |rows: &[(usize, f32)], fed: &[f32]| {
        for (&(row, share), fed) in rows.iter().zip(fed.chunks_exact(width)) {
            out[row * width..][..width].iter_mut().zip(fed).for_each(|(out, value)| *out += value * share);
        }
    };
    let threads = pool::num_threads();
    if x.len() == width && threads > 1 && active.len().is_multiple_of(threads) {
        // As many experts on each thread: they wait for each other once, not at every product.
        let fed = pool::map(active.len(), usize::MAX, |at| pool::alone(|| apply(&active[at])))?;
        for ((_, rows), fed) in active.iter().zip(fed) {
            add(rows, &fed?);
        }
    } else {
        for expert in &active {
            add(&expert.1, &apply(expert)?);
        }
    }
    Ok(out)
}

struct Softmax<'a> {
    rows: &'a mut [f32],
    count: usize,
}

impl Loops for Softmax<'_> {
    #[inline(always)]
    fn run(self) {
        self.rows.chunks_exact_mut(self.count).for_each(softmax);
    }
}
