"""The paper's graph networks in torch_geometric's layers or plain torch: reference of ours, and timed against them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv, NNConv, global_mean_pool

from apmax.data.molecules import dense_atoms, dense_bonds


class PygGINE(nn.Module):
    """GINE with `GINEConv`."""

    def __init__(self, hidden: int, tasks: int, atoms: int = 133, bonds: int = 14) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(bonds, atoms), nn.Linear(atoms, hidden)
        self.convs = nn.ModuleList(
            GINEConv(nn.Linear(width, hidden), train_eps=True) for width in (atoms, hidden, hidden)
        )
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, tasks))

    def forward(self, data: Any) -> Tensor:
        """Return the scores of a batch of graphs with dense features."""
        first = self.lin1(data.edge_attr)
        later = self.lin2(first)
        x = self.convs[0](data.x, data.edge_index, first).relu()
        x = self.convs[1](x, data.edge_index, later).relu()
        x = self.convs[2](x, data.edge_index, later)
        scores = self.head(global_mean_pool(x, data.batch, data.num_graphs))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def take_weights(self, ours: Any) -> None:
        """Copy every weight of our network."""
        pairs = [(self.lin1, ours.bonds_first), (self.lin2, ours.bonds_later), (self.head, ours.head)]
        for conv, own in zip(self.convs, (ours.first, ours.second, ours.third), strict=True):
            pairs.append((conv.nn, own.linear))
            conv.eps.data.fill_(own.eps.item())
        for theirs, own in pairs:
            theirs.load_state_dict(own.state_dict())

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients by the names that our network gives its parameters."""
        return {
            "bonds_first.weight": self.lin1.weight.grad,
            "bonds_later.bias": self.lin2.bias.grad,
            **{
                f"{name}.{part}": value
                for name, conv in zip(("first", "second", "third"), self.convs, strict=True)
                for part, value in (
                    ("linear.weight", conv.nn.weight.grad),
                    ("linear.bias", conv.nn.bias.grad),
                    ("eps", conv.eps.grad.squeeze()),
                )
            },
            "head.0.weight": self.head[0].weight.grad,
            "head.3.weight": self.head[3].weight.grad,
        }


class PygMPNN(nn.Module):
    """MPNN with `NNConv`."""

    def __init__(self, hidden: int, tasks: int, atoms: int = 133, bonds: int = 14) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            NNConv(width, hidden, nn.Linear(bonds, width * hidden), aggr="add") for width in (atoms, hidden, hidden)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, tasks))

    def forward(self, data: Any) -> Tensor:
        """Return the scores of a batch of graphs with dense features."""
        x, nodes = data.x, torch.bincount(data.batch, minlength=data.num_graphs)[data.batch]
        for conv, norm in zip(self.convs[:2], self.norms, strict=True):
            x = norm(conv(x, data.edge_index, data.edge_attr) / nodes[:, None].to(x.dtype).sqrt()).relu()
        x = self.convs[2](x, data.edge_index, data.edge_attr)
        scores = self.head(global_mean_pool(x, data.batch, data.num_graphs))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def take_weights(self, ours: Any) -> None:
        """Copy every weight of our network."""
        for conv, own in zip(self.convs, (ours.first, ours.second, ours.third), strict=True):
            conv.nn.load_state_dict(own.matrices.state_dict())
            conv.lin.weight.data.copy_(own.root.weight.data)
            conv.bias.data.copy_(own.root.bias.data)
        for norm, own in zip(self.norms, (ours.first_norm, ours.second_norm), strict=True):
            norm.load_state_dict(own.state_dict())
        self.head.load_state_dict(ours.head.state_dict())

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients by the names that our network gives its parameters."""
        return {
            **{
                f"{name}.{part}": value
                for name, conv in zip(("first", "second", "third"), self.convs, strict=True)
                for part, value in (
                    ("matrices.weight", conv.nn.weight.grad),
                    ("matrices.bias", conv.nn.bias.grad),
                    ("root.weight", conv.lin.weight.grad),
                    ("root.bias", conv.bias.grad),
                )
            },
            "first_norm.weight": self.norms[0].weight.grad,
            "second_norm.bias": self.norms[1].bias.grad,
            "head.0.weight": self.head[0].weight.grad,
            "head.3.weight": self.head[3].weight.grad,
        }


class PlainMLMPNN(nn.Module):
    """The forward pass of our ML-MPNN with concatenation and `index_add`, on its own parameters."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Any) -> Tensor:
        """Return the scores of a `MoleculeBatch`."""
        net, dtype = self.network, self.network.dtype
        source, target = batch.edge_index
        of_atom, of_clique, of_bond = batch.batch, batch.clique_batch, batch.batch[target]
        owners = (of_atom, of_bond, of_clique)
        sizes = [torch.bincount(of, minlength=batch.num_graphs).clamp(min=1)[:, None].to(dtype) for of in owners]

        def summed(values: Tensor, to: Tensor, count: int) -> Tensor:
            return values.new_zeros(count, values.shape[1]).index_add_(0, to, values)

        def means(*states: Tensor) -> list[Tensor]:
            triples = zip(states, owners, sizes, strict=True)
            return [summed(state, of, batch.num_graphs) / size for state, of, size in triples]

        features = dense_bonds(batch.edge_attr, dtype)
        x, e, c = net.atoms(dense_atoms(batch.x, dtype)), net.bonds(features), net.cliques(batch.cliques)
        u = net.molecules(summed(features, of_bond, batch.num_graphs) / sizes[1])
        for norms, layer in zip(net.norms, net.layers, strict=True):
            x = norms.atoms(x / sizes[0][of_atom].sqrt())
            e = norms.bonds(e / sizes[1][of_bond].sqrt())
            c = norms.cliques(c / sizes[2][of_clique].sqrt())
            u = norms.molecules(u)
            e = layer.bonds(torch.cat([x[source], x[target], e, u[of_bond]], 1))
            message = layer.messages(summed(torch.cat([x[source], e], 1), target, len(x)))
            x = layer.atoms(torch.cat([x, message, u[of_atom]], 1))
            inside = layer.clique_atoms(summed(x[batch.members[1]], batch.members[0], len(c)))
            adjacent = layer.clique_neighbours(summed(c[batch.tree[0]], batch.tree[1], len(c)))
            c = layer.cliques(torch.cat([inside, c, adjacent, u[of_clique]], 1))
            u = layer.molecules(torch.cat([u, *means(x, e, c)], 1))
        scores = net.head(torch.cat([net.last_norm(u), batch.descriptors.to(dtype)], 1))
        return scores[:, 0] if scores.shape[1] == 1 else scores


def graph_list(dataset: Any) -> list[Data]:
    """Return the molecules as torch_geometric's usual list of `Data` with dense features."""
    found = []
    for row in range(len(dataset)):
        item = dataset.collate([dataset[row]])
        data = Data(x=dense_atoms(item.x), edge_index=item.edge_index, edge_attr=dense_bonds(item.edge_attr))
        if item.y is not None:
            data.y = item.y
        found.append(data)
    return found
