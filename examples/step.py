"""One pure training step: run eagerly, then as one graph with its state updated in place."""

import torch.nn.functional as F
from torch import nn

import funcloop as fl

x_key, net_key, run_key = fl.random.split(fl.random.key(0), 3)
x = fl.random.normal(x_key, (256, 8))
y = (x[:, 0] * x[:, 1] > 0).long()  # which quadrant: not linear in x
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))

model = fl.stateless(net)
params, buffers = model.init(net_key)


def loss_fn(params, buffers, batch, key):
    x, y = batch
    logits, buffers = model.apply(params, buffers, x, key=key, train=True)
    losses = F.cross_entropy(logits, y, reduction="none")  # (B,)
    return losses, fl.Aux(buffers, {"accuracy": (logits.argmax(-1) == y).float()})


schedule = fl.schedules.warmup_cosine(1e-2, 20, 300)
tx = fl.optim.chain(fl.optim.clip_by_global_norm(1.0), fl.optim.adamw(schedule))
state = fl.TrainState.create(params, buffers, tx, key=run_key)

step = fl.train_step(fl.value_and_grad(loss_fn), tx)
state, metrics = step(state, (x, y))  # eager: print and pdb work inside loss_fn
print(f"eager  loss {metrics['loss']:.3f}  accuracy {metrics['accuracy']:.1%}")

step = fl.jit(step, donate=0)
for _ in range(299):
    state, metrics = step(state, (x, y))
print(f"jitted loss {metrics['loss']:.3f}  accuracy {metrics['accuracy']:.1%}")
