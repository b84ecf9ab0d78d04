"""From a RunConfig to a Runner: models, environments and the user's own code are found here."""

import importlib.util
import re
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from prl import models
from prl.algorithms import Echo, UserFunction
from prl.config import FrozenModel
from prl.envs import ReasoningGym
from prl.envs.base import Env
from prl.errors import ConfigError
from prl.policy import Policy
from prl.renderers import create
from prl.runner import Runner, Source
from prl.toml.schema import CustomLoss, RendererTable, RunConfig
from prl.toml.sources import ROLES, EnvTable, SourceTable, TasksetTable

MATH = (
    "basic_arithmetic", "chain_sum", "products", "gcd", "lcm", "fraction_simplification", "prime_factorization",
    "simple_equations", "leg_counting", "gsm_symbolic",
)  # fmt: skip
"""The reasoning-gym tasks that "math" mixes, in equal parts."""


def build(config: RunConfig) -> Runner:
    """A Runner at step 0 with everything that the config names.

    Raises:
      ConfigError: something is missing, cannot be found, is not in this version, or does not fit.
    """
    sources = [_source(i, source) for i, source in enumerate(config.orchestrator.train.source)]
    if not sources:
        raise ConfigError("orchestrator.train.source: is missing; add [[orchestrator.train.source]] with an env.")
    loss = config.trainer.loss
    policy, renderer = _policy(config)
    return Runner(
        policy, sources, loss=_function("trainer.loss", loss) if isinstance(loss, CustomLoss) else loss,
        optimizer=config.trainer.optim, engine=_engine(config), renderer=renderer,
        batch_size=config.orchestrator.batch_size,
        constant_trainer_batch_size=config.orchestrator.constant_trainer_batch_size,
        max_tokens=config.trainer.max_tokens, max_grad_norm=config.trainer.max_grad_norm,
        sampling=config.orchestrator.sampling, overlap=config.overlap, seed=config.seed, out=config.output_dir,
    )  # fmt: skip


def _function(where: str, function: UserFunction) -> Any:
    """The user's function with its keyword arguments."""
    found = function.resolve(where)
    return partial(found, **function.kwargs) if function.kwargs else found


def _policy(config: RunConfig) -> tuple[Policy, Any]:
    """The model and its renderer."""
    model, renderer = config.orchestrator.model, config.orchestrator.renderer
    if model.name is None and model.tiny is None:
        raise ConfigError(
            "orchestrator.model.name: is missing; name a folder or a model of the hub, or write "
            "[orchestrator.model.tiny] for one from scratch."
        )
    if model.tiny is not None:
        policy = models.tiny(**model.tiny.model_dump())
        return policy, policy.renderer if renderer.name == "auto" else _renderer(renderer, policy.tokenizer)
    if renderer.name != "custom":
        policy = models.load(str(model.name), renderer=renderer.name)
        return policy, policy.renderer
    policy = models.load(str(model.name), renderer="default")  # load needs one; the custom one takes its place
    return policy, _renderer(renderer, policy.tokenizer)


def _renderer(table: RendererTable, tokenizer: Any) -> Any:
    if table.import_path is None:
        return create(tokenizer, table.name)
    where, path = "orchestrator.renderer", table.import_path
    if ":" not in path:
        return UserFunction(import_path=path).resolve(where)(tokenizer)
    file, _, name = path.rpartition(":")
    if not Path(file).is_file():
        raise ConfigError(f"{where}: import_path={path!r}: there is no file {file!r} in {Path.cwd()}.")
    spec: Any = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(found := getattr(module, name, None)):
        raise ConfigError(f"{where}: import_path={path!r}: the file has no class {name!r}.")
    return found(tokenizer)


def _engine(config: RunConfig) -> Any:
    table, name = config.inference, config.inference.model or config.orchestrator.model.name
    if table.engine != "server" or table.base_url is None:
        return table.engine
    if name is None:
        raise ConfigError("inference.model: is missing; the policy is a tiny model, so say how the server calls it.")
    from prl.engines.server import ServerEngine

    weights = Path(table.weights_dir or Path(config.output_dir) / "weights")
    served = FrozenModel(name=name, base_url=table.base_url, api_key_var=table.api_key_var)
    return ServerEngine.from_frozen(served, policy=True, weights_dir=weights)


def _source(index: int, table: SourceTable) -> Source:
    where = f"orchestrator.train.source[{index}]"
    if table.env is None:
        raise ConfigError(f"{where}.env.taskset.id: is missing; a source needs an environment, such as 'math'.")
    if isinstance(table.algo, Echo) and table.algo.filter is not None:
        table.algo.filter.resolve(f"{where}.algo.filter")
    pinned = {role: agent.model for role, agent in table.env.agents.items() if agent.model is not None}
    env = _environment(f"{where}.env", table.env, table.label)
    return Source(
        env, algorithm=table.algo, curriculum=table.curriculum.build(), group_size=table.group_size, models=pinned
    )


def _environment(where: str, table: EnvTable, name: str) -> Env:
    """The environment of a taskset id; only reasoning-gym's are in this version."""
    id = table.taskset.id
    if id != "math" and id not in _reasoning_gym():
        raise ConfigError(f"{where}.taskset.id: {_why_not(id)}")
    for role, agent in table.agents.items():
        if role != "agent":
            raise ConfigError(f"{where}.{role}: unknown role; {id!r} has the one role 'agent'.")
        if agent.harness.id != "null":
            raise ConfigError(f"{where}.{role}.harness.id: got 'bash'; {id!r} has no tools. Set it to 'null'.")
    settings = table.taskset.model_dump(exclude={"id", "config"})
    if id != "math":
        env = ReasoningGym(id, **settings, **_own_settings(f"{where}.taskset.config", table.taskset))
    elif table.taskset.config:
        raise ConfigError(f"{where}.taskset.config: 'math' is a mix of tasks and takes no settings of one of them.")
    else:
        from reasoning_gym.composite import DatasetSpec

        env = ReasoningGym("composite", **settings, datasets=[DatasetSpec(task, 1.0, {}) for task in MATH])
    env.name = name
    return env


def _own_settings(where: str, taskset: TasksetTable) -> dict[str, Any]:
    """The task's own settings, apart from those that have a key here."""
    if odd := sorted(set(taskset.config) & {*TasksetTable.model_fields, "name"}):
        raise ConfigError(f"{where}.{odd[0]}: no setting of a task; size, seed, test_share and exact stand in taskset.")
    return taskset.config


def _reasoning_gym() -> Any:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError("taskset.id: reasoning-gym is not installed; pip install 'prl[envs]'.") from error
    return DATASETS


def _why_not(id: str) -> str:
    """Why this version cannot play the taskset."""
    if id in ROLES:
        kind = f"the environment {id!r}"
    elif re.search(r"-v\d", id):
        kind = f"textarena's {id!r}"
    elif not id.startswith(".") and importlib.util.find_spec(id.split(".")[0]) is not None:
        kind = f"the verifiers module {id!r}"
    else:
        near = get_close_matches(id, ["math", *ROLES, *_reasoning_gym()], n=1, cutoff=0)[0]
        return f"got {id!r}; no task of reasoning-gym and no module that can be imported. Did you mean {near!r}?"
    return f"got {id!r}; this version has no such environment yet ({kind}). It has 'math' and reasoning-gym's tasks."
