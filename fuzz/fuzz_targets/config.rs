//! Any bytes as the `config.json` of a model: refused with the field, or a configuration inside its limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_core::Error as CoreError;
use octavo_engine::Error;
use octavo_polynomials::Config;

fuzz_target!(|text: &[u8]| {
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(Error::Core(CoreError::Container(fault))) => {
            let message = fault.to_string();
            assert!(message.len() < 1000 + 10 * text.len(), "{message}"); // it may show the name of a field
            return;
        }
        Err(error) => panic!("another error: {error}"),
    };
    assert!((4..=256).contains(&config.vocabulary));
    assert!((1..=4096).contains(&config.hidden) && config.hidden.is_multiple_of(config.heads));
    assert!((1..=64).contains(&config.layers) && (1..=16384).contains(&config.feedforward));
    for size in [config.embedding, config.encoder, config.max_source, config.max_target] {
        assert!((1..=4096).contains(&size));
    }
    assert!(config.to_string().starts_with(config.architecture.name()));
});
