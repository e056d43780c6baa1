//! Streams of lines: any number of lines, in memory for a few thousand.

use std::io::{self, Read, Write};

use octavo_core::Error as CoreError;
use octavo_engine::{Error, Result};
use serde::Serialize;

use crate::engine::{Engine, Rows};
use crate::line::{LineError, characters, utf8};

/// Bytes that are read at once, about as many as a block of lines has.
const CHUNK: usize = 128 * 1024;

/// How answers are written, each on a line of its own in the order of the lines read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The answer; nothing for a line with an error.
    #[default]
    Text,
    /// `line=answer`; nothing for a line with an error.
    Pairs,
    /// A JSON object: `{"line":7,"left":"...","right":"..."}`, or `{"line":7,"error":"..."}`.
    Json,
}

impl Form {
    /// The name in options: `text`, `pairs` or `json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Pairs => "pairs",
            Self::Json => "json",
        }
    }
}

impl std::str::FromStr for Form {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let found = [Self::Text, Self::Pairs, Self::Json].into_iter().find(|form| form.name() == text);
        let refusal = || CoreError::setting(format!("unknown format '{text}'; accepted are text, pairs, json"));
        found.ok_or_else(|| refusal().into())
    }
}

/// A line with an error: its number, counted from 1, and what is wrong with it.
pub type Failure = (u64, LineError);

/// How a stream ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Lines answered, those with an error included.
    pub lines: u64,
    /// Lines with an error.
    pub failed: u64,
    /// True where the writer was closed before the reader's end.
    pub closed: bool,
}

#[derive(Serialize)]
struct Answered<'a> {
    line: u64,
    left: &'a str,
    right: &'a str,
}

#[derive(Serialize)]
struct Refused<'a> {
    line: u64,
    error: &'a str,
}

/// One line that waits, or its beginning where it is too long to be kept.
struct Waiting {
    end: usize,
    /// Characters that were not kept.
    cut: usize,
}

/// Lines on their way: bytes are pushed in pieces of any size, answers taken out block by block.
///
/// A line ends with a line feed or the end of the stream; a carriage return before it is dropped, unless it is in the
/// vocabulary, and so is a mark of UTF-8 (BOM) before the first line. Of a line that is too long only the beginning is kept.
pub struct Stream {
    beam: usize,
    form: Form,
    /// Bytes of waiting lines, then those of the line that has not ended.
    text: Vec<u8>,
    waiting: Vec<Waiting>,
    /// No line has ended yet.
    first: bool,
    /// How many of the waiting lines are done.
    done: usize,
    /// Characters of the line that has not ended that were not kept.
    cut: usize,
    /// Most bytes of a line that are kept.
    most: usize,
    summary: Summary,
}

impl Stream {
    /// A stream of lines for `engine`.
    ///
    /// # Errors
    /// As [`Engine::expand`] for the beam.
    pub fn new(engine: &Engine, beam: usize, form: Form) -> Result<Self> {
        engine.check_beam(beam)?;
        // With a carriage return, and one character more, so that a line that was cut is known to be too long.
        let most = 4 * (engine.alphabet().limit() + 2);
        let (text, waiting) = (Vec::new(), Vec::new());
        Ok(Self { beam, form, text, waiting, first: true, done: 0, cut: 0, most, summary: Summary::default() })
    }

    /// Takes in more bytes; their number bounds the memory that is needed.
    pub fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let line = piece.strip_suffix(b"\n");
            self.extend(line.unwrap_or(piece));
            if line.is_some() {
                self.end_line();
            }
        }
    }

    /// Ends the last line, which need not have a line feed.
    pub fn finish(&mut self) {
        self.skip_mark();
        if self.text.len() > self.last_end() || self.cut > 0 {
            self.end_line();
        }
    }

    /// Expands a block of waiting lines, if there are any: appends the answers to `out` and what is wrong to
    /// `failures`. Returns how many lines that were.
    ///
    /// # Errors
    /// As [`Engine::expand`].
    pub fn run(&mut self, engine: &Engine, out: &mut Vec<u8>, failures: &mut Vec<Failure>) -> Result<usize> {
        let count = (self.waiting.len() - self.done).min(engine.block(self.beam));
        let (mut rows, mut lines) = (Rows::default(), Vec::with_capacity(count));
        for at in self.done..self.done + count {
            let line = self.line(at);
            let cut = self.waiting[at].cut;
            let encoded = rows.push(|ids| {
                if cut > 0 {
                    engine.alphabet().check_length(characters(line) + cut)?;
                }
                engine.alphabet().encode(utf8(without_return(line, engine))?, ids)
            });
            lines.push((at, encoded));
        }
        let mut answers = engine.ids(&rows.slices(), self.beam)?.into_iter();
        let mut right = String::new();
        for (at, encoded) in lines {
            self.summary.lines += 1;
            let number = self.summary.lines;
            right.clear();
            match encoded {
                Ok(()) => {
                    engine.alphabet().decode(&answers.next().unwrap_or_default(), &mut right);
                    let left = without_return(self.line(at), engine);
                    write_answer(self.form, number, left, &right, out)?;
                }
                Err(error) => {
                    self.summary.failed += 1;
                    if self.form == Form::Json {
                        write_json(&Refused { line: number, error: &error.to_string() }, out)?;
                    }
                    out.push(b'\n');
                    failures.push((number, error));
                }
            }
        }
        self.done += count;
        if self.done == self.waiting.len() {
            self.forget();
        }
        Ok(count)
    }

    /// What was done so far.
    pub const fn summary(&self) -> Summary {
        self.summary
    }

    fn last_end(&self) -> usize {
        self.waiting.last().map_or(0, |line| line.end)
    }

    fn extend(&mut self, piece: &[u8]) {
        let room = self.most - (self.text.len() - self.last_end());
        let (kept, cut) = piece.split_at(room.min(piece.len()));
        self.text.extend_from_slice(kept);
        self.cut += characters(cut);
    }

    fn end_line(&mut self) {
        self.skip_mark();
        self.waiting.push(Waiting { end: self.text.len(), cut: std::mem::take(&mut self.cut) });
    }

    /// Drops the mark that some programs put before UTF-8 (BOM), at the beginning of the first line.
    fn skip_mark(&mut self) {
        if std::mem::take(&mut self.first) && self.text.starts_with(b"\xef\xbb\xbf") {
            self.text.drain(..3);
        }
    }

    fn line(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.waiting[at - 1].end };
        &self.text[start..self.waiting[at].end]
    }

    /// Drops the lines that are done, all that wait.
    fn forget(&mut self) {
        self.text.drain(..self.last_end());
        self.waiting.clear();
        self.done = 0;
    }
}

fn without_return<'a>(line: &'a [u8], engine: &Engine) -> &'a [u8] {
    match line.strip_suffix(b"\r") {
        Some(shorter) if !engine.alphabet().knows('\r') => shorter,
        _ => line,
    }
}

fn write_answer(form: Form, number: u64, left: &[u8], right: &str, out: &mut Vec<u8>) -> Result<()> {
    match form {
        Form::Text => {}
        Form::Pairs => {
            out.extend_from_slice(left);
            out.push(b'=');
        }
        Form::Json => {
            write_json(&Answered { line: number, left: &String::from_utf8_lossy(left), right }, out)?;
            out.push(b'\n');
            return Ok(());
        }
    }
    out.extend_from_slice(right.as_bytes());
    out.push(b'\n');
    Ok(())
}

fn write_json(value: &impl Serialize, out: &mut Vec<u8>) -> Result<()> {
    serde_json::to_writer(out, value).map_err(|error| Error::Internal(error.to_string()))
}

impl Engine {
    /// Expands the lines of `reader` to `writer`, one answer a line, in order, in bounded memory.
    ///
    /// What has been read is answered before more is waited for, so that a program can talk to another through pipes.
    /// `failed` is called for every line with an error, in order. A writer that was closed ends the stream quietly.
    ///
    /// # Errors
    /// [`CoreError::Io`] where reading, writing or `failed` fails; as [`Engine::expand`].
    pub fn expand_stream(
        &self,
        mut reader: impl Read,
        mut writer: impl Write,
        mut failed: impl FnMut(&Failure) -> io::Result<()>,
        beam: usize,
        form: Form,
    ) -> Result<Summary> {
        let mut stream = Stream::new(self, beam, form)?;
        let (mut chunk, mut out, mut failures) = (vec![0; CHUNK], Vec::new(), Vec::new());
        loop {
            let count = match reader.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(|source| io_error("reading lines", source))?,
            };
            match count {
                0 => stream.finish(),
                count => stream.push(&chunk[..count]),
            }
            while stream.run(self, &mut out, &mut failures)? > 0 {
                match writer.write_all(&out).and_then(|()| writer.flush()) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        return Ok(Summary { closed: true, ..stream.summary() });
                    }
                    written => written.map_err(|source| io_error("writing answers", source))?,
                }
                failures.iter().try_for_each(&mut failed).map_err(|source| io_error("reporting errors", source))?;
                out.clear();
                failures.clear();
            }
            if count == 0 {
                return Ok(stream.summary());
            }
        }
    }
}

fn io_error(context: &str, source: io::Error) -> Error {
    CoreError::Io { context: context.to_owned(), source }.into()
}
