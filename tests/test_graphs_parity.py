"""Graph networks against torch_geometric's layers and plain torch on the same weights: outputs and gradients."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("rdkit")
pytest.importorskip("torch_geometric")

from benchmarks.speed.pyg_networks import PlainMLMPNN, PygGINE, PygMPNN, graph_list
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

from apmax.data.molecules import ATOM_WIDTH, BOND_WIDTH, MoleculeDataset, build_chunk, dense_atoms, dense_bonds
from apmax.models.graphs import GINE, MLMPNN, MPNN
from apmax.models.graphs import mpnn as mpnn_module
from apmax.models.graphs.aggregation import segment_mean
from apmax.models.graphs.gine import GINEConvolution
from apmax.models.graphs.graph_batch import FeatureTable, GraphBatch

SMILES = [
    "CCO",
    "c1ccccc1C(=O)[O-]",
    "C[C@H](N)C(=O)O",
    "C/C=C/C#N",
    "[Na+].[Cl-]",
    "[2H]C([2H])Cl",
    "O=S(=O)(c1ccncc1)N1CCCC1",
    "CC(C)(C)c1ccc(O)cc1",
    "N->[Fe]",
]
PAIRS = [(GINE, PygGINE), (MPNN, PygMPNN)]


@pytest.fixture(scope="module")
def data():
    return MoleculeDataset(build_chunk(0, SMILES).store, [1, 0, 0, 1, 0, 0, 1, 0, 0])


@pytest.fixture(scope="module")
def graphs(data):
    return graph_list(data)


def batch_of(data):
    return data.collate(data.__getitems__(list(range(len(data)))))


def run(model, batch, weight):
    model.zero_grad()
    out = model(batch)
    (out * weight).sum().backward()
    return out.detach()


@pytest.mark.parametrize("form", ["ours", "pyg"])
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize(("kind", "peer"), PAIRS)
def test_outputs_and_gradients_equal_torch_geometrics(data, graphs, kind, peer, tasks, form):
    torch.manual_seed(0)
    ours, theirs = kind(16, tasks), peer(16, tasks)
    for parameter in ours.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.take_weights(ours)
    dense = Batch.from_data_list(graphs)
    weight = torch.randn((len(data), tasks) if tasks > 1 else (len(data),))
    expected = run(theirs, dense, weight)
    found = run(ours, batch_of(data) if form == "ours" else dense, weight)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    own = dict(ours.named_parameters())
    for name, gradient in theirs.gradients().items():
        torch.testing.assert_close(own[name].grad, gradient, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("kind", "peer"), PAIRS)
def test_outputs_agree_to_eleven_digits_in_double_precision(data, graphs, kind, peer):
    torch.manual_seed(0)
    ours, theirs = kind(16).double(), peer(16, 1).double()
    theirs.take_weights(ours)
    doubles = [graph.clone() for graph in graphs]
    for row, graph in enumerate(doubles):
        item = data.collate([data[row]])
        graph.x, graph.edge_attr = dense_atoms(item.x, torch.float64), dense_bonds(item.edge_attr, torch.float64)
    found = ours(batch_of(data))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, theirs(Batch.from_data_list(doubles)), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_ml_mpnn_equals_its_definition_in_plain_torch(training):
    data = MoleculeDataset(build_chunk(0, SMILES, levels=True).store)
    torch.manual_seed(0)
    ours = MLMPNN(16, 2).double()
    for parameter in ours.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    plain = PlainMLMPNN(copy.deepcopy(ours))
    weight = torch.randn(len(data), 2, dtype=torch.float64)
    for _ in range(2):
        found = run(ours.train(training), batch_of(data), weight)
        expected = run(plain.train(training), batch_of(data), weight)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    for (name, one), two in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    for one, two in zip(ours.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("path", ["_messages_by_group", "_pair_table", "_messages_by_feature"])
def test_all_code_paths_of_the_edge_convolution_agree(data, monkeypatch, path):
    torch.manual_seed(0)
    model = MPNN(16).double()
    expected = torch.autograd.grad(model(batch_of(data)).sum(), list(model.parameters()), allow_unused=True)
    if path == "_messages_by_feature":
        monkeypatch.setattr(mpnn_module, "MAX_MATRICES", 0)
        monkeypatch.setattr(
            mpnn_module.EdgeConvolution, "forward_features", lambda self, g: self(g.atoms.gather(g.atoms.rows), g)
        )
    elif path == "_pair_table":

        def by_table(self, x, graphs):
            pair = graphs.source * len(graphs.bonds.rows) + graphs.bonds.index()
            return self._pair_table(x, graphs.bonds.rows).index_select(0, pair), graphs.target

        monkeypatch.setattr(mpnn_module.EdgeConvolution, "_messages_by_group", by_table)
    found = torch.autograd.grad(model(batch_of(data)).sum(), list(model.parameters()), allow_unused=True)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_empty_batch_has_no_scores(kind):
    none = torch.zeros(0, dtype=torch.long)
    atoms, bonds = (FeatureTable(torch.zeros(0, width), none) for width in (ATOM_WIDTH, BOND_WIDTH))
    model = kind(8).eval()
    assert model.head(model.embed(GraphBatch(atoms, bonds, none, none, none, 0), None)).shape == (0, 1)


def test_matrices_of_many_distinct_bonds_are_never_formed(monkeypatch):
    layer, bonds = mpnn_module.EdgeConvolution(6, 5, 3), mpnn_module.MAX_MATRICES + 1
    ends, batch = torch.arange(bonds), torch.zeros(bonds + 1, dtype=torch.long)
    features = FeatureTable(torch.randn(bonds, 3), None)
    graphs = GraphBatch(FeatureTable(torch.randn(bonds + 1, 6), None), features, ends, ends + 1, batch, 1)
    expected = segment_mean(layer(graphs.atoms.rows, graphs), batch, 1)
    monkeypatch.setattr(layer.matrices, "forward", None)
    torch.testing.assert_close(layer.forward_mean(graphs.atoms.rows, graphs), expected)


def few_bonds():
    """Return molecules of four and three atoms, between them one without atoms, and one of a single atom."""
    one, other = torch.tensor([[0, 1, 2, 3, 4, 5, 4, 0], [1, 2, 3, 0, 5, 6, 6, 2]])
    bonds = FeatureTable(torch.randn(2, 6, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 0, 0, 1, 1]).repeat(2))
    batch = torch.tensor([0, 0, 0, 0, 2, 2, 2, 3])
    return GraphBatch(
        FeatureTable(batch[:, None], None), bonds, torch.cat([one, other]), torch.cat([other, one]), batch, 4
    )


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_mean_of_the_last_convolution_equals_the_mean_over_atoms(kind):
    torch.manual_seed(0)
    graphs, x = few_bonds(), torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    if kind is GINE:
        layer = GINEConvolution(6, 5).double()
        layer.eps.data.fill_(0.3)
        given = (x, graphs.bonds.rows, graphs)
    else:
        layer, given = mpnn_module.EdgeConvolution(6, 5, 6).double(), (x, graphs)
    expected = segment_mean(layer(*given), graphs.batch, 4)
    layer.forward = None  # forward_mean must not call it
    found = layer.forward_mean(*given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not found[1].any()
    weight, inputs = torch.randn_like(found), [x, *layer.parameters()]
    ours, theirs = (torch.autograd.grad((value * weight).sum(), inputs) for value in (found, expected))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_trains_from_torch_geometrics_loader_with_our_loss(graphs, kind):
    from apmax import APLoss, Indexed

    torch.manual_seed(0)
    labels = torch.tensor([float(graph.y) for graph in graphs])
    model, loss = kind(8), APLoss(labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    values = []
    for _ in range(30):
        for batch in DataLoader(Indexed(graphs), batch_size=9):
            optimizer.zero_grad()
            value = loss(model(batch), batch.y, batch.row)
            value.backward()
            optimizer.step()
            values.append(value.item())
    assert values[-1] < values[0] - 0.1


@pytest.mark.parametrize("kind", [GINE, MPNN])
def test_single_graph_without_batch_vector_is_one_molecule(graphs, kind):
    model = kind(8).eval()
    assert model(graphs[0]).shape == (1,)
    torch.testing.assert_close(model(graphs[0]), model(Batch.from_data_list(graphs))[:1], rtol=1e-5, atol=1e-6)


def test_model_of_torch_geometric_trains_with_our_loader_and_loss(data):
    from torch.utils.data import DataLoader as TorchLoader
    from torch_geometric.nn import GCN, global_mean_pool

    from apmax import APLoss, PositiveBatchSampler

    torch.manual_seed(0)
    model, loss = GCN(133, 16, num_layers=2, out_channels=1), APLoss(data.labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler, values = PositiveBatchSampler(data, batch_size=9, num_pos=3), []
    for _ in range(30):
        for batch in TorchLoader(data, batch_sampler=sampler):
            optimizer.zero_grad()
            atoms = model(dense_atoms(batch.x), batch.edge_index)
            scores = global_mean_pool(atoms, batch.batch, batch.num_graphs)[:, 0]
            value = loss(scores, batch.y, batch.row)
            value.backward()
            optimizer.step()
            values.append(value.item())
    assert values[-1] < values[0] - 0.1
