"""A packed model of transformers, uploaded to a hub with its model card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.model_folder.model_card import add_tags


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str | None = None,
    tags: list[str] | None = None,
) -> str:
    """Upload the folder that ``save_pretrained`` writes of a packed model, and return the address of the commit.

    Arguments are those of transformers' method, which would write a card of its own over ours. Raises ModelError where
    huggingface_hub is missing; what it raises otherwise passes.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError("push_to_hub needs huggingface_hub; pip install huggingface_hub") from None
    hub = huggingface_hub.HfApi(token=token)
    repository = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        add_tags(folder, tags or [])
        commit = hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=commit_message or f"Upload {type(model).__name__}, packed by Octavo",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    return str(commit)
