"""StepsNet is Eq. 5 and ReverseStepsNet is Eq. 6, for any widths, rank and channel dimension."""

from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, Stack, StepsNet, network
from tests.macro.nets import Case, Mixing, cases, outputs_of, reverse_reference, steps_reference


def values_and_gradients(y: Tensor, x: Tensor, steps: list[nn.Module]) -> list[Tensor]:
    """y, and the gradients of an uneven function of it with respect to the input and every weight."""
    parameters = [parameter for step in steps for parameter in step.parameters()]
    loss = (y * torch.linspace(1.0, 2.0, y.numel(), dtype=y.dtype).view(y.shape)).sum()
    return [y, *torch.autograd.grad(loss, [x, *parameters])]


@given(cases())
def test_stepsnet_is_equation_5(case: Case) -> None:
    x, steps = case.input(), case.steps()
    ours = values_and_gradients(StepsNet(steps, case.widths, case.channel_dim)(x), x, steps)
    theirs = values_and_gradients(steps_reference(x, steps, case.widths, case.channel_dim), x, steps)
    torch.testing.assert_close(ours, theirs)


@given(cases())
def test_reverse_stepsnet_is_equation_6(case: Case) -> None:
    x, steps, widths = case.input(), case.steps(reverse=True), case.widths[::-1]
    ours = values_and_gradients(ReverseStepsNet(steps, widths, case.channel_dim)(x), x, steps)
    theirs = values_and_gradients(reverse_reference(x, steps, widths, case.channel_dim), x, steps)
    torch.testing.assert_close(ours, theirs)


@given(cases(min_steps=2))
def test_y1_does_not_see_x2(case: Case) -> None:
    x, steps = case.input(), case.steps()
    with outputs_of(steps[:1]) as seen:
        StepsNet(steps, case.widths, case.channel_dim)(x)
    (gradient,) = torch.autograd.grad(seen[0].sum(), x)
    first, rest = gradient.split((case.widths[0], case.widths[-1] - case.widths[0]), case.channel_dim)
    assert torch.count_nonzero(rest) == 0
    assert torch.count_nonzero(first) > 0


@given(cases(min_steps=2))
def test_the_last_step_sees_every_slice(case: Case) -> None:
    x, steps = case.input(), case.steps()
    (gradient,) = torch.autograd.grad(StepsNet(steps, case.widths, case.channel_dim)(x).square().sum(), x)
    assert torch.count_nonzero(gradient) == gradient.numel()


@given(cases())
def test_one_step_is_bit_equal_to_the_plain_stack(case: Case) -> None:
    x, width = case.input(), case.widths[-1]
    stack = Stack(Mixing(width, case.channel_dim).double() for _ in range(3))
    steps: list[nn.Module] = [stack]
    ours = values_and_gradients(StepsNet(steps, [width], case.channel_dim)(x), x, steps)
    plain = values_and_gradients(nn.Sequential(*stack.blocks)(x), x, steps)
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@given(cases(min_steps=2))
def test_a_step_without_blocks_passes_its_slice_through(case: Case) -> None:
    x, steps = case.input(), [*case.steps()[:-1], Stack([])]
    y = StepsNet(steps, case.widths, case.channel_dim)(x)
    narrow = case.widths[-2]
    inner = StepsNet(steps[:-1], case.widths[:-1], case.channel_dim)(x.narrow(case.channel_dim, 0, narrow))
    last = x.narrow(case.channel_dim, narrow, case.widths[-1] - narrow)
    through = y.narrow(case.channel_dim, narrow, case.widths[-1] - narrow)
    assert torch.equal(through, last)
    # The inner steps read a slice of another tensor: alignment and strides differ, so kernels may round differently.
    torch.testing.assert_close(y.narrow(case.channel_dim, 0, narrow), inner)


def stacks(case: Case, depth: int = 2, reverse: bool = False) -> list[nn.Module]:
    torch.manual_seed(case.seed)
    widths = case.widths[::-1] if reverse else case.widths
    return [
        Stack(Mixing(width, case.channel_dim).double() for _ in range(depth * (index != 1)))
        for index, width in enumerate(widths)
    ]


@given(cases())
def test_walk_returns_the_states_that_hooks_see(case: Case) -> None:
    x = case.input()
    net = StepsNet(stacks(case), case.widths, case.channel_dim)
    blocks = [block for stack in net.steps if isinstance(stack, Stack) for block in stack.blocks]
    with outputs_of(blocks) as seen:
        y = net(x)
    output, states = net.walk(x)
    assert torch.equal(output, y)
    assert len(states) == len(blocks)
    assert all(torch.equal(state, net.state(x, block)) for state, block in zip(states, seen, strict=True))


@given(cases())
def test_states_have_full_width_and_end_with_the_slices_not_yet_joined(case: Case) -> None:
    x = case.input()
    net = StepsNet(case.steps(), case.widths, case.channel_dim)
    _, states = net.walk(x)
    for state, width in zip(states, case.widths, strict=True):
        assert state.shape == x.shape
        waiting = case.widths[-1] - width
        assert torch.equal(state.narrow(case.channel_dim, width, waiting), x.narrow(case.channel_dim, width, waiting))


@given(cases())
def test_the_reverse_walk_has_full_states_and_the_same_output(case: Case) -> None:
    x = case.input()
    net = ReverseStepsNet(stacks(case, reverse=True), case.widths[::-1], case.channel_dim)
    output, states = net.walk(x)
    assert torch.equal(output, net(x))
    assert all(state.shape == x.shape for state in states)


def test_walk_returns_only_the_requested_states() -> None:
    case = Case((2, 3, 5), -1, (4, 5), seed=0)
    net = StepsNet(stacks(case), case.widths)
    x = case.input()
    _, every = net.walk(x)
    _, some = net.walk(x, after=(1, 3))
    assert [torch.equal(a, b) for a, b in zip(some, (every[1], every[3]), strict=True)] == [True, True]


def test_further_arguments_reach_every_step() -> None:
    class Adding(nn.Module):
        def forward(self, x: Tensor, amount: float) -> Tensor:
            return x + amount

    y = StepsNet([Adding(), Adding()], [1, 2])(torch.zeros(2), 1.0)
    assert y.tolist() == [2.0, 1.0]


def test_keyword_arguments_reach_every_step_and_block() -> None:
    net = StepsNet.from_blocks(
        lambda width, _: nn.TransformerEncoderLayer(width, 2, batch_first=True), "8x2, 12x0, 16x1"
    ).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False, False, False, True, True]])
    masked = net(x, src_key_padding_mask=padding)
    assert torch.equal(net.walk(x, src_key_padding_mask=padding)[0], masked)
    torch.testing.assert_close(masked[1, :3], net(x[1:, :3])[0])
    assert not torch.allclose(masked[1, :3], net(x)[1, :3])


def test_checkpointed_stacks_pass_keyword_arguments_too() -> None:
    class Adding(nn.Module):
        def forward(self, x: Tensor, *, amount: float) -> Tensor:
            return x + amount

    net = StepsNet.from_blocks(lambda _width, _index: Adding(), "1x2, 2x1")
    for stack in net.steps:
        assert isinstance(stack, Stack)
        stack.grad_checkpointing = True
    assert net(torch.zeros(2, requires_grad=True), amount=1.0).tolist() == [3.0, 1.0]


def test_the_example_in_the_docstring_runs() -> None:
    found = doctest.testmod(network)
    assert (found.attempted, found.failed) == (3, 0)


@pytest.mark.parametrize(
    ("net", "made"), [(StepsNet, [(2, 0), (2, 1), (5, 2)]), (ReverseStepsNet, [(5, 0), (2, 1), (2, 2)])]
)
def test_blocks_are_made_in_the_order_of_execution(
    net: type[StepsNet | ReverseStepsNet], made: list[tuple[int, int]]
) -> None:
    asked: list[tuple[int, int]] = []

    def make_block(width: int, index: int) -> nn.Module:
        asked.append((width, index))
        return nn.Identity()

    x = torch.randn(3, 5)
    assert torch.equal(
        net.from_blocks(make_block, "2x2, 5x1")(x), x if net is StepsNet else torch.cat((x[:, 2:], x[:, :2]), -1)
    )
    assert asked == made


def test_steps_may_work_in_place() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    for make, widths in ((StepsNet, [5]), (StepsNet, [2, 5]), (ReverseStepsNet, [5, 2])):
        in_place = make([nn.ReLU(inplace=True) for _ in widths], widths)(x * 1)
        (gradient,) = torch.autograd.grad(in_place.sum(), x)
        assert torch.equal(in_place, make([nn.ReLU() for _ in widths], widths)(x))
        assert torch.equal(gradient, (x > 0).float())


def test_slices_not_yet_joined_are_views() -> None:
    net, x = StepsNet([nn.Identity() for _ in range(3)], [2, 4, 5]), torch.randn(3, 5)
    assert [part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for part in net.split(x)] == [
        False,
        True,
        True,
    ]
    assert torch.equal(torch.cat(net.split(x), dim=-1), x)


@pytest.mark.parametrize(
    ("widths", "sentence"),
    [
        ([4, 4], "grow from narrow to wide"),
        ([6, 4], "grow from narrow to wide"),
        ([0, 4], "must be positive"),
        ([2, 4, 6], "one width per step"),
        ([], "one width per step"),
    ],
)
def test_invalid_widths_are_refused(widths: list[int], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        StepsNet([nn.Identity(), nn.Identity()], widths)


def test_reverse_widths_go_wide_to_narrow() -> None:
    with pytest.raises(UsageError, match=r"shrink from wide to narrow, got \(2, 4\)"):
        ReverseStepsNet([nn.Identity(), nn.Identity()], [2, 4])


NETS = {
    "steps": StepsNet([nn.Identity(), nn.Identity()], [2, 4], 1),
    "reverse": ReverseStepsNet([nn.Identity(), nn.Identity()], [4, 2], 1),
}


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_an_input_of_another_width_is_refused(net: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"4 channels wide, the input of shape \(2, 5\) has 5 at dimension 1"):
        net(torch.zeros(2, 5))


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_an_input_without_the_channel_dimension_is_refused(net: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"channels are at dimension 1, which an input of shape \(4,\) does not have"):
        net(torch.zeros(4))
