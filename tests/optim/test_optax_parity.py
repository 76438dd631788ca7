"""Five steps of Optax, computed once with optax 0.2.8 (jax 0.10.2, float64) and written down.

The script's idea: params are `tree(0.3)`, the gradient of step t is `tree(1.3 * t + 1.0)` (below),
each transform of `OURS` is built in Optax from the same numbers, and the params after five steps
are printed with eleven digits, `w` first and then `b`. The schedule was written out in float64,
which Optax's own are not; adaptive clipping was fed transposed matrices, since Optax's units are
columns.
"""

import pytest
import torch

from funcloop import optim, schedules

# fmt: off
GOLDEN = {
    "lion": [
        0.90774952956, 0.7010539255, -0.067525739041, -0.61802429766, -1.0300890438,
        -0.74825622542, 0.90774952956, 0.57854414113, -0.490478174,
    ],
    "lamb": [
        0.94090704113, 0.73257098448, 0.059990340874, -0.58900350867, -0.93218812836,
        -0.82210093647, 0.94278145039, 0.5587744775, -0.50490637715,
    ],
    "lars": [
        0.94969982785, 0.6796642335, 0.08997193009, -0.54203557789, -0.91911528405,
        -0.86392071055, 0.9575592159, 0.51703343403, -0.48851049525,
    ],
    "lars_nesterov": [
        0.9544195696, 0.57053209513, -0.081685538487, -0.69548518698, -0.98218728478,
        -0.80695135545, 0.95907453793, 0.65635540714, -0.36363400401,
    ],
    "adan": [
        0.88546688186, 0.73965398579, 0.086906742315, -0.54875892368, -0.88264854692,
        -0.76474493852, 0.88546688186, 0.50428451657, -0.53472677197,
    ],
    "prodigy": [
        0.95380158471, 0.56699120081, -0.10386390854, -0.71894414902, -0.99121189507,
        -0.79493034543, 0.95380158471, 0.67759235488, -0.35032738208,
    ],
    "prodigy_safeguard": [
        0.95490972061, 0.54251694102, -0.12671146548, -0.73571722746, -0.99822999616,
        -0.79096131853, 0.95490972061, 0.69498241743, -0.32554529416,
    ],
    "schedule_free_sgd": [
        0.94691841564, 0.58317447754, -0.05484552971, -0.66707082735, -0.96556229162,
        -0.80993472281, 0.94691841564, 0.62467218318, -0.38022065674,
    ],
    "schedule_free_adamw": [
        0.94347053717, 0.68933216329, -0.037493859883, -0.67946704705, -0.97707060375,
        -0.76970955676, 0.94347053717, 0.63623316273, -0.45049648464,
    ],
    "ema": [
        0.96464160449, 0.66755044663, 0.05649988296, -0.5811234585, -0.94543535713,
        -0.86509423446, 0.96464160449, 0.53473860894, -0.47953088651,
    ],
    "ema_biased": [
        0.96691679886, 0.56759311358, -0.098678481903, -0.71854004546, -1.0004609981,
        -0.81184951075, 0.96691679886, 0.67645841168, -0.35323897518,
    ],
    "masked": [
        0.93930425566, 0.5331368243, -0.12377318601, -0.72247073294, -0.98137900524,
        -0.77872939691, 1.1156588238, 0.83993504435, -0.35367626709,
    ],
    "partition": [
        0.9126595959, 0.76176609351, 0.084458459389, -0.5697448567, -0.90861969991,
        -0.79032825753, 0.95533648913, 0.69670670935, -0.32328956686,
    ],
    "inject_hyperparams": [
        0.92060235942, 0.75927092805, 0.073749900152, -0.5829639252, -0.91982997096,
        -0.7931956421, 0.92060235942, 0.53745998417, -0.54290312197,
    ],
    "clip_by_global_norm": [
        0.95130688917, 0.53829324131, -0.127888129, -0.73392171394, -0.99478044897,
        -0.78777839497, 0.95130688917, 0.69339459406, -0.32226469221,
    ],
    "clip_by_value": [
        0.93668525218, 0.54326667251, -0.1323366971, -0.71352274405, -1.0022703107,
        -0.76988813197, 0.93668525218, 0.67267315963, -0.3265220566,
    ],
    "clip_by_block_rms": [
        0.94273544269, 0.53355461978, -0.12656527783, -0.72715954764, -0.98575932001,
        -0.78074108127, 0.94373044698, 0.68643715741, -0.32099998257,
    ],
    "centralize": [
        0.94534639124, 0.53917895989, -0.11773105043, -0.73744321381, -0.99635148612,
        -0.79370187779, 0.93930425566, 0.68238387585, -0.32025089684,
    ],
    "keep_non_negative": [
        0.87517532178, 0.50447489804, 0, 0.21568842249, 0.45556513094,
        0.74082676697, 0.87517532178, 0.62509254184, 0.77885788144,
    ],
    "apply_if_finite": [
        0.95054024455, 0.81334384997, 0.11968830293, -0.56095005077, -0.9309089247,
        -0.83935234832, 0.95054024455, 0.5131607636, -0.59741651561,
    ],
    "schedule_free_sgd_eval": [
        0.95299380466, 0.5919852814, -0.047443169717, -0.6645583568, -0.96912136467,
        -0.8178914518, 0.95299380466, 0.6216673758, -0.38902198369,
    ],
    "schedule_free_adamw_eval": [
        0.95106215325, 0.70177906242, -0.027180351099, -0.67621543208, -0.98129715915,
        -0.78024642008, 0.95106215325, 0.63233309997, -0.46301228843,
    ],
    "lookahead": [
        0.94771223284, 0.67011115866, -0.0094861957776, -0.64991964386, -0.96143823391,
        -0.8087983671, 0.94771223284, 0.60606371519, -0.45388711996,
    ],
    "lookahead_slow": [
        0.95816450084, 0.68353499718, 0.00033000441545, -0.64842412245, -0.96860584106,
        -0.82152169314, 0.95816450084, 0.60380375776, -0.46681896252,
    ],
    "adaptive_grad_clip": [
        0.95349048782, 0.53991741924, -0.12758724806, -0.73736066493, -0.9982519308,
        -0.78964971549, 0.95353335815, 0.69528520006, -0.32277601809,
    ],
}
# fmt: on


def tree(offset):
    i = torch.arange(6, dtype=torch.float64)
    return {"w": torch.cos(0.7 * i + offset).reshape(2, 3), "b": torch.cos(1.1 * i[:3] - offset)}


LINEAR = schedules.linear(0.1, 0.02, 4)
OURS = {
    "lion": optim.lion(LINEAR, weight_decay=0.1),
    "lamb": optim.lamb(LINEAR, weight_decay=0.1),
    "lars": optim.lars(LINEAR, weight_decay=0.1, trust_coefficient=0.5),
    "lars_nesterov": optim.lars(0.1, trust_coefficient=0.5, momentum=0.7, nesterov=True),
    "adan": optim.adan(LINEAR, weight_decay=0.1),
    "prodigy": optim.prodigy(weight_decay=0.1, estim_lr0=1e-2),
    "prodigy_safeguard": optim.prodigy(LINEAR, safeguard_warmup=True, estim_lr0=1e-2),
    "schedule_free_sgd": optim.schedule_free_sgd(0.1, weight_decay=0.1),
    "schedule_free_adamw": optim.schedule_free_adamw(0.1, weight_decay=0.1),
    "ema": optim.chain(optim.ema(0.9), optim.sgd(0.1)),
    "ema_biased": optim.chain(optim.ema(0.9, debias=False), optim.sgd(0.1)),
    "masked": optim.masked(optim.sgd(0.1), {"w": True, "b": False}),
    "partition": optim.partition(
        {"a": optim.adam(LINEAR), "z": optim.freeze()}, {"w": "a", "b": "z"}
    ),
    "inject_hyperparams": optim.inject_hyperparams(optim.adamw)(
        LINEAR, betas=(0.8, 0.999), weight_decay=1e-4
    ),
    "clip_by_global_norm": optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(0.1)),
    "clip_by_value": optim.chain(optim.clip_by_value(0.5), optim.sgd(0.1)),
    "clip_by_block_rms": optim.chain(optim.clip_by_block_rms(0.5), optim.sgd(0.1)),
    "adaptive_grad_clip": optim.chain(optim.adaptive_grad_clip(0.1), optim.sgd(0.1)),
    "centralize": optim.chain(optim.centralize(), optim.sgd(0.1)),
    "keep_non_negative": optim.chain(optim.sgd(0.5), optim.keep_non_negative()),
    "apply_if_finite": optim.apply_if_finite(optim.adam(0.1)),
    "lookahead": optim.lookahead(optim.adam(0.1), sync_period=2, slow_step_size=0.5),
}


def five_steps(tx):
    params = tree(0.3)
    state = tx.init(params)
    for t in range(5):
        updates, state = tx.update(tree(1.3 * t + 1.0), state, params)
        params = optim.apply_updates(params, updates)
    return params, state


def assert_golden(params, name):
    got = torch.cat([params["w"].flatten(), params["b"]])
    want = torch.tensor(GOLDEN[name], dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", OURS)
def test_five_steps(name):
    assert_golden(five_steps(OURS[name])[0], name)


@pytest.mark.parametrize("name", ["schedule_free_sgd", "schedule_free_adamw"])
def test_evaluation_params(name):
    params, state = five_steps(OURS[name])
    assert_golden(optim.schedule_free_eval_params(state, params), f"{name}_eval")


def test_slow_params():
    assert_golden(five_steps(OURS["lookahead"])[1].slow, "lookahead_slow")


def test_every_golden_is_compared():
    assert set(OURS) | {"schedule_free_sgd_eval", "schedule_free_adamw_eval", "lookahead_slow"} == (
        set(GOLDEN)
    )
