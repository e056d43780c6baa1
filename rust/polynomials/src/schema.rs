//! Names and shapes of the tensors that a configuration demands.

use std::collections::BTreeMap;

use crate::config::{Architecture, Config};

/// Names of the state dictionary of the PyTorch model of a configuration, with their shapes.
pub(crate) fn tensors(config: &Config) -> BTreeMap<String, Vec<usize>> {
    let mut schema = Schema(BTreeMap::new());
    let (vocabulary, both, hidden) = (config.vocabulary, 2 * config.encoder, config.hidden);
    match config.architecture {
        Architecture::Lstm => {
            schema.recurrent_encoder(config);
            schema.linear("attention_key", both, hidden);
            schema.add("attention_query.weight", &[hidden, hidden]);
            schema.add("attention_score.weight", &[1, hidden]);
            schema.lstm("decoder", config.embedding + both, hidden);
            schema.linear("output", hidden + both, vocabulary);
        }
        Architecture::Hybrid => {
            schema.recurrent_encoder(config);
            schema.norm("memory_norm", both);
            schema.lstm("decoder", config.embedding, hidden);
            schema.norm("self_norm", hidden);
            schema.attention("self_attention", hidden, hidden);
            for block in 0..config.layers {
                schema.cross(&format!("blocks.{block}"), config, both);
            }
            schema.norm("output_norm", hidden);
            schema.linear("output", hidden, vocabulary);
        }
        Architecture::Transformer => {
            for side in ["source", "target"] {
                let longest = if side == "source" { config.max_source } else { config.max_target };
                schema.add(&format!("{side}_embedding.weight"), &[vocabulary, hidden]);
                schema.add(&format!("{side}_positions.weight"), &[longest, hidden]);
            }
            for layer in 0..config.layers {
                let name = format!("encoder.{layer}");
                schema.norm(&format!("{name}.self_norm"), hidden);
                schema.attention(&format!("{name}.self_attention"), hidden, hidden);
                schema.feedforward(&name, config);
                let name = format!("decoder.{layer}");
                schema.norm(&format!("{name}.self_norm"), hidden);
                schema.attention(&format!("{name}.self_attention"), hidden, hidden);
                schema.cross(&name, config, hidden);
            }
            schema.norm("memory_norm", hidden);
            schema.norm("output_norm", hidden);
            schema.linear("output", hidden, vocabulary);
        }
    }
    schema.0
}

struct Schema(BTreeMap<String, Vec<usize>>);

impl Schema {
    fn add(&mut self, name: &str, shape: &[usize]) {
        self.0.insert(name.to_owned(), shape.to_vec());
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) {
        self.add(&format!("{name}.weight"), &[outputs, inputs]);
        self.add(&format!("{name}.bias"), &[outputs]);
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.add(&format!("{name}.weight"), &[width]);
        self.add(&format!("{name}.bias"), &[width]);
    }

    fn lstm(&mut self, name: &str, inputs: usize, units: usize) {
        self.add(&format!("{name}.weight_ih_l0"), &[4 * units, inputs]);
        self.add(&format!("{name}.weight_hh_l0"), &[4 * units, units]);
        self.add(&format!("{name}.bias_ih_l0"), &[4 * units]);
        self.add(&format!("{name}.bias_hh_l0"), &[4 * units]);
    }

    fn attention(&mut self, name: &str, memory: usize, width: usize) {
        self.linear(&format!("{name}.query"), width, width);
        self.linear(&format!("{name}.key"), memory, width);
        self.linear(&format!("{name}.value"), memory, width);
        self.linear(&format!("{name}.output"), width, width);
    }

    fn feedforward(&mut self, name: &str, config: &Config) {
        self.norm(&format!("{name}.feedforward_norm"), config.hidden);
        self.linear(&format!("{name}.feedforward.expand"), config.hidden, config.feedforward);
        self.linear(&format!("{name}.feedforward.contract"), config.feedforward, config.hidden);
    }

    fn cross(&mut self, name: &str, config: &Config, memory: usize) {
        self.norm(&format!("{name}.cross_norm"), config.hidden);
        self.attention(&format!("{name}.cross_attention"), memory, config.hidden);
        self.feedforward(name, config);
    }

    /// Embeddings, the bidirectional encoder and the bridge, which `lstm` and `hybrid` share.
    fn recurrent_encoder(&mut self, config: &Config) {
        self.add("source_embedding.weight", &[config.vocabulary, config.embedding]);
        self.add("target_embedding.weight", &[config.vocabulary, config.embedding]);
        self.lstm("encoder.forwards", config.embedding, config.encoder);
        self.lstm("encoder.backwards", config.embedding, config.encoder);
        self.linear("bridge", 2 * config.encoder, 2 * config.hidden);
    }
}
