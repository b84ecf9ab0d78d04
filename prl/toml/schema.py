"""Every key of a run's TOML file, close to prime-rl's. `python -m prl schema` prints them as a page.

Source: algorithms page, for [orchestrator.train], [orchestrator.renderer], [trainer.loss] and
the two batch keys; the rest of a run has keys of its own.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from prl.algorithms import GRPO, UserFunction, same_aggregation
from prl.config import IPO, AdamW, IcePop, Sampling
from prl.config.base import Frozen
from prl.toml.curricula import CurriculumTable
from prl.toml.inherit import with_inheritance
from prl.toml.sources import AlgorithmTable, SourceTable


class TinyTable(Frozen):
    """A model with random weights, for runs on a CPU without downloads."""

    hidden: int = Field(default=128, ge=1)
    """Width."""
    layers: int = Field(default=4, ge=1)
    """Layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads."""
    intermediate: int = Field(default=256, ge=1)
    """Width of the feed-forward layers."""
    vocab_size: int = Field(default=512, ge=1)
    """Rows of the embedding, at least the 259 of the byte tokenizer."""
    max_positions: int = Field(default=4096, ge=1)
    """Context, in tokens."""
    seed: int = 0
    """Seed of the weights."""


class ModelTable(Frozen):
    """The policy: a model by name, or a tiny one from scratch."""

    name: str | None = Field(default=None, min_length=1)
    """A folder in transformers' format, or a name on the hub."""
    tiny: TinyTable | None = None
    """Shape of a model from scratch."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "ModelTable":
        if self.name is not None and self.tiny is not None:
            raise ValueError(f"got both name={self.name!r} and a tiny table; a run trains one model, so give one.")
        return self


class RendererTable(Frozen):
    """How conversations become tokens."""

    name: str = "auto"
    """"auto" (from the tokenizer; a tiny model's own), "chatml", "default", a family of the renderers package,
    or "custom"."""
    import_path: str | None = None
    """A custom renderer's class, called with the tokenizer: "my_module.Class" or "path/to/file.py:Class"."""

    @model_validator(mode="after")
    def _custom_has_a_path(self) -> "RendererTable":
        if (self.name == "custom") != (self.import_path is not None):
            raise ValueError(
                f"got name={self.name!r} and import_path={self.import_path!r}; a custom renderer needs both "
                "name = 'custom' and an import_path, any other has none."
            )
        return self


class CustomLoss(UserFunction):
    """A function of yours as the rl loss, LossInputs -> LossOutputs."""

    type: Literal["custom"] = "custom"


LossTable = Annotated[IPO | IcePop | CustomLoss, Field(discriminator="type")]


class TrainerTable(Frozen):
    """How the policy learns."""

    loss: LossTable = IPO()
    """The rl loss; `type` is required where the table is written."""
    optim: AdamW = AdamW()
    """The optimiser."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """L2 norm to which the gradient is clipped."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Cells of a micro-batch; absent means 64 x the model's context, 65,536 at most."""


class InferenceTable(Frozen):
    """What samples rollouts of the policy."""

    engine: Literal["torch", "vllm", "server"] = "torch"
    """"torch" or "vllm" in this process, "server" for a vLLM server of your own."""
    base_url: str | None = None
    """Where the server listens, with the version part: "http://localhost:8000/v1". It starts from the policy's own
    weights, with VLLM_SERVER_DEV_MODE=1 and processed_logprobs."""
    model: str | None = None
    """The name under which the server serves the policy; absent means orchestrator.model.name."""
    api_key_var: str | None = None
    """The environment variable that holds the server's key; absent sends none."""
    weights_dir: str | None = None
    """A folder that the server can read, for new weights; absent means `weights` in output_dir."""

    @model_validator(mode="after")
    def _only_a_server_has_an_address(self) -> "InferenceTable":
        if self.engine == "server" and self.base_url is None:
            raise ValueError("got engine='server' without base_url; say where your vLLM server listens.")
        given = [key for key in ("base_url", "model", "api_key_var", "weights_dir") if getattr(self, key) is not None]
        if self.engine != "server" and given:
            raise ValueError(
                f"got {', '.join(given)} with engine={self.engine!r}, which runs in this process and does not read "
                "them. Set engine = 'server', or leave them out."
            )
        return self


class TrainTable(Frozen):
    """What trains, and the defaults that every source inherits."""

    algo: AlgorithmTable = GRPO()
    """The algorithm of sources that name none; a missing `type` is grpo."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of each prompt, of sources that do not say."""
    curriculum: CurriculumTable = CurriculumTable()
    """The curriculum of sources that do not say."""
    source: tuple[SourceTable, ...] = ()
    """The environments, each a [[orchestrator.train.source]]."""

    @model_validator(mode="before")
    @classmethod
    def _sources_inherit(cls, data: Any) -> Any:
        return with_inheritance(data)

    @model_validator(mode="after")
    def _sources_agree(self) -> "TrainTable":
        labels = [source.label for source in self.source if source.label]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"got {twice[0]!r} as the name of two sources; names tell their metrics apart. Set name.")
        same_aggregation({s.label or f"source[{i}]": s.algo for i, s in enumerate(self.source)})
        return self


class OrchestratorTable(Frozen):
    """The policy, its rollouts, and what they train."""

    model: ModelTable = ModelTable()
    """The policy."""
    renderer: RendererTable = RendererTable()
    """How its conversations become tokens."""
    sampling: Sampling = Sampling()
    """How its completions are drawn."""
    batch_size: int = Field(default=64, ge=1)
    """Trainable traces of each step."""
    constant_trainer_batch_size: bool = True
    """Replace traces without signal, so that batches are whole; false trains on what is left."""
    train: TrainTable = TrainTable()
    """Algorithms and environments."""


class RunConfig(Frozen):
    """A whole run. Frozen; sources are complete, with all that they inherit."""

    max_steps: int = Field(default=100, ge=1)
    """Optimiser steps."""
    seed: int = 0
    """Seed of everything but a tiny model's weights and a generator's tasks, which have their own."""
    overlap: bool = True
    """Collect the next step's rollouts while this one trains, one version later; false takes turns."""
    output_dir: str = "outputs"
    """Folder of history.jsonl, config.toml and the checkpoint."""
    orchestrator: OrchestratorTable = OrchestratorTable()
    """The policy, its rollouts, and what they train."""
    trainer: TrainerTable = TrainerTable()
    """How the policy learns."""
    inference: InferenceTable = InferenceTable()
    """What samples rollouts of the policy."""
