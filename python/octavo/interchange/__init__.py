"""Files of other packages: GGUF is read and written.

:mod:`~octavo.interchange.gguf` parses the file, :mod:`~octavo.interchange.gguf_tensors` gives its tensors, and
:mod:`~octavo.interchange.gguf_model` its model, by the names in :mod:`~octavo.interchange.gguf_names` and the settings
in :mod:`~octavo.interchange.gguf_config`; every family of architectures is a file of
:mod:`~octavo.interchange.gguf_architectures`;
:mod:`~octavo.interchange.conversion` writes a model folder of any model that
:mod:`~octavo.interchange.foreign_readers` opens. Of ggml's blocks,
:mod:`~octavo.interchange.ggml_types` lists the types, :mod:`~octavo.interchange.ggml_decode` decodes them, and
:mod:`~octavo.interchange.ggml_carry` carries them into formats of ours.

Folders of transformers that a package has packed are models by :mod:`~octavo.interchange.quantized_folder`. Of most
packages :mod:`~octavo.interchange.stored_weights` describes the weights, :mod:`~octavo.interchange.packing_settings`
finds the settings, and :mod:`~octavo.interchange.layer_packing` opens the folders; each package has a file.

:mod:`~octavo.interchange.convert` has the table of kinds that are written.
:mod:`~octavo.interchange.model_source` gives their writers a model, and
:mod:`~octavo.interchange.conversion_report` is what they return. Of GGUF, :mod:`~octavo.interchange.gguf_plan`
gives every tensor a type, :mod:`~octavo.interchange.ggml_pack` makes blocks,
:mod:`~octavo.interchange.gguf_metadata` and :mod:`~octavo.interchange.gguf_tokenizer_keys` are the metadata, and
:mod:`~octavo.interchange.gguf_writer` makes the file of what :mod:`~octavo.interchange.gguf_write` decides.
Of ONNX, :mod:`~octavo.interchange.onnx_write` decides and :mod:`~octavo.interchange.onnx_file` writes. Both take codes
and scales from :mod:`~octavo.interchange.packed_rows`.
"""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
