//! Any bytes as one file of a model folder whose other files are good: refused, or loaded and able to answer lines.
//! The first byte says which file it is.
#![no_main]

#[path = "../folder.rs"]
mod folder;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use octavo_core::Error as CoreError;
use octavo_engine::Error;
use octavo_polynomials::{Engine, Options, Precision, Route};

use folder::{FILES, Folder};

const FLOAT: Options = Options { precision: Precision::Float, route: Route::General, threads: 1 };
const INTEGER: Options = Options { precision: Precision::Integer, route: Route::Auto, threads: 1 };

fuzz_target!(|data: &[u8]| {
    static FOLDER: LazyLock<Folder> = LazyLock::new(|| Folder::new("model"));
    let Some((&which, bytes)) = data.split_first() else { return };
    let (name, good) = FILES[usize::from(which) % FILES.len()];
    FOLDER.put(name, bytes);
    let ways: &[Options] = match name {
        "model.safetensors" => &[FLOAT],
        "integer.safetensors" => &[INTEGER],
        _ => &[FLOAT, INTEGER],
    };
    for options in ways {
        match Engine::load(FOLDER.path(), *options) {
            Ok(engine) => {
                let answers = engine.expand(&["a", "xyz", ""], 1).expect("a loaded model answers");
                assert!(answers.len() == 3 && answers[2].is_err());
            }
            Err(Error::Core(CoreError::Container(fault))) => {
                let text = fault.to_string();
                assert!(text.contains(&*FOLDER.path().to_string_lossy()), "{text}");
            }
            // The configuration names another file for the variant.
            Err(Error::Core(CoreError::Io { .. })) if name == "config.json" => {}
            // No integer kernels take a model of this shape.
            Err(Error::Core(CoreError::Setting(_))) if options.precision == Precision::Integer => {}
            Err(error) => panic!("another error: {error}"),
        }
    }
    FOLDER.put(name, good);
});
