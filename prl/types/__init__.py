"""The values between the stages. Immutable, printable, constructible by hand.

Axes: `group` the rollouts of one prompt; `traces` the valid trainable traces of a
group; `seq` or `*tokens` positions; `vocab`; `topk`; `batch`; `row` rows of a micro-batch.

Booleans: *valid* the rollout counts; *mask* the token was sampled and may train;
*weight != 0* the token is a member of the component; *kept* it survived the trust
region; *admitted* its group passed the gates.
"""

from prl.types.batch import Batch, Rows, StepReport
from prl.types.group import Commit, Episode, Group, Groups, Task, Trace, commit_of
from prl.types.losses import LossInputs, LossOutputs, TokenLoss
from prl.types.sample import TrainingSample, supervised
from prl.types.step import ROLES, Step, TopK

__all__ = [
    "ROLES", "Batch", "Commit", "Episode", "Group", "Groups", "LossInputs", "LossOutputs", "Rows", "Step",
    "StepReport", "Task", "TokenLoss", "TopK", "Trace", "TrainingSample", "commit_of", "supervised",
]  # fmt: skip
