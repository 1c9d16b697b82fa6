"""Measure what a transformer of 124 million weights takes: `python -m benchmarks.transformer` (docs/scale.md).

GPT-2 small as Hugging Face defines it, random weights, 50,257 outputs per position, 32 tokens, one thread. Every case
runs twice, the first time to capture the network; the second gives processor time (in plain steps, forward and
backward) and the peak of memory above the model. What the plan refuses is printed with what it offers instead.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import peak_bytes
from marquis.curvature import ggn, plan
from marquis.errors import MarquisError
from marquis.laplace import Laplace
from marquis.likelihoods import Categorical

TOKENS = 32
PROJECTION = "transformer.h.11.attn.c_proj.*"
SUBSET = [f"transformer.h.{block}.attn.c_{part}.weight" for block in (10, 11) for part in ("attn", "proj")]


class NextToken(nn.Module):
    """Return the logits of the token after the last one, of all words or of some."""

    def __init__(self, network: nn.Module, words: list[int] | None = None) -> None:
        super().__init__()
        self.network, self.words = network, words

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return `[B, words]`."""
        logits = self.network(input_ids=input_ids, use_cache=False).logits[:, -1]
        return logits if self.words is None else logits[:, self.words]


def network(tied: bool = True) -> nn.Module:
    """Return GPT-2 small with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(tie_word_embeddings=tied)).eval()


def report(name: str, call: Callable[[], Any], plain: float) -> None:
    """Print one row: plain steps and gigabytes, or the words of the refusal."""
    try:
        call()
        seconds = time.process_time()
        call()
        seconds = time.process_time() - seconds
        print(f"| {name} | {seconds / plain:.1f} | {peak_bytes(call) / 2**30:.2f} GB |", flush=True)
    except MarquisError as error:
        print(f"| {name} | refused: {error} | |", flush=True)


def main() -> None:
    """Print the table of docs/scale.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="cases whose name has this in it")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = network()
    tokens = torch.randint(50257, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    label = torch.tensor([5])
    everywhere = lambda input_ids: model(input_ids=input_ids, use_cache=False).logits  # noqa: E731

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(everywhere(tokens)[0], tokens[0]).backward()
        model.zero_grad(set_to_none=True)

    step()
    began = time.process_time()
    step()
    plain = time.process_time() - began
    print(f"plain step: {plain:.2f} s, {peak_bytes(step) / 2**30:.2f} GB")
    following, answers = NextToken(model), NextToken(model, list(range(100, 108)))
    untied_weights = [name for name, _ in following.named_parameters() if "wte" not in name and "wpe" not in name]
    sketched: dict[str, Any] = {"estimator": "sketched"}

    def fitted(net: nn.Module) -> Laplace:
        la = Laplace(net, "categorical", "diagonal", "sketched", parameters=f"network.{PROJECTION}")
        return la.fit([(tokens, label)], progress=False)

    cases: dict[str, Callable[[], Any]] = {
        "diagonal, all positions": lambda: ggn(model, {"input_ids": tokens}, Categorical(-1), "diagonal", **sketched),
        "diagonal, next token": lambda: ggn(following, tokens, "categorical", "diagonal", **sketched),
        "Kronecker, attention of two blocks, next token": lambda: ggn(
            following, tokens, "categorical", "kronecker", parameters=[f"network.{n}" for n in SUBSET], **sketched
        ),
        "Kronecker, all but the embeddings, next token": lambda: ggn(
            following, tokens, "categorical", "kronecker", parameters=untied_weights, **sketched
        ),
        "10 linearised samples of the next token, one projection": lambda: fitted(following).predict(
            tokens, "linearised-samples", samples=10
        ),
        "eight answer logits in closed form, one projection": lambda: fitted(answers).predict(tokens),
        "full": lambda: ggn(following, tokens, "categorical", "full", **sketched),
        "last layer, Kronecker": lambda: Laplace(
            following, "categorical", "kronecker", "sketched", parameters="last-layer"
        ).fit([(tokens, label)], progress=False),
    }
    for name, call in cases.items():
        if options.only is None or options.only in name:
            report(name, call, plain)
    if options.only is None or options.only in "untied":
        del model, following, answers
        apart = NextToken(network(tied=False))
        last = "network.lm_head.weight"
        diagonal = lambda: ggn(apart, tokens, "categorical", parameters=last, **sketched)  # noqa: E731
        report("untied last layer, diagonal", diagonal, plain)
        print(plan(apart, tokens, "categorical", "kronecker", "sketched", parameters=last))


if __name__ == "__main__":
    main()
