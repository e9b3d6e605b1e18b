"""Common behaviour of the graph networks, and ML-MPNN against a loop over its definition."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("rdkit")

from apmax.data.molecules import FEATURISER_VERSION, MoleculeDataset, build_chunk, dense_atoms, dense_bonds
from apmax.models.graphs import GINE, GRAPH_MODELS, MLMPNN, MPNN
from apmax.models.graphs.aggregation import Adjacency
from apmax.train.weights import parameters_without_reset

SMILES = ["CCO", "c1ccccc1C(=O)[O-]", "[Na+].[Cl-]", "C1CC2CCC1C2", "CC(C)(C)c1ccc(O)cc1", "C", "C/C=C/C#N", "CN"]


@pytest.fixture(scope="module")
def data():
    return MoleculeDataset(build_chunk(0, SMILES, levels=True).store, [1, 0, 0, 1, 0, 0, 1, 0])


def batch_of(data, rows=None):
    return data.collate(data.__getitems__(list(range(len(data))) if rows is None else rows))


def perturbed(model, batch):
    """Return the model with all parameters and running statistics moved away from their initial 0 and 1."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    for _ in range(3):
        model(batch)
    return model


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_score_of_a_molecule_does_not_depend_on_the_others(data, name):
    model = perturbed(GRAPH_MODELS[name](8).double(), batch_of(data)).eval()
    together = model(batch_of(data))
    alone = torch.cat([model(batch_of(data, [row])) for row in range(len(data))])
    torch.testing.assert_close(alone, together, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_score_does_not_depend_on_the_order_of_atoms(name):
    data = MoleculeDataset(build_chunk(0, ["CC(C)(C)c1ccc(O)cc1", "Oc1ccc(cc1)C(C)(C)C"], levels=True).store)
    model = perturbed(GRAPH_MODELS[name](8).double(), batch_of(data, [0, 1])).eval()
    one, two = model(batch_of(data, [0, 1]))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_several_tasks_give_a_column_each(data, name):
    assert GRAPH_MODELS[name](8, 3)(batch_of(data)).shape == (8, 3)


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_mixed_precision_does_not_change_the_scores(data, name):
    model = perturbed(GRAPH_MODELS[name](8), batch_of(data)).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(batch_of(data))
    assert torch.equal(scores, model(batch_of(data)))


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_every_parameter_receives_a_gradient(data, name):
    model = GRAPH_MODELS[name](8)
    model(batch_of(data)).square().sum().backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_batch_without_bonds_works(data, name):
    model = GRAPH_MODELS[name](8)
    scores = model(batch_of(data, [2, 5]))
    scores.sum().backward()
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_head_is_two_layers_that_a_stage_can_reset(data, name):
    weights = pytest.importorskip("apmax.train.weights")
    model = GRAPH_MODELS[name](8)
    assert weights.find_head(model) is model.head
    before = {key: value.clone() for key, value in model.state_dict().items()}
    weights.reset_modules(model, ("head",), seed=1)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {f"head.{layer}.{part}" for layer in (0, 3) for part in ("weight", "bias")}


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_members_of_an_ensemble_can_be_copies_of_a_network(name):
    assert parameters_without_reset(GRAPH_MODELS[name]()) == []


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_weights_of_another_featuriser_are_refused(name):
    model = GRAPH_MODELS[name](8)
    state = model.state_dict()
    model.load_state_dict(state)
    state["featuriser_version"] = torch.tensor(FEATURISER_VERSION + 1)
    with pytest.raises(ValueError, match=f"version {FEATURISER_VERSION + 1} of the featuriser"):
        model.load_state_dict(state)


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_categories_dense_features_and_plain_tensors_agree(data, kind):
    batch = batch_of(data)
    model = perturbed(kind(8), batch).eval()
    expected = model(batch)
    plain = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    dense = model(dense_atoms(batch.x), batch.edge_index, dense_bonds(batch.edge_attr), batch.batch)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dense, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_own_features_of_any_width_work(data, kind):
    batch = batch_of(data)
    torch.manual_seed(0)
    x, bonds = torch.randn(len(batch.x), 5), torch.randn(batch.edge_index.shape[1], 3)
    model = kind(8, atom_features=5, bond_features=3)
    assert model(x, batch.edge_index, bonds, batch.batch).shape == (8,)


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_wrong_width_is_an_error_that_names_the_tensor(data, kind):
    batch = batch_of(data)
    with pytest.raises(ValueError, match="x must have 133 features"):
        kind(8)(torch.randn(len(batch.x), 5), batch.edge_index, dense_bonds(batch.edge_attr), batch.batch)
    with pytest.raises(ValueError, match="needs x, edge_index and edge_attr"):
        kind(8)(torch.randn(3, 133))


def test_ml_mpnn_without_levels_is_an_error_that_names_the_argument():
    data = MoleculeDataset(build_chunk(0, SMILES).store)
    with pytest.raises(ValueError, match="levels=True"):
        MLMPNN(8)(batch_of(data))


def mlp(module, *inputs):
    return module.second(module.first(torch.cat(inputs)).relu())


def loop_ml_mpnn(model, batch):
    """Return the scores by loops over atoms, directed bonds and cliques, molecule by molecule; in evaluation mode."""
    scores = []
    zero = torch.zeros(model.hidden, dtype=model.dtype)
    for graph in range(batch.num_graphs):
        atoms = [k for k in range(len(batch.x)) if batch.batch[k] == graph]
        bonds = [k for k in range(batch.edge_index.shape[1]) if batch.edge_index[0, k] in atoms]
        cliques = [k for k in range(len(batch.cliques)) if batch.clique_batch[k] == graph]
        ends = {k: batch.edge_index[:, k].tolist() for k in bonds}
        members = {k: batch.members[1][batch.members[0] == k].tolist() for k in cliques}
        adjacent = {k: batch.tree[0][batch.tree[1] == k].tolist() for k in cliques}
        features = {k: dense_bonds(batch.edge_attr[k : k + 1], model.dtype)[0] for k in bonds}

        x = {k: mlp(model.atoms, dense_atoms(batch.x[k : k + 1], model.dtype)[0]) for k in atoms}
        e = {k: mlp(model.bonds, features[k]) for k in bonds}
        c = {k: model.cliques.weight[batch.cliques[k]] for k in cliques}
        none = torch.zeros(model.bond_features, dtype=model.dtype)
        u = mlp(model.molecules, sum(features.values(), none) / max(len(bonds), 1))

        for layer, norms in zip(model.layers, model.norms, strict=True):
            x = {k: norms.atoms((value / len(atoms) ** 0.5)[None])[0] for k, value in x.items()}
            e = {k: norms.bonds((value / len(bonds) ** 0.5)[None])[0] for k, value in e.items()}
            c = {k: norms.cliques((value / len(cliques) ** 0.5)[None])[0] for k, value in c.items()}
            u = norms.molecules(u[None])[0]

            e = {k: mlp(layer.bonds, x[ends[k][0]], x[ends[k][1]], e[k], u) for k in bonds}
            message = {}
            for k in atoms:
                arriving = [b for b in bonds if ends[b][1] == k]
                neighbours = sum((x[ends[b][0]] for b in arriving), zero)
                message[k] = mlp(layer.messages, neighbours, sum((e[b] for b in arriving), zero))
            x = {k: mlp(layer.atoms, x[k], message[k], u) for k in atoms}
            c = {
                k: mlp(
                    layer.cliques,
                    mlp(layer.clique_atoms, sum((x[a] for a in members[k]), zero)),
                    c[k],
                    mlp(layer.clique_neighbours, sum((c[b] for b in adjacent[k]), zero)),
                    u,
                )
                for k in cliques
            }
            means = [sum(state.values(), zero) / max(len(state), 1) for state in (x, e, c)]
            u = mlp(layer.molecules, u, *means)
        last = model.last_norm(u[None])[0]
        scores.append(model.head(torch.cat([last, batch.descriptors[graph].to(model.dtype)]))[0])
    return torch.stack(scores)


def test_ml_mpnn_equals_the_loop_over_its_definition(data):
    batch = batch_of(data)
    model = perturbed(MLMPNN(6).double(), batch).eval()
    torch.testing.assert_close(model(batch), loop_ml_mpnn(model, batch), rtol=1e-10, atol=1e-12)


def test_ml_mpnn_gradients_equal_those_of_the_loop(data):
    batch = batch_of(data, [0, 2, 3, 7])
    model = perturbed(MLMPNN(4).double(), batch).eval()
    parameters = list(model.parameters())
    found = torch.autograd.grad(model(batch).square().sum(), parameters)
    expected = torch.autograd.grad(loop_ml_mpnn(model, batch).square().sum(), parameters)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-11)


def test_neighbour_sums_and_their_gradients_are_products_with_the_matrix():
    sender, receiver = torch.tensor([2, 0, 2]), torch.tensor([1, 1, 0])
    adjacency = Adjacency.from_pairs(sender, receiver, senders=3, receivers=4)
    matrix = torch.zeros(4, 3, dtype=torch.float64)
    matrix[receiver, sender] = 1
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(adjacency.sum(values), matrix @ values, rtol=1e-12, atol=0)
    assert torch.equal(adjacency.degrees(torch.float64), matrix.sum(1, keepdim=True))
    assert torch.autograd.gradcheck(adjacency.sum, (values,))
    other = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(adjacency.transposed.sum(other), matrix.T @ other, rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(adjacency.transposed.sum, (other,))


@pytest.mark.parametrize("name", ["from_index", "from_segments", "symmetric"])
def test_special_adjacency_matrices_are_the_general_one(name):
    one, two = torch.tensor([0, 0, 2, 3]), torch.arange(4)
    if name == "from_index":
        found, pairs, sizes = Adjacency.from_index(one, 5), (one, two), (5, 4)
    elif name == "from_segments":
        found, pairs, sizes = Adjacency.from_segments(one, 5), (two, one), (4, 5)
    else:
        pairs, sizes = (torch.cat([one, two]), torch.cat([two, one])), (4, 4)
        found = Adjacency.symmetric(*pairs, 4)
    expected = Adjacency.from_pairs(*pairs, senders=sizes[0], receivers=sizes[1])
    for one_way, other in ((found, expected), (found.transposed, expected.transposed)):
        values = torch.randn(len(other.transpose.counts), 3)
        torch.testing.assert_close(one_way.sum(values), other.sum(values))
        assert torch.equal(one_way.degrees(torch.float32), other.degrees(torch.float32))


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_networks_train_with_the_trainer(data, name):
    pytest.importorskip("lightning_fabric")
    from apmax.train import Optimizer, Run, Sampler, Stage, epochs

    torch.manual_seed(0)
    stage = Stage(
        loss="ap", epochs=6, sampler=Sampler(name="positive", batch_size=8, num_pos=3), optimizer=Optimizer(lr=0.01)
    )
    records = list(
        epochs(GRAPH_MODELS[name](8), (data, data.subset(range(8))), Run(stages=(stage,), accelerator="cpu"))
    )
    assert len(records) == 6
    assert records[-1].loss < records[0].loss
