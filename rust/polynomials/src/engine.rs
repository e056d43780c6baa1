//! [`Engine`]: a loaded model that expands lines.

use std::any::Any;
use std::cmp::Reverse;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use octavo_core::Error as CoreError;
use octavo_core::pool;
use octavo_core::text::characters::CharTokenizer;
use octavo_engine::{Error, Result, in_file, model_folder, refuse};

use crate::config::Config;
use crate::expander::Expander;
use crate::fused;
use crate::integer_weights::IntegerWeights;
use crate::line::{Alphabet, LineError};
use crate::options::{Options, Precision, Route, setting};
use crate::seq2seq::{Answer, General};
use crate::weights::Weights;

/// Name of the tokenizer's file in a model folder.
const TOKENIZER: &str = "tokenizer.json";
/// Lines that are sorted by length together and stand in memory at once on the fused route: less than a second.
const FUSED_BLOCK: usize = 8192;
/// Hypotheses of a block on the general route, which takes about a second for them on one core.
const GENERAL_BLOCK: usize = 1024;

/// A loaded model. Its methods may be called from several threads at once.
pub struct Engine {
    config: Config,
    alphabet: Alphabet,
    options: Options,
    fused: Option<Box<dyn Expander>>,
    general: Option<General>,
    scratches: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Options { precision, threads, .. } = self.options;
        let mut shown = f.debug_struct("Engine");
        shown.field("config", &self.config).field("precision", &precision).field("route", &self.route());
        shown.field("threads", &threads).finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads a model folder: `config.json`, `tokenizer.json` and the weights. All of it is checked before anything is run.
    ///
    /// # Errors
    /// [`CoreError::Io`] where a file cannot be read; [`CoreError::Container`] naming the file, and in it the field or
    /// tensor, for everything that an exporter would not write; [`CoreError::Setting`] for options that the model does
    /// not allow.
    pub fn load(folder: &Path, options: Options) -> Result<Self> {
        if options.threads > pool::MAX_THREADS {
            let most = pool::MAX_THREADS;
            return Err(setting(format!("{} threads; accepted are 0 (default) to {most}", options.threads)));
        }
        let config = Config::load(folder)?;
        let tokenizer = load_tokenizer(folder, &config)?;
        let (fused, general) = match options.precision {
            Precision::Float | Precision::Bfloat16 => {
                let weights = Weights::load(folder, &config)?;
                let fused = match (options.route, options.precision) {
                    (Route::General, _) => None,
                    (_, Precision::Bfloat16) => fused::bfloat16(&config, &weights)?,
                    _ => fused::float(&config, &weights)?,
                };
                (fused, Some(General::new(&config, &weights)?))
            }
            Precision::Integer if options.route == Route::General => {
                return Err(setting("precision integer runs on the fused route only; choose route auto or fused"));
            }
            Precision::Integer => (fused::integer(&config, &IntegerWeights::load(folder, &config)?)?, None),
        };
        if options.route == Route::Fused && fused.is_none() {
            let folder = folder.display();
            return Err(setting(format!("{folder}: no fused kernels for a {config}; choose route auto")));
        }
        let alphabet = Alphabet::new(&tokenizer, config.max_source);
        Ok(Self { config, alphabet, options, fused, general, scratches: Mutex::default() })
    }

    /// The shape of the model.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// In which numbers the model is run.
    pub const fn precision(&self) -> Precision {
        self.options.precision
    }

    /// The route that greedy expansion takes: [`Route::Fused`] or [`Route::General`].
    pub const fn route(&self) -> Route {
        if self.fused.is_some() { Route::Fused } else { Route::General }
    }

    /// Bytes of prepared weights, beside the packed ones of the file: those that the fused route prepared when the model
    /// was loaded, and those that the general route prepared at its first products, at most 4 MiB.
    pub fn prepared_nbytes(&self) -> usize {
        let fused = self.fused.as_ref().map_or(0, |fused| fused.nbytes());
        fused.saturating_add(self.general.as_ref().map_or(0, General::prepared_nbytes))
    }

    /// The characters that lines may have, in the order of their ids.
    pub(crate) const fn alphabet(&self) -> &Alphabet {
        &self.alphabet
    }

    /// Lines that are worked on at once; a caller that wants to be asked about once a second gives as many.
    pub const fn block(&self, beam: usize) -> usize {
        match beam {
            0 | 1 if self.fused.is_some() => FUSED_BLOCK,
            0 => GENERAL_BLOCK,
            _ if beam > GENERAL_BLOCK => 1,
            _ => GENERAL_BLOCK / beam,
        }
    }

    /// Expands lines, each to its answer or to what is wrong with it.
    ///
    /// `beam`: hypotheses kept a line; 1 is greedy. An answer depends on its line alone: not on the other lines, nor on
    /// the number of threads.
    ///
    /// # Errors
    /// [`CoreError::Setting`] for a beam of 0 or above the vocabulary, or of more than 1 in precision integer, and
    /// where threads cannot be started.
    pub fn expand(&self, lines: &[&str], beam: usize) -> Result<Vec<std::result::Result<String, LineError>>> {
        self.check_beam(beam)?;
        let mut answers = Vec::with_capacity(lines.len());
        for block in lines.chunks(self.block(beam)) {
            let mut rows = Rows::default();
            let errors: Vec<_> = block.iter().map(|line| rows.push(|ids| self.alphabet.encode(line, ids))).collect();
            let mut ids = self.ids(&rows.slices(), beam)?.into_iter();
            answers.extend(errors.into_iter().map(|error| error.map(|()| self.text(&ids.next().unwrap_or_default()))));
        }
        Ok(answers)
    }

    /// As [`Engine::expand`], on the general route, with the log-probability of each answer.
    ///
    /// # Errors
    /// As [`Engine::expand`]; [`CoreError::Setting`] in precision integer.
    pub fn expand_scored(
        &self,
        lines: &[&str],
        beam: usize,
    ) -> Result<Vec<std::result::Result<(String, f32), LineError>>> {
        self.check_beam(beam)?;
        let mut rows = Rows::default();
        let errors: Vec<_> = lines.iter().map(|line| rows.push(|ids| self.alphabet.encode(line, ids))).collect();
        let mut found = self.generally(&rows.slices(), beam)?.into_iter();
        let answers = errors.into_iter().map(|error| {
            let answer = error.map(|()| found.next());
            answer.map(|answer| answer.map_or_else(Default::default, |answer| (self.text(&answer.ids), answer.score)))
        });
        Ok(answers.collect())
    }

    /// Refuses a beam that this engine cannot search with.
    pub(crate) fn check_beam(&self, beam: usize) -> Result<()> {
        let most = self.config.vocabulary;
        if !(1..=most).contains(&beam) {
            return Err(setting(format!("beam is {beam}; accepted are 1 to {most}, the vocabulary")));
        }
        if beam > 1 && self.general.is_none() {
            return Err(setting(format!("beam is {beam}; precision integer is greedy, accepted is 1")));
        }
        Ok(())
    }

    /// The target ids of rows of 1 to `max_source` ids, by the route of `beam`.
    pub(crate) fn ids(&self, rows: &[&[u8]], beam: usize) -> Result<Vec<Vec<u8>>> {
        match &self.fused {
            Some(fused) if beam == 1 => self.in_tiles(rows, fused.tile(), |rows| {
                let mut out = vec![Vec::new(); rows.len()];
                let mut scratch = self.scratch().unwrap_or_else(|| fused.new_scratch());
                fused.expand(rows, &mut out, &mut *scratch);
                self.put_back(scratch);
                Ok(out)
            }),
            _ => Ok(self.generally(rows, beam)?.into_iter().map(|answer| answer.ids).collect()),
        }
    }

    fn generally(&self, rows: &[&[u8]], beam: usize) -> Result<Vec<Answer>> {
        let general = self.general.as_ref().ok_or_else(|| setting("precision integer has no general route"))?;
        // Threads take tiles; the products of one stay on its thread.
        self.in_tiles(rows, General::tile(beam), |rows| pool::alone(|| general.expand(rows, beam)))
    }

    /// Works on rows in tiles of alike lengths, several at once; the answers are in the order of the rows.
    fn in_tiles<T: Send>(
        &self,
        rows: &[&[u8]],
        tile: usize,
        work: impl Fn(&[&[u8]]) -> Result<Vec<T>> + Sync,
    ) -> Result<Vec<T>> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&at| Reverse(rows[at].len()));
        let threads = if self.options.threads == 0 { pool::num_threads() } else { self.options.threads };
        // Few rows are shared out, so that no thread is idle.
        let tile = rows.len().div_ceil(threads).clamp(1, tile.max(1));
        let tiles: Vec<&[usize]> = order.chunks(tile).collect();
        // Every thread takes the next tile when it is done with one; the longest rows come first.
        let next = AtomicUsize::new(0);
        let found = pool::map_on(threads, threads.min(tiles.len()), |_| {
            let mut found = Vec::new();
            while let Some(&places) = tiles.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows: Vec<&[u8]> = places.iter().map(|&at| rows[at]).collect();
                found.push((places, work(&rows)?));
            }
            Ok::<_, Error>(found)
        })?;
        let mut answers: Vec<Option<T>> = (0..rows.len()).map(|_| None).collect();
        for found in found {
            for (places, found) in found? {
                for (&at, answer) in places.iter().zip(found) {
                    answers[at] = Some(answer);
                }
            }
        }
        let all: Option<Vec<T>> = answers.into_iter().collect();
        all.ok_or_else(|| Error::Internal("a tile with fewer answers than rows".to_owned()))
    }

    fn text(&self, ids: &[u8]) -> String {
        let mut text = String::with_capacity(ids.len());
        self.alphabet.decode(ids, &mut text);
        text
    }

    /// Memory that an earlier tile left. A lock that is held, perhaps by a thread that a fork left behind, is not
    /// waited for.
    fn scratch(&self) -> Option<Box<dyn Any + Send>> {
        match self.scratches.try_lock() {
            Ok(mut kept) => kept.pop(),
            Err(TryLockError::Poisoned(kept)) => PoisonError::into_inner(kept).pop(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn put_back(&self, scratch: Box<dyn Any + Send>) {
        if let Ok(mut kept) = self.scratches.try_lock() {
            kept.push(scratch);
        }
    }
}

/// The ids of several lines in one piece.
#[derive(Default)]
pub(crate) struct Rows {
    ids: Vec<u8>,
    ends: Vec<usize>,
}

impl Rows {
    /// Adds the row that `write` appends; an error adds none.
    pub(crate) fn push<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        write(&mut self.ids)?;
        self.ends.push(self.ids.len());
        Ok(())
    }

    pub(crate) fn slices(&self) -> Vec<&[u8]> {
        let mut start = 0;
        let rows = self.ends.iter().map(|&end| {
            let row = &self.ids[start..end];
            start = end;
            row
        });
        rows.collect()
    }
}

fn load_tokenizer(folder: &Path, config: &Config) -> Result<CharTokenizer> {
    let path = folder.join(TOKENIZER);
    let bytes = model_folder::read(&path, 1 << 16)?;
    let at_path = |error: CoreError| in_file(path.display(), error.into());
    let tokenizer = CharTokenizer::from_json(&bytes).map_err(at_path)?;
    if tokenizer.size() != config.vocabulary {
        let (size, vocabulary) = (tokenizer.size(), config.vocabulary);
        let what = format!("{size} ids, the special ones included; the vocabulary of config.json has {vocabulary}");
        return Err(refuse(format!("{}: {what}", path.display())));
    }
    Ok(tokenizer)
}
