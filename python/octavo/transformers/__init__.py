"""The plug-in for transformers of Hugging Face: ``import octavo.transformers`` teaches ``from_pretrained`` our formats.

``AutoModelForCausalLM.from_pretrained(folder, quantization_config=OctavoConfig("int4:g32"))`` packs a float model while
it is read, and ``from_pretrained(folder)`` opens a folder that Octavo or ``save_pretrained`` wrote. ``import octavo``
loads nothing of it: transformers has no entry points for plug-ins, so this line stands in every program that opens such
a folder. :class:`QuantizedCache` holds keys and values packed while text is generated.
"""

from octavo.transformers import requirements  # noqa: F401 - says what is missing before anything asks for it
from octavo.transformers.cache import QuantizedCache
from octavo.transformers.hf_quantizer import OctavoQuantizer, register
from octavo.transformers.octavo_config import OctavoConfig

__all__ = ["OctavoConfig", "OctavoQuantizer", "QuantizedCache"]

register()
