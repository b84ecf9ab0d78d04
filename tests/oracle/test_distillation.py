"""On-policy distillation: which KL its expected update climbs down, by enumeration."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.losses import ce, ref_kl
from prl.oracle import distribution, expected_update, gradient_of, token_logprobs
from tests.oracle.test_tree import trees

LAW = settings(deadline=None, max_examples=20)


def student_and_teacher(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)  # two tokens of three


def distil(student, loss, **streams):
    """The expected update of one rollout that no reward is paid for."""
    nothing = torch.zeros(len(distribution(student)))
    return expected_update(student, nothing, torch.zeros_like, group=1, loss=loss, streams=streams)


def next_token(trainer_logprobs, inference_logprobs, advantages, ref_logprobs):
    return ref_kl(trainer_logprobs, inference_logprobs, ref_logprobs)


def discounted(student, teacher, discount):
    """The same signal as a return: log ref - log pi of this and, discounted, of all later tokens."""
    signal = token_logprobs(teacher) - token_logprobs(student)
    togo = [signal[:, -1]]
    for column in signal.T.flip(0)[1:]:
        togo.insert(0, column + discount * togo[0])
    return distil(student, lambda t, i, a, credit: -credit * t, credit=torch.stack(togo, -1))


def sequence_kl(teacher):
    return lambda d: (d * (d.log() - distribution(teacher).log())).sum()


def first_token_kl(student, teacher):
    """Gradient in the logits of the first token of KL between the two first-token distributions."""
    return gradient_of(student[0], lambda d: (d * (d.log() - teacher[0].log_softmax(-1))).sum())


def test_discount_one_is_the_gradient_of_sequence_kl():
    student, teacher = student_and_teacher()
    want = -gradient_of(student, sequence_kl(teacher))
    torch.testing.assert_close(discounted(student, teacher, 1.0), want, rtol=1e-10, atol=1e-12)
    step = torch.zeros_like(student)
    for row, column in ((0, 1), (2, 0)):  # and by finite differences, which know nothing of autograd
        step.zero_()[row, column] = 1e-5
        up, down = (sequence_kl(teacher)(distribution(student + sign * step)) for sign in (1, -1))
        assert abs(want[row, column] + (up - down) / 2e-5) < 1e-9


def test_discount_zero_is_the_gradient_of_each_token_alone():
    student, teacher = student_and_teacher()
    got = distil(student, next_token, ref_logprobs=token_logprobs(teacher))
    torch.testing.assert_close(got[0], -first_token_kl(student, teacher), rtol=1e-10, atol=1e-12)
    whole = -gradient_of(student, sequence_kl(teacher))
    # The first token hears nothing of what it leads to; the last one has nothing to hear of.
    assert (got[0] - whole[0]).abs().max() > 0.05
    torch.testing.assert_close(got[1:], whole[1:], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(discounted(student, teacher, 0.0), got)


@LAW
@given(trees(), st.floats(-3, 3))
def test_a_constant_in_the_signal_changes_nothing(student, constant):
    teacher = student.flip(-1) / 2
    plain = distil(student, next_token, ref_logprobs=token_logprobs(teacher))
    moved = distil(student, next_token, ref_logprobs=token_logprobs(teacher) + constant)
    torch.testing.assert_close(moved, plain, rtol=1e-9, atol=1e-12)


@LAW
@given(trees())
def test_a_student_that_is_its_teacher_stays_exactly(student):
    # Not only on average: the signal of every single token is 0.
    got = distil(student, next_token, ref_logprobs=token_logprobs(student))
    assert (got == 0).all()


@LAW
@given(trees(), st.integers(0, 10**6))
def test_supervised_tokens_of_a_teacher_climb_down_the_forward_kl(student, seed):
    noise = torch.randn(student.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    teacher = student + noise
    nothing = torch.zeros(len(distribution(student)))
    got = expected_update(student, nothing, torch.zeros_like, group=1, sampler=teacher, loss=lambda t, i, a: ce(t))
    want = gradient_of(student, lambda d: (distribution(teacher) * d.log()).sum())
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
