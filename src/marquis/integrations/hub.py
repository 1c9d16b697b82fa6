"""Share a Laplace approximation as a folder: tensors, configuration and a model card (`marquis[hub]`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marquis import __version__
from marquis.arguments import checked
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model, describe
from marquis.io.atomic import make_folder, storage_errors, write_text
from marquis.laplace import Laplace, load
from marquis.likelihoods import Likelihood

TENSORS, CONFIG, CARD = "posterior.safetensors", "marquis.json", "README.md"


@checked
def save_pretrained(laplace: Laplace, folder: str | Path) -> Path:
    """Write a fitted Laplace approximation to a folder, and return its path.

    The folder holds `posterior.safetensors` (all that `Laplace.save` writes), `marquis.json` (what it is, for people
    and programs) and a model card. The network itself is not in it: share it as you always do.
    """
    path = make_folder(folder)
    laplace.save(path / TENSORS)
    statistics = laplace.statistics
    config = {
        "marquis": __version__,
        "model": describe(laplace.model),
        "likelihood": repr(laplace.likelihood),
        "kind": laplace.kind,
        "structure": laplace.fitted.structure,
        "estimator": laplace.fitted.estimator,
        "weights": laplace.posterior.num_random,
        "data": None if statistics is None else statistics.n,
    }
    write_text(path / CONFIG, json.dumps(config, indent=2) + "\n")
    write_text(path / CARD, _card(config))
    return path


@checked
def from_pretrained(folder: str | Path, model: Model, likelihood: str | Likelihood | Any = None) -> Laplace:
    """Read what `save_pretrained` wrote, for the network it belongs to; runs no code from the folder.

    Raises:
        DataError: The folder does not hold one.
        ModelMismatchError: It belongs to another network.
    """
    path = Path(folder)
    with storage_errors(path, "read"):
        if not (path / TENSORS).is_file():
            raise DataError(f"{path} holds no {TENSORS}; it was not written by save_pretrained.")
    loaded = load(path / TENSORS, model, likelihood)
    if not isinstance(loaded, Laplace):
        raise DataError(f"{path / TENSORS} holds a bare posterior; read it with marquis.load.")
    return loaded


@checked
def push_to_hub(laplace: Laplace, repository: str, folder: str | Path, **options: Any) -> str:
    """Save to a folder and upload it with `huggingface_hub`, which asks for its own login; return the address.

    Raises:
        UnsupportedOperationError: `huggingface_hub` is not installed.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UnsupportedOperationError("push_to_hub needs huggingface_hub: pip install 'marquis[hub]'.") from error
    path = save_pretrained(laplace, folder)
    api = HfApi()
    api.create_repo(repository, exist_ok=True)
    return str(api.upload_folder(repo_id=repository, folder_path=path, **options))


def _card(config: dict[str, Any]) -> str:
    """Return the text of the model card."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in config.items())
    return (
        f"---\nlibrary_name: marquis\ntags: [laplace, uncertainty]\n---\n\n# Posterior of {config['model']}\n\n"
        f"A Laplace approximation of the weights.\n\n| | |\n| --- | --- |\n{rows}\n\n"
        "```python\nfrom marquis.integrations.hub import from_pretrained\n\n"
        "la = from_pretrained('this folder', model)\nprediction = la.predict(x)\n```\n"
    )
