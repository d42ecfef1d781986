"""The models by name, and the packages they come from."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass

from benchmarks.compat._case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """One entry.

    Attributes:
      package: the distribution that is tried.
      install: the arguments of pip that install it, where the name alone does not do.
      module, function: where the builder is; the module imports the package.
    """

    package: str
    module: str
    function: str
    install: str = ""

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    @property
    def missing(self) -> str:
        """The note where the package is not installed."""
        return f"not installed: pip install {self.install or self.package}"


def _family(
    package: str, module: str, *names: str, prefix: str, install: str = ""
) -> dict[str, ForeignModel]:
    return {
        f"{prefix}-{name}".replace("_", "-"): ForeignModel(
            package=package, module=module, function=name, install=install
        )
        for name in names
    }


MODELS: dict[str, ForeignModel] = {
    **_family(
        "dm-haiku",
        "_haiku",
        "mlp",
        "resnet50",
        "mobilenet",
        "vqvae",
        "lstm",
        "gru",
        "transformer",
        prefix="haiku",
    ),
    **_family("equinox", "_equinox", "mlp", "gru", "transformer", "convnet", prefix="equinox"),
    **_family("jraph", "_jraph", "graph_network", "attention_network", prefix="jraph"),
    **_family("jaxonmodels", "_sequence", "mamba", prefix="jaxonmodels"),
    **_family("equimo", "_vision", "vit", "convnext", prefix="equimo"),
    **_family("recurrentgemma", "_sequence", "griffin", prefix="recurrentgemma"),
    **_family(
        "transformers",
        "_transformers",
        "bert",
        "gpt2",
        "llama",
        "bart",
        "big_bird",
        "whisper",
        "clip",
        "wav2vec2",
        prefix="transformers",
        install="'transformers<5'",
    ),
    **_family(
        "diffusers", "_diffusers", "unet", "autoencoder", prefix="diffusers", install="diffusers==0.29.2"
    ),
    **_family("gemma", "_language", "gemma3", prefix="gemma"),
    **_family("penzai", "_language", "llama_like", prefix="penzai"),
    **_family("jaxkan", "_nnx", "kan", prefix="jaxkan"),
    **_family("jraphx", "_nnx", "graph_attention", prefix="jraphx"),
    **_family("rlax", "_agents", "impala", prefix="rlax"),
    **_family("brax", "_agents", "ppo", prefix="brax"),
    **_family("flowjax", "_flows", "masked_autoregressive", prefix="flowjax"),
    **_family("distrax", "_flows", "coupling", prefix="distrax"),
    **_family("diffrax", "_flows", "neural_ode", prefix="diffrax"),
    **_family("numpyro", "_flows", "variational", prefix="numpyro"),
}


def build(name: str, small: bool = False) -> Case:
    """The case of a model, at a size worth planning or a small one that runs on a CPU.

    Raises:
      ModuleNotFoundError: its package is not installed.
    """
    model = MODELS[name]
    module = importlib.import_module(f"benchmarks.compat.{model.module}")
    return getattr(module, model.function)(small)
