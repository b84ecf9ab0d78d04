"""The TOML blocks of the algorithms page, as facts: the text, and what stands where once it is loaded."""

from prl.algorithms import (
    GRPO,
    OPD,
    OPSD,
    RAE,
    Echo,
    EchoRole,
    EchoRoles,
    HierarchicalGRPO,
    LinearPenalty,
    LinearSubagentPenalty,
    UserFunction,
)
from prl.config import IPO, FrozenModel, IcePop
from prl.toml.curricula import AdvantageRangeTable, CurriculumTable, DifficultyPoolTable, PoolTable
from prl.toml.schema import CustomLoss, RendererTable
from prl.toml.sources import AgentTable, HarnessTable

ALGO, LOSS = "orchestrator.train.algo", "trainer.loss"
TEACHER = FrozenModel(name="Qwen/Qwen3-32B", base_url="http://localhost:8001/v1")
SOURCE = "orchestrator.train.source"

OPD_TEACHER = """
[orchestrator.train.algo]
type = "opd"

[orchestrator.train.algo.teacher]   # opd's teacher: the frozen model it scores against
name = "Qwen/Qwen3-32B"
base_url = "http://localhost:8001/v1"
"""

DEFAULT = """
[orchestrator.train.algo]
type = "grpo"  # the default
"""

ECHO_ROLES = """
# echo on tool AND user feedback tokens, each at its own weight.
# Setting any role replaces the whole table.
[orchestrator.train.algo]
type = "echo"

[orchestrator.train.algo.roles.tool]
alpha = 0.25

[orchestrator.train.algo.roles.user]
alpha = 0.05
"""

ECHO_FILTER = """
[orchestrator.train.algo.filter]
import_path = "my_module.drop_warnings"

[orchestrator.train.algo.filter.kwargs]
patterns = ["WARNING"]
"""

PER_ENV = """
[orchestrator.train.algo]
type = "grpo"

[[orchestrator.train.source]]
name = "math"  # inherits the group's grpo
env.taskset.id = "math"
env.agent.harness.id = "null"
env.agent.runtime.type = "subprocess"

[[orchestrator.train.source]]
name = "terminal"
env.taskset.id = "terminal"
env.agent.harness.id = "bash"
env.agent.runtime.type = "subprocess"
# this env runs its own algorithm
algo.type = "echo"
"""

ICEPOP = """
[trainer.loss]
type = "icepop"
ratio_low = 0.2
ratio_high = 5.0
"""

CENTERED = """
[trainer.loss]
type = "icepop"
score_centering = true
score_centering_topk = 128
"""

CUSTOM = """
[trainer.loss]
type = "custom"
import_path = "my_module.ppo_clip_loss"

[trainer.loss.kwargs]
clip_eps = 0.2
"""

LINEAR = """
[orchestrator.train.algo]
type = "grpo"

[orchestrator.train.algo.length_penalty]
type = "linear"
"""

SUBAGENT = """
[orchestrator.train.algo.length_penalty]
type = "linear-subagent"
subagent_token_weight = 0.0
num_turns_weight = 0.0
"""

PROMPT_MEAN = """
[orchestrator.train.algo]
type = "grpo"
loss_aggregation = "prompt"
"""

HIERARCHICAL = """
[orchestrator.train.algo]
type = "hierarchical_grpo"
episode_agents = ["solver"]

[[orchestrator.train.source]]
name = "proposer-solver"
group_size = 4  # proposed problems per source task
env.n = 4  # solver attempts per proposed problem
env.taskset.id = "proposer-solver"
env.proposer.harness.id = "null"
env.proposer.runtime.type = "subprocess"
env.solver.harness.id = "null"
env.solver.runtime.type = "subprocess"
"""

KUHN = """
[orchestrator.train.algo]
type = "rae"
decay = 0.95

[[orchestrator.train.source]]
name = "kuhn-poker"
env.taskset.id = "kuhn-poker"
env.player0.harness.id = "null"
env.player0.runtime.type = "subprocess"
env.player1.harness.id = "null"
env.player1.runtime.type = "subprocess"
"""

OPSD_KEY = """
[orchestrator.train.algo]
type = "opsd"
demo_key = "demonstration"
"""

CURRICULUM = """
[orchestrator.train.source.curriculum.sampler]
type = "difficulty_pool"

[orchestrator.train.source.curriculum.sampler.pools.hard]
threshold = 0.25
weight = 0.2

[orchestrator.train.source.curriculum.sampler.pools.normal]
threshold = 0.75
weight = 1.0

[orchestrator.train.source.curriculum.sampler.pools.easy]
threshold = 1.0
weight = 0.2

[orchestrator.train.source.curriculum.gates.low_signal]
type = "advantage_range"
reject_min = -0.05
reject_max = 0.05
"""

RENDERER = """
[orchestrator.renderer]
name = "auto"   # detect from tokenizer; pass an explicit name for fine-tunes
"""

_POOLS = {"hard": (0.25, 0.2), "normal": (0.75, 1.0), "easy": (1.0, 0.2)}
_CURRICULUM = CurriculumTable(
    sampler=DifficultyPoolTable(pools={k: PoolTable(threshold=t, weight=w) for k, (t, w) in _POOLS.items()}),
    gates={"low_signal": AdvantageRangeTable(type="advantage_range", reject_min=-0.05, reject_max=0.05)},
)
_ROLES = EchoRoles(tool=EchoRole(alpha=0.25), user=EchoRole(alpha=0.05))
_FILTER = UserFunction(import_path="my_module.drop_warnings", kwargs={"patterns": ["WARNING"]})
_BASH = AgentTable(harness=HarnessTable(id="bash"))

# name: (text, {dotted path: value})
BLOCKS = {
    "opd": (OPD_TEACHER, {ALGO: OPD(teacher=TEACHER)}),
    "grpo": (DEFAULT, {ALGO: GRPO(), LOSS: IPO()}),
    "echo": (ECHO_ROLES, {ALGO: Echo(roles=_ROLES)}),
    "echo, filter": (ECHO_ROLES + ECHO_FILTER, {ALGO: Echo(roles=_ROLES, filter=_FILTER)}),
    "per env": (
        PER_ENV,
        {
            f"{SOURCE}.0.name": "math",
            f"{SOURCE}.0.algo": GRPO(),
            f"{SOURCE}.0.env.agents": {"agent": AgentTable()},
            f"{SOURCE}.1.algo": Echo(),
            f"{SOURCE}.1.env.taskset.id": "terminal",
            f"{SOURCE}.1.env.agents": {"agent": _BASH},
        },
    ),
    "icepop": (ICEPOP, {LOSS: IcePop()}),
    "centering": (CENTERED, {LOSS: IcePop(score_centering=True, score_centering_topk=128)}),
    "custom": (CUSTOM, {LOSS: CustomLoss(import_path="my_module.ppo_clip_loss", kwargs={"clip_eps": 0.2})}),
    "linear": (LINEAR, {ALGO: GRPO(length_penalty=LinearPenalty())}),
    "subagent": (SUBAGENT, {ALGO: GRPO(length_penalty=LinearSubagentPenalty(num_turns_weight=0.0))}),
    "grpo, subagent": (DEFAULT + SUBAGENT, {ALGO: GRPO(length_penalty=LinearSubagentPenalty(num_turns_weight=0.0))}),
    "prompt mean": (PROMPT_MEAN, {ALGO: GRPO(loss_aggregation="prompt")}),
    "hierarchical": (
        HIERARCHICAL,
        {
            f"{SOURCE}.0.algo": HierarchicalGRPO(episode_agents=("solver",)),
            f"{SOURCE}.0.group_size": 4,
            f"{SOURCE}.0.env.n": 4,
            f"{SOURCE}.0.env.agents": {"proposer": AgentTable(), "solver": AgentTable()},
        },
    ),
    "rae": (KUHN, {f"{SOURCE}.0.algo": RAE(decay=0.95), f"{SOURCE}.0.env.taskset.id": "kuhn-poker"}),
    "opsd": (OPSD_KEY, {ALGO: OPSD(demo_key="demonstration")}),
    "curriculum": (CURRICULUM, {f"{SOURCE}.0.curriculum": _CURRICULUM}),
    "per env, curriculum": (
        PER_ENV + CURRICULUM,
        {f"{SOURCE}.0.curriculum": CurriculumTable(), f"{SOURCE}.1.curriculum": _CURRICULUM},
    ),
    "renderer": (RENDERER, {"orchestrator.renderer": RendererTable(name="auto")}),
}
