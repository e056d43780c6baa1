"""Reading to a GPU packs the codes that the CPU has, and packed folders open there."""

import pytest
import torch
from helpers.architectures import IDS, build

transformers = pytest.importorskip("transformers", minversion="5.24")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

from octavo.transformers import OctavoConfig  # noqa: E402


@pytest.mark.parametrize("recipe", ["int4:g32", "mxint8", "int4:g32@mse"])
@pytest.mark.parametrize("place", ["cuda:0", "auto"])
def test_a_gpu_gets_the_codes_of_the_cpu(recipe, place, tmp_path):
    build("Llama")[0].save_pretrained(tmp_path / "float")
    read, config = transformers.LlamaForCausalLM.from_pretrained, OctavoConfig(recipe)
    expected = read(tmp_path / "float", quantization_config=config)
    made = read(tmp_path / "float", quantization_config=config, device_map=place)
    made.save_pretrained(tmp_path / "packed")
    for model in (made, read(tmp_path / "packed", device_map=place)):
        values = model.state_dict()
        assert all(torch.equal(values[name].cpu(), value) for name, value in expected.state_dict().items())
        assert model.lm_head.weight_codes.is_cuda and model.model.norm.weight.is_cuda
        assert model.generate(IDS.cuda(), max_new_tokens=3, do_sample=False, eos_token_id=None).shape == (2, 11)
