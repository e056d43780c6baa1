//! `octavo-expand`: lines on standard input to answers on standard output, without Python.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use octavo_engine::Error;
use octavo_polynomials::{Engine, Failure, Form, Options};

const HELP: &str = "\
octavo-expand: run an exported sequence-to-sequence model, line by line

Reads lines from standard input and writes one answer a line to standard output,
in order and as they come, in bounded memory. A line that cannot be answered is
reported on standard error as 'line 7: REASON' and leaves an empty line.

Usage: octavo-expand --model FOLDER [options] < LINES > ANSWERS

  --model FOLDER      config.json, tokenizer.json and the weights, as exported
                      by octavo.lab.polynomials.export
  --beam N            hypotheses kept a line; 1, the default, is greedy
  --precision NAME    float (default), bfloat16: twice as fast where the CPU has
                      AMX, or integer: int8, greedy only
  --route NAME        auto (default), general, or fused: the hand-written kernels
  --threads N         default: all cores this process may use
  --format NAME       text (default), pairs: LINE=ANSWER, or json: an object a line
  -h, --help          this text
  --version           the version

Examples:
  echo '(7-3*z)*(2*z+5)' | octavo-expand --model model/
  octavo-expand --model model/ --beam 4 < lines.txt > answers.txt
  octavo-expand --model model/ --format pairs --threads 1 < lines.txt

Exit code: 0 if every line was answered, 1 if one was not, 2 for an error, or
where the reader of the answers has gone.
";

/// What the command line asks for.
enum Job {
    Expand { model: PathBuf, options: Options, beam: usize, form: Form },
    Print(String),
}

fn main() -> ExitCode {
    match parse(std::env::args_os()).and_then(run) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            // Nothing is left to be said where standard error is closed.
            _ = writeln!(io::stderr(), "error: {message}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Job, String> {
    use lexopt::prelude::{Long, Short, ValueExt};

    let mut parser = lexopt::Parser::from_iter(arguments);
    let (mut model, mut options, mut beam, mut form) = (None, Options::default(), 1, Form::default());
    let hint = |message: String| format!("{message}; see octavo-expand --help");
    while let Some(argument) = parser.next().map_err(|error| hint(error.to_string()))? {
        let name = match argument {
            Short('h') => "help".to_owned(),
            Long(name) => name.to_owned(),
            other => return Err(hint(other.unexpected().to_string())),
        };
        match name.as_str() {
            "help" => return Ok(Job::Print(HELP.to_owned())),
            "version" => return Ok(Job::Print(format!("octavo-expand {}\n", env!("CARGO_PKG_VERSION")))),
            "model" | "beam" | "threads" | "precision" | "route" | "format" => {}
            _ => return Err(hint(format!("invalid option '--{name}'"))),
        }
        let value = parser.value().map_err(|error| hint(error.to_string()))?;
        match name.as_str() {
            "model" => model = Some(PathBuf::from(value)),
            "beam" => beam = value.parse().map_err(|error| format!("--beam: {error}"))?,
            "threads" => options.threads = value.parse().map_err(|error| format!("--threads: {error}"))?,
            "precision" => options.precision = named(&value)?,
            "route" => options.route = named(&value)?,
            _ => form = named(&value)?,
        }
    }
    let missing = || hint("no model; give the folder of an exported one with --model FOLDER".to_owned());
    Ok(Job::Expand { model: model.ok_or_else(missing)?, options, beam, form })
}

fn named<T: std::str::FromStr<Err = Error>>(value: &OsStr) -> Result<T, String> {
    value.to_string_lossy().parse().map_err(|error: Error| error.to_string())
}

/// Does the job and returns the exit code: 1 if a line was not answered, 2 if answers were not taken.
fn run(job: Job) -> Result<u8, String> {
    let (model, options, beam, form) = match job {
        Job::Expand { model, options, beam, form } => (model, options, beam, form),
        Job::Print(text) => return print(&text).map(|()| 0),
    };
    let engine = Engine::load(&model, options).map_err(|error| error.to_string())?;
    let failed = |(number, error): &Failure| writeln!(io::stderr(), "line {number}: {error}");
    let summary = engine.expand_stream(io::stdin().lock(), io::stdout().lock(), failed, beam, form);
    summary
        .map(|summary| if summary.closed { 2 } else { u8::from(summary.failed > 0) })
        .map_err(|error| error.to_string())
}

fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}
