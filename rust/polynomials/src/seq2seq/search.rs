//! Greedy and beam search over any model, with the results of `octavo.lab.polynomials.seq2seq.generate`.

use std::cmp::Ordering;

use octavo_core::text::characters::{END, PAD, START};

use super::Model;
use super::error::Result;
use super::state::Source;

/// The most likely target of a row, and how likely it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Ids, without the end token.
    pub(crate) ids: Vec<u8>,
    /// Sum of the log-probabilities of all tokens, the end token's included.
    pub(crate) score: f32,
}

/// Takes the most likely token until every row has ended; rows that have ended are computed no further.
pub(super) fn greedy(model: &dyn Model, rows: &[&[u8]], max_target: usize) -> Result<Vec<Answer>> {
    let encoded = model.encode(&Source::new(rows))?;
    let mut state = model.begin(&encoded);
    let mut answers = vec![Answer { ids: Vec::new(), score: 0.0 }; rows.len()];
    let mut going: Vec<usize> = (0..rows.len()).collect(); // the row of each hypothesis
    let mut latest = vec![START; rows.len()];
    for _ in 0..max_target {
        let mut logits: Vec<Vec<f32>> = model.step(&latest, &encoded, &mut state)?.to_vec2()?;
        let mut chosen = Vec::with_capacity(going.len());
        for (at, (&row, logits)) in going.iter().zip(&mut logits).enumerate() {
            let (token, found) = best(log_probabilities(logits));
            answers[row].score += found;
            if token != END {
                answers[row].ids.push(token);
                chosen.push(at as u32);
            }
            latest[at] = token;
        }
        if chosen.is_empty() {
            break;
        }
        if chosen.len() < going.len() {
            state.select(&chosen)?;
            going = chosen.iter().map(|&at| going[at as usize]).collect();
            latest = chosen.iter().map(|&at| latest[at as usize]).collect();
        }
    }
    Ok(answers)
}

/// One way to go on.
#[derive(Clone)]
struct Hypothesis {
    tokens: Vec<u8>,
    score: f32,
    ended: bool,
}

/// Keeps the `width` most likely hypotheses of each row; scores are not normalized by length.
///
/// A hypothesis that has ended stays in the beam with its score; a row is done when all its hypotheses have ended. Of
/// equal scores the earlier hypothesis, then the lower token, wins.
pub(super) fn beam(model: &dyn Model, rows: &[&[u8]], max_target: usize, width: usize) -> Result<Vec<Answer>> {
    let encoded = model.encode(&Source::new(rows))?;
    let mut state = model.begin(&encoded);
    // All hypotheses of a row are equal at the start, so there is one; the others would not score.
    let start = Hypothesis { tokens: Vec::new(), score: 0.0, ended: false };
    let mut beams: Vec<Vec<Hypothesis>> = vec![vec![start]; rows.len()];
    // Only hypotheses that go on are computed: their rows and places in the beams, in the order of the state.
    let mut latest = vec![START; rows.len()];
    for _ in 0..max_target {
        let logits: Vec<Vec<f32>> = model.step(&latest, &encoded, &mut state)?.to_vec2()?;
        let mut logits = logits.into_iter().enumerate();
        let (mut chosen, mut next) = (Vec::new(), Vec::new());
        for hypotheses in &mut beams {
            if hypotheses.iter().all(|hypothesis| hypothesis.ended) {
                continue;
            }
            let mut candidates = Vec::new();
            for (parent, hypothesis) in hypotheses.iter().enumerate() {
                if hypothesis.ended {
                    candidates.push(Candidate { score: hypothesis.score, parent, token: PAD, at: 0 });
                } else if let Some((at, mut logits)) = logits.next() {
                    let found = log_probabilities(&mut logits).iter().enumerate();
                    candidates.extend(found.map(|(token, found)| Candidate {
                        score: hypothesis.score + found,
                        parent,
                        token: token as u8,
                        at: at as u32,
                    }));
                }
            }
            *hypotheses = kept(candidates, width)
                .into_iter()
                .map(|candidate| {
                    let Candidate { score, parent, token, at } = candidate;
                    let mut hypothesis = Hypothesis { score, ..hypotheses[parent].clone() };
                    if !hypothesis.ended && token == END {
                        hypothesis.ended = true;
                    } else if !hypothesis.ended {
                        hypothesis.tokens.push(token);
                        chosen.push(at);
                        next.push(token);
                    }
                    hypothesis
                })
                .collect();
        }
        if chosen.is_empty() {
            break;
        }
        state.select(&chosen)?;
        latest = next;
    }
    let answers = beams.into_iter().map(|hypotheses| match hypotheses.into_iter().next() {
        Some(best) => Answer { ids: best.tokens, score: best.score },
        // A model whose numbers overflowed.
        None => Answer { ids: Vec::new(), score: f32::NEG_INFINITY },
    });
    Ok(answers.collect())
}

#[derive(Clone, Copy)]
struct Candidate {
    score: f32,
    parent: usize,
    token: u8,
    /// Place of the parent in the state.
    at: u32,
}

/// The `width` best candidates, best first; fewer where fewer are possible at all.
fn kept(mut candidates: Vec<Candidate>, width: usize) -> Vec<Candidate> {
    // Descending, and stable: candidates stand in the order of hypotheses and tokens.
    candidates.retain(|candidate| candidate.score > f32::NEG_INFINITY);
    candidates.sort_by(|a, b| b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal));
    candidates.truncate(width);
    candidates
}

/// Log-probabilities from logits; pad and start are no answers, so they have none.
fn log_probabilities(logits: &mut [f32]) -> &[f32] {
    let barred = usize::from(END).min(logits.len());
    logits[..barred].fill(f32::NEG_INFINITY);
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let total = total.ln();
    for logit in logits.iter_mut() {
        *logit = *logit - largest - total;
    }
    logits
}

/// The first of the largest log-probabilities. A model whose numbers overflowed says the end token.
fn best(found: &[f32]) -> (u8, f32) {
    let mut best = (END, f32::NEG_INFINITY);
    for (token, &found) in found.iter().enumerate() {
        if found > best.1 {
            best = (token as u8, found);
        }
    }
    best
}
