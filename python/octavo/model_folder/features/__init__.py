"""What a file says about a model: every feature once, in the order in which a file has their keys."""

from octavo.model_folder.features.attention_products import ATTENTION
from octavo.model_folder.features.compacted_shapes import COMPACTED
from octavo.model_folder.features.decoded_tensors import DECODED
from octavo.model_folder.features.described_layers import LAYERS
from octavo.model_folder.features.folded_layers import FOLDED
from octavo.model_folder.features.pruned_parameters import MASKED
from octavo.model_folder.features.recipe_text import RECIPE_TEXT
from octavo.model_folder.features.rewritten_modules import REWRITTEN
from octavo.model_folder.features.unstored_parts import ADAPTERS, INPUT_THRESHOLDS
from octavo.model_folder.stored_feature import StoredFeature

FEATURES: tuple[StoredFeature, ...] = (
    LAYERS, REWRITTEN, ATTENTION, MASKED, FOLDED, COMPACTED, DECODED, RECIPE_TEXT, ADAPTERS, INPUT_THRESHOLDS,
)  # fmt: skip
