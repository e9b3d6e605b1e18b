"""Update rules against loops over the paper's formulas, and what they promise about groups and resuming."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

from apmax.optim import PaperAdam, param_groups, theorem_steps
from references import algorithm_3
from trajectories import GRADIENTS, START, parameter, trajectory


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_paper_adam_is_algorithm_3(amsgrad, weight_decay, maximize):
    hyper = {"lr": 0.1, "betas": (0.8, 0.6), "eps": 1e-3, "amsgrad": amsgrad, "weight_decay": weight_decay}
    w = parameter()
    found = trajectory(PaperAdam([{"params": [w], "maximize": maximize}], **hyper), w)
    expected = algorithm_3(START, GRADIENTS, **hyper, maximize=maximize)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_three_steps_of_the_adam_style_by_hand():
    # G = 2, 4, 0; η₁ = η₂ = 1/2; ε = 1:  h = 1, 5/2, 5/4;  v = 2, 9, 9/2
    w = parameter([0.0])
    found = trajectory(PaperAdam([w], lr=1.0, betas=(0.5, 0.5), eps=1.0), w, [[2.0], [4.0], [0.0]])
    steps = [1 / np.sqrt(3), 2.5 / np.sqrt(10), 1.25 / np.sqrt(5.5)]
    np.testing.assert_allclose(found[:, 0], -np.cumsum(steps), rtol=0, atol=1e-12)


def test_three_steps_of_the_amsgrad_style_by_hand():
    # G = 4, 0, 2, 6; η₁ = 0, η₂ = 1/2, ε = 1. Going on from the maximum: v = 8, 8/2 = 4, 8/2 + 2 = 6, 8/2 + 18 = 22,
    # so v̂ = 8, 8, 8, 22; going on from v, as torch does, the last would be 4/2 + 18 = 20.
    w = parameter([0.0])
    optimizer = PaperAdam([w], lr=1.0, betas=(0.0, 0.5), eps=1.0, amsgrad=True)
    found = trajectory(optimizer, w, [[4.0], [0.0], [2.0], [6.0]])
    np.testing.assert_allclose(found[:, 0], -np.cumsum([4 / 3, 0, 2 / 3, 6 / np.sqrt(23)]), rtol=0, atol=1e-12)


def test_ascending_the_negated_function_is_descending():
    down, up = parameter(), parameter()
    found = trajectory(PaperAdam([down], lr=0.1), down)
    flipped = [[-g for g in gradient] for gradient in GRADIENTS]
    np.testing.assert_array_equal(trajectory(PaperAdam([up], lr=0.1, maximize=True), up, flipped), found)


def test_a_parameter_without_gradient_stays():
    used, unused = parameter(), parameter()
    trajectory(PaperAdam([used, unused], lr=0.1), used)
    assert unused.tolist() == START


def test_gradients_are_not_changed_by_a_step():
    w = parameter()
    optimizer = PaperAdam([{"params": [w], "maximize": True}], lr=0.1, weight_decay=0.1)
    w.grad = torch.ones(3, dtype=torch.float64)
    optimizer.step()
    assert w.grad.tolist() == [1.0, 1.0, 1.0]


def test_parameters_of_several_types_and_shapes_are_stepped_together():
    w, v = parameter(), nn.Parameter(torch.zeros(2, 2))
    optimizer = PaperAdam([v, w], lr=0.1, betas=(0.8, 0.6))
    v.grad = torch.ones(2, 2)
    found = trajectory(optimizer, w)
    expected = algorithm_3(START, GRADIENTS, lr=0.1, betas=(0.8, 0.6), eps=1e-8, amsgrad=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert v.dtype == torch.float32


@pytest.mark.parametrize("amsgrad", [False, True])
def test_paper_adam_goes_on_bit_for_bit_from_a_saved_state(amsgrad):
    whole = nn.Linear(3, 1)
    optimizer = PaperAdam(whole.parameters(), lr=0.01, amsgrad=amsgrad)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    def train(model, rule):
        for _ in range(5):
            rule.zero_grad()
            model(x).square().sum().backward()
            rule.step()

    train(whole, optimizer)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = copy.deepcopy(whole)
    other = PaperAdam(resumed.parameters(), lr=0.5, amsgrad=not amsgrad)
    other.load_state_dict(torch.load(file, weights_only=True))
    train(whole, optimizer)
    train(resumed, other)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_closure_is_evaluated_and_its_value_returned():
    w = parameter([3.0])
    optimizer = PaperAdam([w], lr=0.1)

    def closure():
        optimizer.zero_grad()
        value = w.square().sum()
        value.backward()
        return value

    assert optimizer.step(closure).item() == 9.0
    assert w.item() < 3.0


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="dense"):
        PaperAdam(table.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr must lie in"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\] must lie in"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] must lie in"),
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"eps": 0.0}, "eps must lie in"),
        ({"weight_decay": -0.1}, "weight_decay must lie in"),
    ],
)
def test_a_wrong_number_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PaperAdam([parameter()], **arguments)


class SaddleLoss(nn.Module):
    ascend = ("alpha",)

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))
        self.alpha = nn.Parameter(torch.zeros(()))


class PlainLoss(nn.Module):
    pass


class Sum(nn.Module):
    """A loss of losses, that names what its parts name."""

    ascend = ("terms.0.alpha",)

    def __init__(self):
        super().__init__()
        self.terms = nn.ModuleList([SaddleLoss(), PlainLoss()])


def test_groups_are_the_model_the_losses_own_and_the_ascended():
    model, loss = nn.Linear(2, 1), SaddleLoss()
    groups = param_groups(model, loss)
    assert [group["params"] for group in groups] == [list(model.parameters()), [loss.a], [loss.alpha]]
    assert [group.get("maximize", False) for group in groups] == [False, False, True]
    assert ["lr" in group for group in groups] == [False] * 3


def test_empty_groups_are_left_out():
    model = nn.Linear(2, 1)
    assert param_groups(model, PlainLoss()) == [{"params": list(model.parameters())}]


def test_losses_inside_a_loss_are_found_once():
    model, loss = nn.Linear(2, 1), Sum()
    inside = loss.terms[0]
    groups = param_groups(model, loss)
    assert [group["params"] for group in groups[1:]] == [[inside.a], [inside.alpha]]


def test_a_model_that_holds_the_loss_does_not_descend_on_its_ascended_parameters():
    model = nn.Module()
    model.net, model.loss = nn.Linear(2, 1), SaddleLoss()
    groups = param_groups(model, model.loss)
    assert [group["params"] for group in groups] == [list(model.net.parameters()), [model.loss.a], [model.loss.alpha]]


def test_a_parameter_shared_inside_the_model_is_listed_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    torch.optim.SGD(param_groups(model, SaddleLoss(), lr=0.1))
    assert len(param_groups(model, PlainLoss())[0]["params"]) == 3


def test_the_loss_can_have_its_own_learning_rate():
    groups = param_groups(nn.Linear(2, 1), SaddleLoss(), lr=0.1, loss_lr=0.5)
    assert [group["lr"] for group in groups] == [0.1, 0.5, 0.5]


@pytest.mark.parametrize("name", ["lr", "loss_lr"])
def test_a_negative_learning_rate_of_a_group_is_refused(name):
    with pytest.raises(ValueError, match=f"^{name} must"):
        param_groups(nn.Linear(2, 1), SaddleLoss(), **{name: -0.1})


def test_the_losses_parameters_do_not_decay():
    optimizer = torch.optim.SGD(param_groups(nn.Linear(2, 1), SaddleLoss(), lr=0.1), weight_decay=0.2)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0, 0.0]


@pytest.mark.parametrize(
    "rule",
    [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, PaperAdam],
)
def test_any_optimiser_ascends_on_the_ascended_alone(rule):
    model, loss = nn.Linear(1, 1), SaddleLoss()
    optimizer = rule(param_groups(model, loss, lr=0.1))
    (loss.a + loss.alpha + 0 * model.weight.sum()).backward()
    optimizer.step()
    assert loss.a.item() < 0 < loss.alpha.item()


def test_an_ascended_name_that_does_not_exist_is_named():
    loss = SaddleLoss()
    loss.ascend = ("alpa",)
    with pytest.raises(ValueError, match=r"SaddleLoss names 'alpa'.*\(a, alpha\)"):
        param_groups(nn.Linear(2, 1), loss)


def test_ascend_as_one_string_is_an_error():
    loss = SaddleLoss()
    loss.ascend = "alpha"
    with pytest.raises(ValueError, match="tuple of names"):
        param_groups(nn.Linear(2, 1), loss)


def test_step_sizes_are_those_of_the_theorems():
    lr, gamma = theorem_steps(32, 10**5)
    assert lr == pytest.approx(1 / (4 * 1000), rel=1e-12)
    assert gamma == pytest.approx(4 / 100, rel=1e-12)


def test_as_many_steps_as_positives_are_too_few():
    with pytest.raises(ValueError, match=r"steps must be more than num_pos=100"):
        theorem_steps(100, 100)


def test_betas_must_satisfy_the_theorem():
    theorem_steps(10, 100, betas=(0.5, 0.25))
    with pytest.raises(ValueError, match=r"η₁ ≤ √η₂"):
        theorem_steps(10, 100, betas=(0.5001, 0.25))
