"""Sizes in a stranger's configuration are held against its weights, whatever the fields are called."""

import json
import resource
import time

import octavo
import pytest
import torch
from octavo import ContainerError
from octavo.model_folder.hf_loading import load_config
from octavo.model_folder.infer_structure import skeleton
from octavo.model_folder.step_limit import limited

transformers = pytest.importorskip("transformers")

MEMORY, SECONDS = 200 << 20, 20


def small(kind):
    """A small model of a family whose sizes have names of their own."""
    torch.manual_seed(0)
    if kind == "swin":  # lists of depths and heads
        config = transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4
        )
        return transformers.SwinModel(config)
    if kind == "funnel":  # blocks, and how often each is repeated
        config = transformers.FunnelConfig(
            vocab_size=40, block_sizes=[1, 2], num_decoder_layers=1, d_model=16, n_head=2, d_head=8, d_inner=32
        )
        return transformers.FunnelModel(config)
    if kind == "gpt_neo":  # kinds of attention with their numbers, inside lists
        config = transformers.GPTNeoConfig(
            vocab_size=40, hidden_size=16, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=2,
            max_position_embeddings=16,
        )  # fmt: skip
        return transformers.GPTNeoModel(config)
    if kind == "xlm":  # emb_dim, n_layers
        config = transformers.XLMConfig(vocab_size=40, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=16)
        return transformers.XLMModel(config)
    assert kind == "canine"  # buckets of hashed characters
    config = transformers.CanineConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16,
        num_hash_buckets=32, num_hash_functions=2, local_transformer_stride=16,
    )  # fmt: skip
    return transformers.CanineModel(config)


KINDS = ("swin", "funnel", "gpt_neo", "xlm", "canine")


def rewrite(folder, **changes):
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))


def refused(read, *args):
    """The error of a call that must cost neither time nor memory."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ContainerError) as error:
        read(*args)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY
    assert time.process_time() - begin < SECONDS
    assert "config.json" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_families_with_names_of_their_own_load(tmp_path, kind):
    model = small(kind)
    model.save_pretrained(tmp_path)
    # Numbers of no size, under names that sound like one, and larger than any.
    rewrite(tmp_path, num_hidden_head_groups_seen=10**7, layer_updates=50_000_000, n_blocks_trained=10**12)
    loaded = octavo.load_model(tmp_path)
    assert {name: tuple(x.shape) for name, x in loaded.state_dict().items()} == {
        name: tuple(x.shape) for name, x in model.state_dict().items()
    }


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("swin", {"depths": [1, 10**9]}), ("swin", {"depths": [1, 50_000]}), ("swin", {"embed_dim": 2**30}),
        ("funnel", {"block_sizes": [1, 10**9]}), ("funnel", {"d_inner": 2**40}),
        ("gpt_neo", {"attention_types": [[["global", "local"], 10**9]]}),
        ("gpt_neo", {"num_layers": 10**9, "attention_types": [[["global", "local"], 5 * 10**8]]}),
        ("xlm", {"n_layers": 10**9}), ("xlm", {"emb_dim": 2**40}), ("canine", {"num_hash_buckets": 2**40}),
        ("canine", {"num_hash_functions": 10**9}),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_beyond_the_weights_are_refused_before_they_cost(tmp_path, kind, changes):
    small(kind).save_pretrained(tmp_path)
    rewrite(tmp_path, **changes)
    refused(octavo.load_model, tmp_path)


# Lists of layers by loops, by repeating a list, and by list(range(...)); labels by a dictionary.
LISTS = [
    ("modernbert", "num_hidden_layers"), ("qwen2", "num_hidden_layers"), ("gemma3n_text", "num_hidden_layers"),
    ("lfm2", "num_hidden_layers"), ("zaya", "num_hidden_layers"), ("vit", "num_labels"), ("dinov2", "num_hidden_layers"),
]  # fmt: skip


@pytest.mark.parametrize("value", [10**6, 10**18])
@pytest.mark.parametrize(("kind", "field"), LISTS)
def test_configurations_that_make_long_lists_are_refused_before_they_do(tmp_path, kind, field, value):
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, field: value}))
    assert field in refused(load_config, tmp_path)


@pytest.mark.slow
def test_a_configuration_without_weights_is_bounded_too(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 10**9}))
    assert "num_hidden_layers" in refused(skeleton, tmp_path)


LOOPS = [
    "for i in range(10**9): pass", "i = 0\nwhile i < 10**9: i += 1", "[i for i in range(10**9)]", "sum(i for i in range(10**9))",
    "{i: str(i) for i in range(10**9)}", "list(map(lambda i: i, range(10**9)))",
]  # fmt: skip


@pytest.mark.parametrize("code", LOOPS)
def test_code_beyond_its_steps_ends(code):
    def refuse():
        raise ContainerError("too many steps")

    with pytest.raises(ContainerError, match="too many steps"), limited(10_000, refuse):
        exec(compile(code, "loop", "exec"), {})
    with limited(10_000, refuse):
        assert sum(i for i in range(100)) == 4950
